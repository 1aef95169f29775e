// What ran is what was predicted, as the instruments saw it; and a program or a kernel that lies is caught.
#include <chrono>
#include <set>
#include <thread>

#include "models/input/error.h"
#include "tests/support/parity_support.h"
#include "tests/support/relative.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph tiny() {
  return small_llama({.layers = 3, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
}

// Of 7 tokens 2 choices of 3 experts, 3 slots each: some are dropped. Renormalised or not, other tensors are kept for
// backward.
ModelGraph few_experts() {
  return model_from_config(
      R"({"model_type": "olmoe", "vocab_size": 37, "hidden_size": 20, "intermediate_size": 14, "num_hidden_layers": 2,
      "num_attention_heads": 5, "num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2, "capacity_factor": 0.6})",
      "few_experts");
}

struct NamedPlan {
  const char* name;
  PlanWords words;
  bool experts = false;
};
std::vector<NamedPlan> plans() {
  return {
      {"block, reshard", {.shard = 2, .reshard = Reshard::yes}},
      {"block, no reshard", {.shard = 3, .reshard = Reshard::no}},
      {"two blocks, accumulation 3", {.shard = 2, .wrap = "block:2", .micro_batches = {1, 2, 1}}},
      {"root", {.shard = 4, .wrap = "root"}},
      {"root, accumulation 3, full checkpointing",
       {.shard = 3, .wrap = "root", .checkpointing = "full", .micro_batches = {1, 1, 1}}},
      {"block, full checkpointing, clipping", {.shard = 2, .checkpointing = "full", .clip_norm = 1.0}},
      {"block, accumulation 3 without sync", {.shard = 3, .micro_batches = {1, 2, 1}, .grad_sync = GradSync::last}},
      {"prefetch, bf16", {.shard = 2, .compute = DType::bf16, .forward_prefetch = 1, .backward_prefetch = 2}},
      {"2 x 2, mixed",
       {.shard = 2,
        .replicate = 2,
        .micro_batches = {1, 1},
        .compute = DType::bf16,
        .grad_sync = GradSync::reduce_scatter_only}},
      {"ddp", {.replicate = 2, .micro_batches = {1, 2}, .dialect = Dialect::ddp}},
      {"one rank", {.wrap = "titan"}},
      {"experts", {.shard = 3, .micro_batches = {1, 2}, .clip_norm = 1.0}, true},
      {"experts, full checkpointing, bf16", {.shard = 2, .checkpointing = "full", .compute = DType::bf16}, true},
      {"experts, fp64, 2 x 2",
       {.shard = 2, .replicate = 2, .compute = DType::f64, .reduce = DType::f64, .master = DType::f64},
       true},
  };
}

std::string failure(const ModelGraph& model, const ShardingPlan& plan, const RunOptions& options) {
  try {
    static_cast<void>(execute(model, plan, options));
  } catch (const MachineError& e) {
    return e.what();
  } catch (const InternalError& e) {
    return e.what();
  }
  return "";
}

// Removes the free of some buffer, in the steady step, that `wanted` accepts.
template <class Wanted>
void remove_free(Program& p, Wanted wanted) {
  Step& s = p.steady_step;
  for (Operation& op : s.ops)
    for (std::uint32_t i = 0; i < op.frees.count; ++i)
      if (wanted(p.buffers[static_cast<std::size_t>(s.frees[op.frees.begin + i])])) {
        std::swap(s.frees[op.frees.begin + i], s.frees[op.frees.begin + op.frees.count - 1]);
        --op.frees.count;
        return;
      }
  FAIL("no such free");
}

}  // namespace

