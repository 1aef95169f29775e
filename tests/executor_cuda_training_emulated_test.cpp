// Whole training runs on ranks that are threads, every kernel of the Programs of native-cuda emulated on the processor, against the same runs on
// the host: lowering, arena, checks of extents and kernels fit together. (Matrix products and attention are the host's.)
#include "emulated_kernels.h"

#include <doctest/doctest.h>

#include "executor/kernel_call.h"
#include "executor_run_support.h"
#include "small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const EmulatedKernels& emulated() {
  static const EmulatedKernels kernels;
  return kernels;
}

// The host's, but for kernels.
class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(Device& inner) : d_(inner) {}
  [[nodiscard]] std::int64_t rank() const override { return d_.rank(); }
  void reserve_arena(std::int64_t bytes, Memory m) override { d_.reserve_arena(bytes, m); }
  BufferView allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory m) override { return d_.allocate(pool, offset, bytes, m); }
  void release(Stream pool, BufferView v) override { d_.release(pool, v); }
  [[nodiscard]] std::int64_t allocated_bytes() const override { return d_.allocated_bytes(); }
  void begin_step() override { d_.begin_step(); }
  void launch(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelBody body) override { d_.launch(op, s, waits, std::move(body)); }
  void launch_kernel(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelCall call) override {
    d_.launch(op, s, waits, make_kernel(call, emulated()));
  }
  void all_gather(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, const Slots& slots, DType t) override {
    d_.all_gather(op, s, c, waits, b, slots, t);
  }
  void reduce_scatter(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView in, BufferView out, const Slots& slots,
                      DType t, Reduction r) override {
    d_.reduce_scatter(op, s, c, waits, in, out, slots, t, r);
  }
  void all_reduce(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n, DType t,
                  Reduction r) override {
    d_.all_reduce(op, s, c, waits, b, n, t, r);
  }
  void broadcast(std::int32_t op, Stream s, Comm c, std::span<const std::int32_t> waits, BufferView b, std::int64_t n, DType t,
                 std::int64_t root) override {
    d_.broadcast(op, s, c, waits, b, n, t, root);
  }
  void wait_host(std::int32_t op) override { d_.wait_host(op); }
  void synchronize() override { d_.synchronize(); }
  [[nodiscard]] std::vector<OperationRecord> records() const override {
    std::vector<OperationRecord> all = d_.records();
    for (OperationRecord& r : all) r.heap_bytes = 0;  // the emulator's own
    return all;
  }
  [[nodiscard]] std::span<const std::byte> bytes_of(BufferView v, std::vector<std::byte>& copy) const override { return d_.bytes_of(v, copy); }
  void write(BufferView to, std::span<const std::byte> from) override { d_.write(to, from); }
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override { return d_.exchange(mine); }

 private:
  Device& d_;
};

class EmulatedBackend final : public Backend {
 public:
  explicit EmulatedBackend(MeshShape mesh) : inner_(make_host_backend(mesh, {.watchdog_seconds = 300})) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::string environment() const override { return inner_->environment(); }
  [[nodiscard]] const Implementation& implementation() const override { return native_cuda_implementation(); }
  [[nodiscard]] std::int64_t ranks() const override { return inner_->ranks(); }
  [[nodiscard]] MeshShape mesh() const override { return inner_->mesh(); }
  [[nodiscard]] std::vector<std::int64_t> local_ranks() const override { return inner_->local_ranks(); }
  void run(const std::function<void(Device&)>& body, std::span<const std::int64_t> reshard) override {
    inner_->run([&body](Device& device) {
      EmulatedDevice d(device);
      body(d);
    }, reshard);
  }

 private:
  std::unique_ptr<Backend> inner_;
};

ModelGraph gpt2() {
  return model_from_config(R"({"model_type": "gpt2", "vocab_size": 41, "n_positions": 16, "n_embd": 20, "n_layer": 1, "n_head": 4,
                            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5})",
                           "gpt2");
}

RunOptions two_steps() {
  RunOptions options;
  options.warmup_steps = 1, options.steps = 1;
  options.keep_parameters = true;
  return options;
}

// fp64: sums in other orders, over two steps of Adam whose update of an element near zero gradient is steep: 1e-9 of a tensor's norm.
void check_equal_training(const ModelGraph& model, const PlanWords& words, double allowed) {
  const ShardingPlan plan = make_plan(model, words);
  const MeshShape mesh{words.replicate, words.shard};
  const ClusterSpec cluster = load_cluster("host", words.replicate * words.shard);
  EmulatedBackend backend(mesh);
  const RunResult got = run(model, plan, cluster, backend, two_steps());
  const auto host = make_host_backend(mesh);
  const RunResult expected = run(model, plan, cluster, *host, two_steps());
  REQUIRE(got.parameters.size() == expected.parameters.size());
  REQUIRE(got.first_gradients.size() == expected.first_gradients.size());
  for (const auto& [a, b] : {std::pair{&got.parameters, &expected.parameters}, {&got.first_gradients, &expected.first_gradients}})
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

TEST_CASE("other kinds of ops: GPT-2's, and experts") {
  PlanWords w = words_of(DType::f64);
  w.shard = 3;
  check_equal_training(gpt2(), w, 1e-9);
  w.shard = 2;
  check_equal_training(load_model("tiny-mixtral"), w, 1e-9);
}
