// Training by the whole cuda backend on virtual ranks, with its own dispatch (stream_kernels.cpp), its own matmuls
// and kernels, on a CUDA runtime (runtime.cpp) and a cuBLASLt of ours: against training on the host, and what was
// predicted of it. Nothing of it says how fast a GPU is.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <climits>
#include <limits>
#include <set>

#include "executor/cuda_backend.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/tensor/local_model.h"
#include "simulator/engine/memory.h"
#include "tests/executor/cuda_on_host/dispatch_support.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph gpt2() {
  return model_from_config(
      R"({"model_type": "gpt2", "vocab_size": 41, "n_positions": 16, "n_embd": 20, "n_layer": 1, "n_head": 4,
                            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5})",
      "gpt2");
}

struct TrainingCase {
  std::string name;
  ModelGraph model;
  ShardingPlan plan;
};

PlanWords in_double(PlanWords w) {
  w.compute = w.reduce = w.master = DType::f64;
  return w;
}

// Together they have every Action that is a kernel and every kind of op.
std::vector<TrainingCase> jobs() {
  std::vector<TrainingCase> all;
  const auto add = [&](const char* name, const ModelGraph& model, const PlanWords& words) -> ShardingPlan& {
    all.push_back({name, model, make_plan(model, words)});
    return all.back().plan;
  };
  const ModelGraph llama = small_llama({.layers = 2}), short_llama = small_llama({.layers = 1});
  add("two shards, one of a second dimension, recomputed, clipped", llama,
      in_double(
          {.shard = 2, .checkpointing = "full", .reshard = Reshard::yes, .micro_batches = {1, 2}, .clip_norm = 0.5}))
      .shard_dims = {{"model.layers.0.mlp.down_proj.weight", 1}};
  ShardingPlan& to_host =
      add("inputs of one of two recomputed blocks in host memory", llama,
          in_double({.shard = 2, .checkpointing = "full", .reshard = Reshard::yes, .micro_batches = {2, 1}}));
  to_host.offload_activations = {to_host.checkpointed[0]};
  add("tied, gradients whole until the last micro-batch, sgd", small_llama({.layers = 1, .tied = true}),
      {.shard = 2,
       .micro_batches = {1, 1},
       .reduce = DType::f64,
       .master = DType::f64,
       .grad_sync = GradSync::last,
       .optimizer = OptimizerKind::sgd});
  add("ddp, the largest gradient clipped", short_llama,
      in_double({.replicate = 2, .clip_norm = 0.01, .dialect = Dialect::ddp}))
      .clip_norm_type = std::numeric_limits<double>::infinity();
  add("parts over two of four ranks", llama, in_double({.shard = 4, .reshard = Reshard{2}}));
  add("in host memory", short_llama, in_double({.shard = 2, .micro_batches = {1, 1}, .clip_norm = 0.05})).offload =
      true;
  add("optimizer states in host memory", short_llama, in_double({.shard = 2})).offload_optimizer = true;
  add("bf16, sums divided afterwards, tiles of attention",
      small_llama({.layers = 1, .vocab = 37, .hidden = 128, .inner = 30, .heads = 2, .kv_heads = 1}),
      {.shard = 2, .replicate = 2, .compute = DType::bf16})
      .force_sum_reduction = true;
  add("over tensor ranks, clipped", small_llama({.layers = 1}),
      in_double({.shard = 2, .micro_batches = {1, 2}, .seq_len = 8, .clip_norm = 0.5, .tensor = 2}));
  add("GPT-2", gpt2(), in_double({.shard = 3}));
  add("experts", small_mixtral(), in_double({.shard = 2}));
  add("adapters", add_lora(short_llama, {.rank = 3, .alpha = 5}, "test"), in_double({.shard = 2}));
  return all;
}

RunOptions two_steps() {
  RunOptions o;
  o.warmup_steps = o.steps = 1;
  o.keep_parameters = true;
  return o;
}

RunResult on_cuda(const TrainingCase& job, const RunOptions& options) {
  (void)libraries();
  const auto backend = make_cuda_backend({job.plan.replicate(), job.plan.shard(), job.plan.tensor()},
                                         {.run = {.watchdog_seconds = 300}, .virtual_ranks = true});
  CHECK(backend->environment().find(FSDP_LIBRARIES_ON_HOST) != std::string::npos);
  return run(job.model, job.plan, load_cluster("host", job.plan.ranks()), *backend, options);
}

