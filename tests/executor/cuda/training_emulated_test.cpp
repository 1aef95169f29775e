// Whole training runs on ranks that are threads, every kernel of the Programs of native-cuda emulated on the processor,
// against the same runs on the host: lowering, arena, checks of extents and kernels fit together. (Matmuls and
// attention are the host's.)
#include <doctest/doctest.h>

#include "tests/fakes/emulated/kernels.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const EmulatedKernels& emulated() {
  static const EmulatedKernels kernels;
  return kernels;
}

// The host's, but for kernels.
class EmulatedDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void launch_kernel(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelCall call) override {
    d_.launch(op, s, waits, make_kernel(call, emulated()));
  }
  [[nodiscard]] std::vector<OperationRecord> records() const override {
    std::vector<OperationRecord> all = d_.records();
    for (OperationRecord& r : all) r.heap_bytes = 0;  // the emulator's own
    return all;
  }
};

class EmulatedBackend final : public ForwardingBackend {
 public:
  explicit EmulatedBackend(MeshShape mesh)
      : ForwardingBackend(make_host_backend(mesh, {.watchdog_seconds = 300}), [](Device& device, const Body& body) {
          EmulatedDevice d(device);
          body(d);
        }) {}
  [[nodiscard]] const Implementation& implementation() const override { return native_cuda_implementation(); }
};

ModelGraph gpt2() {
  return model_from_config(
      R"({"model_type": "gpt2", "vocab_size": 41, "n_positions": 16, "n_embd": 20, "n_layer": 1, "n_head": 4,
                            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5})",
      "gpt2");
}

RunOptions two_steps() {
  RunOptions options;
  options.warmup_steps = 1, options.steps = 1;
  options.keep_parameters = true;
  return options;
}

// fp64: sums in other orders, over two steps of Adam whose update of an element near zero gradient is steep: 1e-9 of a
// tensor's norm.
void check_equal_training(const ModelGraph& model, const PlanWords& words, double allowed) {
  const ShardingPlan plan = make_plan(model, words);
  const MeshShape mesh{words.replicate, words.shard, words.tensor};
  const ClusterSpec cluster = load_cluster("host", mesh.ranks());
  EmulatedBackend backend(mesh);
  const RunResult got = run(model, plan, cluster, backend, two_steps());
  const auto host = make_host_backend(mesh);
  const RunResult expected = run(model, plan, cluster, *host, two_steps());
  REQUIRE(got.parameters.size() == expected.parameters.size());
  REQUIRE(got.first_gradients.size() == expected.first_gradients.size());
  for (const auto& [a, b] :
       {std::pair{&got.parameters, &expected.parameters}, {&got.first_gradients, &expected.first_gradients}})
    for (std::size_t i = 0; i < a->size(); ++i) {
      CAPTURE((*b)[i].name);
      REQUIRE((*a)[i].values.size() == (*b)[i].values.size());
      double difference = 0, norm = 0;
      for (std::size_t e = 0; e < (*b)[i].values.size(); ++e) {
        difference += std::pow((*a)[i].values[e] - (*b)[i].values[e], 2);
        norm += std::pow((*b)[i].values[e], 2);
      }
      CHECK(std::sqrt(difference) <= allowed * std::sqrt(norm));
    }
}

PlanWords words_of(DType type) {
  PlanWords w;
  w.compute = w.reduce = w.master = type;
  return w;
}

}  // namespace

TEST_CASE("a sharded Llama with clipping and two micro-batches trains as on the host") {
  PlanWords w = words_of(DType::f64);
  w.shard = 2, w.micro_batches = {1, 2}, w.clip_norm = 0.5;
  check_equal_training(small_llama({.layers = 2}), w, 1e-9);
}

TEST_CASE("and alone, on replicas, under ddp, with gradients kept unsharded, with sgd") {
  PlanWords w = words_of(DType::f64);
  check_equal_training(small_llama({.layers = 1, .tied = true}), w, 1e-9);
  w.shard = 2, w.micro_batches = {1, 1}, w.grad_sync = GradSync::last, w.optimizer = OptimizerKind::sgd;
  check_equal_training(small_llama({.layers = 1}), w, 1e-9);
  w.shard = 1, w.replicate = 2, w.dialect = Dialect::ddp, w.grad_sync = GradSync::every;
  check_equal_training(small_llama({.layers = 1}), w, 1e-9);
}

TEST_CASE("over tensor ranks: parts of the vocabulary, norms of parts of sequences and of heads") {
  PlanWords w = words_of(DType::f64);
  w.shard = 2, w.tensor = 2, w.micro_batches = {1, 2}, w.seq_len = 8, w.clip_norm = 0.5;
  check_equal_training(small_llama({.layers = 1}), w, 1e-9);
  w.shard = 1, w.micro_batches = {1}, w.checkpointing = "full";
  check_equal_training(model_from_config(
                           R"({"model_type": "qwen3", "vocab_size": 44, "hidden_size": 24, "intermediate_size": 36,
                           "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
                           "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                           "hidden_act": "silu", "tie_word_embeddings": false})",
                           "small_qwen3"),
                       w, 1e-9);
}

TEST_CASE("other kinds of ops: GPT-2's, and experts") {
  PlanWords w = words_of(DType::f64);
  w.shard = 3;
  check_equal_training(gpt2(), w, 1e-9);
  w.shard = 2;
  check_equal_training(small_mixtral(), w, 1e-9);
}