TEST_CASE("executed order, memory and wire bytes equal the prediction on every rank of every plan") {
  std::set<std::string> different;
  for (const NamedPlan& named : plans()) {
    CAPTURE(named.name);
    const ModelGraph model = named.experts ? few_experts() : tiny();
    const ShardingPlan plan = make_plan(model, named.words);
    const RunResult result = execute(model, plan, five_steps(false));
    const Measurement& m = result.measurement;
    check_as_predicted(model, plan, m);
    CHECK(m.losses.size() == 5);
    CHECK(m.step_seconds.size() == 4);
    CHECK(m.median_step_seconds > 0);
    for (const RankMeasurement& r : m.ranks) {
      CAPTURE(r.rank);
      const Program program = lower(model, plan, native_implementation(), r.rank);
      REQUIRE(r.timeline.spans.size() == program.steady_step.ops.size());
      double latest = 0;
      for (const Span& s : r.timeline.spans) {
        CHECK(s.start <= s.end);
        latest = std::max(latest, s.end);
      }
      CHECK(latest == relative(r.timeline.duration));
      different.insert(std::to_string(r.peak_allocated_bytes) + "/" + std::to_string(r.order.size()));
    }
    CHECK(m.provenance.plan_digest == plan.digest());
    CHECK(m.provenance.model_digest == model.digest());
  }
  CHECK(different.size() >= plans().size());  // the plans are not all one
}

TEST_CASE("a free that is removed") {
  const ModelGraph model = tiny();
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  for (const BufferKind kind : {BufferKind::gather, BufferKind::activation, BufferKind::reduce_input,
                                BufferKind::unsharded_parameter, BufferKind::batch}) {
    CAPTURE(name(kind));
    RunOptions o = five_steps(false);
    o.mutate = [kind](Program& p, std::int64_t rank) {
      if (rank == 1) remove_free(p, [kind](const Buffer& b) { return b.kind == kind; });
    };
    CHECK(failure(model, plan, o) != "");
  }
}

TEST_CASE("a size that is changed: smaller or larger, every kind of buffer") {
  const ModelGraph model = tiny();
  const ShardingPlan plan = make_plan(
      model,
      {.shard = 2, .micro_batches = {1, 1}, .compute = DType::bf16, .clip_norm = 1.0, .grad_sync = GradSync::last});
  const Program reference = lower(model, plan, native_implementation(), 1);
  std::set<BufferKind> kinds;
  for (const Buffer& b : reference.buffers)
    if (b.bytes > 0) kinds.insert(b.kind);
  CHECK(kinds.size() >= 12);
  for (const BufferKind kind : kinds)
    for (const std::int64_t change : {-8, 64}) {
      CAPTURE(name(kind));
      CAPTURE(change);
      RunOptions o = five_steps(false);
      o.steps = 1;
      o.mutate = [&](Program& p, std::int64_t rank) {
        if (rank != 1) return;
        std::vector<char> used(p.buffers.size(), 0);
        for (const std::int32_t b : p.steady_step.allocs) used[static_cast<std::size_t>(b)] = 1;
        for (const std::int32_t b : p.first_step.allocs) used[static_cast<std::size_t>(b)] = 1;
        for (const std::int32_t b : p.init.allocs) used[static_cast<std::size_t>(b)] = 1;
        for (std::size_t b = 0; b < p.buffers.size(); ++b)
          if (used[b] != 0 && p.buffers[b].kind == kind && p.buffers[b].bytes > 8) {
            p.buffers[b].bytes += change;
            return;
          }
        p.buffers[0].bytes += change;  // only scalars are of 8 bytes: spoil a shard instead
      };
      std::string error;
      bool differs = false;
      try {
        const RankMeasurement r = execute(model, plan, o).measurement.ranks[1];
        const ProgramMemory memory = replay_memory(reference);
        differs = !(r.init == memory.init && r.first_step == memory.first_step && r.steady_step == memory.steady_step);
      } catch (const MachineError& e) {
        error = e.what();
      }
      CHECK((differs || error.find("rank 1") != std::string::npos));
      // The last rows of an unsharded parameter are padding, which no kernel touches: only the allocator sees that it
      // shrank.
      if (change < 0 && kind != BufferKind::unsharded_parameter)
        CHECK_MESSAGE(error.find("operation") != std::string::npos, error);
    }
}