// Of a tensor's norm. fp64: sums in other orders, over two steps of Adam whose update of an element near zero gradient
// is steep. fp32, bf16: some hundred roundings by 2^-24, 2^-9 on the way through the model, of random sign.
double allowed(const ShardingPlan& plan) {
  return plan.param_dtype == DType::f64 ? 1e-9 : plan.param_dtype == DType::f32 ? 1e-6 : 0.03;
}

void check_equal(const TrainingCase& job, const RunResult& got, const RunResult& expected) {
  CHECK(distance(got.measurement.losses, expected.measurement.losses) <= allowed(job.plan));
  REQUIRE(got.parameters.size() == expected.parameters.size());
  REQUIRE(got.first_gradients.size() == expected.first_gradients.size());
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    CAPTURE(expected.parameters[i].name);
    CHECK(distance(got.first_gradients[i].values, expected.first_gradients[i].values) <= allowed(job.plan));
    CHECK(distance(got.parameters[i].values, expected.parameters[i].values) <= allowed(job.plan));
  }
}

}  // namespace

TEST_CASE("the jobs below have every Action that is a kernel, and every kind of op forward and backward") {
  std::set<Action> actions;
  std::set<std::pair<OpKind, bool>> kinds;
  for (const TrainingCase& job : jobs()) {
    const ModelGraph model = local_model(job.model, job.plan);
    const Program program = lower(model, job.plan, native_cuda_implementation());
    for (const Step* step : {&program.init, &program.first_step, &program.steady_step})
      for (const Operation& op : step->ops) {
        actions.insert(op.action);
        if (op.action == Action::forward || op.action == Action::backward)
          kinds.insert({model.ops.at(static_cast<std::size_t>(op.graph_op)).kind, op.action == Action::backward});
      }
  }
  const std::set<Action> no_kernels{
      Action::all_gather, Action::reduce_scatter, Action::all_reduce, Action::clip_reduce, Action::reduce_loss,
      Action::zero_gradients, Action::read_loss, Action::host_wait, Action::cast_gradient,
      // of weights gathered in 8 bits, which no backend executes
      Action::largest_value, Action::reduce_largest,
      // of another training loop than ours
      Action::update_metrics,
      // of asynchronous tensor parallelism, which none executes either
      Action::tensor_barrier, Action::share_part, Action::pull_part, Action::exchange_part, Action::sum_parts};
  for (int a = 0; a < kActions; ++a) {
    const auto action = static_cast<Action>(a);
    CAPTURE(name(action));
    CHECK((actions.count(action) == 1 || no_kernels.count(action) == 1));
  }
  for (int k = 0; k < kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    CAPTURE(name(kind));
    if (native_cuda_implementation().rules[static_cast<std::size_t>(k)] == nullptr) continue;  // no kernel of ours
    if (kind == OpKind::redistribute) continue;                                                // collectives, copies
    CHECK((kinds.count({kind, false}) == 1 || kind == OpKind::opaque));
    CHECK((kinds.count({kind, true}) == 1 || kind == OpKind::opaque ||
           kind == OpKind::add));  // the gradients of a sum are aliases
  }
}

TEST_CASE(
    "training by the whole cuda backend on virtual ranks is training on the host, in the order and the memory that "
    "were predicted") {
  for (const TrainingCase& job : jobs()) {
    CAPTURE(job.name);
    const RunResult got = on_cuda(job, two_steps()), expected = execute(job.model, job.plan, two_steps());
    check_equal(job, got, expected);
    for (std::size_t r = 0; r < got.measurement.ranks.size(); ++r) {
      const RankMeasurement& rank = got.measurement.ranks[r];
      CAPTURE(rank.rank);
      CHECK(rank.order == expected.measurement.ranks[r].order);
      const ProgramMemory memory = replay_memory(lower(local_model(job.model, job.plan), job.plan,
                                                       native_cuda_implementation(), static_cast<std::int64_t>(r)));
      CHECK(rank.init == memory.init);
      CHECK(rank.first_step == memory.first_step);
      CHECK(rank.steady_step == memory.steady_step);
      CHECK(rank.peak_allocated_bytes == memory.peak);
      CHECK(rank.undeclared_bytes == 0);
    }
  }
}

TEST_CASE("batches of a reader, more than there is pinned memory for at once, and a state that is read") {
  const ModelGraph model = small_llama({.layers = 1});
  const TrainingCase job{"read", model, make_plan(model, in_double({.shard = 2, .micro_batches = {1, 2, 1, 1, 3, 1}}))};
  RunOptions options = two_steps();
  options.training.steps_done = 3;
  options.training.tokens = [vocab = model.vocab](std::int64_t sequence, std::int64_t length, std::int64_t* ids,
                                                  std::int64_t* targets) {
    for (std::int64_t i = 0; i < length; ++i)
      ids[i] = (sequence * 7 + i * 3) % vocab, targets[i] = (sequence * 7 + i * 3 + 3) % vocab;
  };
  options.training.state = [](const Parameter& p, StatePart part, const Slab& slab, DType, std::byte* to) {
    std::int64_t row = 1;  // elements of the slab's rows
    for (const std::int64_t n : p.shape) row *= n;
    row = row / p.shape.at(static_cast<std::size_t>(slab.dim)) * slab.rows;
    auto* values = reinterpret_cast<double*>(to);
    for (std::int64_t i = 0; i < row; ++i)
      values[i] = part == StatePart::parameter     ? 0.02 * static_cast<double>((slab.begin + i) % 11 - 5)
                  : part == StatePart::first_state ? 1e-3
                                                   : 1e-5;
  };
  check_equal(job, on_cuda(job, options), execute(job.model, job.plan, options));
  options.training.tokens = [vocab = model.vocab](std::int64_t sequence, std::int64_t length, std::int64_t* ids,
                                                  std::int64_t* targets) {
    for (std::int64_t i = 0; i < length; ++i) ids[i] = targets[i] = sequence == 60 && i == 5 ? vocab : 0;
  };
  CHECK_THROWS_WITH_AS((void)on_cuda(job, options),
                       doctest::Contains("token 40 of sequence 60 is outside of the vocabulary of 40"), MachineError);
  options.training.tokens = [](std::int64_t sequence, std::int64_t length, std::int64_t* ids, std::int64_t* targets) {
    for (std::int64_t i = 0; i < length; ++i) ids[i] = 0, targets[i] = sequence == 60 && i == 5 ? -1 : 0;
  };
  CHECK_THROWS_WITH_AS((void)on_cuda(job, options),
                       doctest::Contains("token -1 of sequence 60 is outside of the vocabulary of 40"), MachineError);
}

TEST_CASE(
    "multiprocessors that NCCL may take are left out of matrix products; nothing is said where there is no number") {
  const ModelGraph model = small_llama({.layers = 1});
  const ShardingPlan plan = make_plan(model, in_double({.shard = 2}));
  (void)libraries();
  const auto function = [](const char* library, const char* name) {
    void* handle = ::dlopen((std::string(FSDP_LIBRARIES_ON_HOST "/lib/") + library).c_str(), RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(handle != nullptr);
    return ::dlsym(handle, name);
  };
  for (const std::optional<int> ctas : {std::optional<int>(3), std::optional<int>()}) {  // of this runtime's 4
    const auto backend = make_cuda_backend({1, 2}, {.run = {.watchdog_seconds = 300}, .nccl_ctas = ctas});
    (void)run(model, plan, load_cluster("host", 2), *backend, two_steps());
    const auto ctas_of = reinterpret_cast<int (*)(bool)>(function("libnccl.so.2", "cuda_on_host_nccl_ctas"));
    const auto target = reinterpret_cast<int (*)()>(function(FSDP_CUBLASLT_NAME, "cublaslt_on_host_multiprocessors"));
    for (const bool split : {false, true}) CHECK(ctas_of(split) == ctas.value_or(INT_MIN));  // NCCL_CONFIG_UNDEF_INT
    CHECK(target() == (ctas ? 1 : 0));
  }
  CHECK_THROWS_WITH_AS((void)make_cuda_backend({1, 2}, {.nccl_ctas = 4}), doctest::Contains("leave nothing of GPU 0"),
                       InputError);
  CHECK_THROWS_WITH_AS((void)make_cuda_backend({1, 2}, {.nccl_ctas = 0}), doctest::Contains("must be at least 1"),
                       InputError);
}