TEST_CASE("two operations that are swapped") {
  // Neighbours on one stream that need not wait for each other: the run is right, its order is not, and the instruments
  // tell.
  const ModelGraph model = tiny();
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  RunOptions o = five_steps(false);
  o.mutate = [&](Program& p, std::int64_t rank) {
    if (rank != 0) return;
    for (std::size_t i = 0; i + 1 < p.steady_step.ops.size(); ++i) {
      Operation &a = p.steady_step.ops[i], &b = p.steady_step.ops[i + 1];
      const auto projection = [&](const Operation& op) {
        return op.action == Action::forward && model.ops[static_cast<std::size_t>(op.graph_op)].kind == OpKind::linear;
      };
      if (projection(a) && projection(b) && a.waits.count + b.waits.count + b.frees.count + a.frees.count == 0) {
        std::swap(a, b);
        return;
      }
    }
    FAIL("no two projections");
  };
  const Measurement m = execute(model, plan, o).measurement;
  const Program program = lower(model, plan, native_implementation(), 0);
  const std::vector<OrderedOperation> predicted = order_of(program.steady_step, plan, model);
  CHECK(m.ranks[0].order != predicted);
  CHECK(std::multiset<OrderedOperation>(m.ranks[0].order.begin(), m.ranks[0].order.end()) ==
        std::multiset<OrderedOperation>(predicted.begin(), predicted.end()));
  CHECK(m.ranks[1].order == predicted);
}

TEST_CASE("collectives in another order on one rank") {
  const ModelGraph model = tiny();
  RunOptions o = five_steps(false);
  o.mutate = [](Program& p, std::int64_t rank) {
    if (rank != 1) return;
    std::vector<Operation*> gathers;
    for (Operation& op : p.steady_step.ops)
      if (op.action == Action::all_gather) gathers.push_back(&op);
    REQUIRE(gathers.size() > 2);
    std::swap(gathers[0]->args, gathers[1]->args);
    std::swap(gathers[0]->unit, gathers[1]->unit);
  };
  CHECK(failure(model, make_plan(model, {.shard = 2}), o) != "");
}

TEST_CASE("a wait that is removed, and a gather buffer freed before its reader: the race proof refuses to run") {
  const ModelGraph model = tiny();
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  RunOptions o = five_steps(false);
  o.mutate = [](Program& p, std::int64_t) {
    for (Operation& op : p.steady_step.ops)
      if (op.action == Action::gather_copy_out && op.waits.count > 0) {
        op.waits.count = 0;
        return;
      }
    FAIL("no copy-out that waits");
  };
  CHECK(failure(model, plan, o).find("it has a race") != std::string::npos);
}

TEST_CASE("a kernel that allocates scratch nobody declared") {
  const ModelGraph model = tiny();
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  RunOptions o = five_steps(false);
  o.in_kernel = [&](const Operation& op, std::int64_t rank) {
    if (rank != 1 || op.action != Action::forward ||
        model.ops[static_cast<std::size_t>(op.graph_op)].kind != OpKind::swiglu)
      return;
    const std::vector<char> scratch(1000);
    if (scratch[0] != 0) std::abort();
  };
  const std::string error = failure(model, plan, o);
  CHECK(error.find("bytes of heap that no buffer declares") != std::string::npos);
  CHECK(error.find("forward swiglu model.layers.0.mlp") != std::string::npos);
}

TEST_CASE("a kernel that throws, and one that stands still, are named in words of the plan") {
  const ModelGraph model = tiny();
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  RunOptions o = five_steps(false);
  o.in_kernel = [](const Operation& op, std::int64_t rank) {
    if (rank == 1 && op.action == Action::backward && op.graph_op == 5) throw std::runtime_error("bit flip");
  };
  const std::string error = failure(model, plan, o);
  CHECK(error.find("rank 1") != std::string::npos);
  CHECK(error.find("bit flip") != std::string::npos);
  CHECK(error.find("[step 1, operation ") != std::string::npos);
  CHECK(error.find("backward") != std::string::npos);
  o.in_kernel = [](const Operation& op, std::int64_t rank) {
    if (rank == 0 && op.action == Action::scatter_copy_in) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  };
  const auto backend = make_host_backend({1, 2}, {0.4});
  std::string stuck;
  try {
    static_cast<void>(run(model, plan, load_cluster("host", 2), *backend, o));
  } catch (const MachineError& e) {
    stuck = e.what();
  }
  CHECK(stuck.find("no rank has made progress") != std::string::npos);
  CHECK(stuck.find("rank 0 is inside operation") != std::string::npos);
  CHECK(stuck.find("scatter_copy_in") != std::string::npos);
}
