// fsdp2's less common choices: counts of test_gradient_accumulation (PyTorch, docs/fsdp-order.md A1.12), integer
// reshard, offload, gradient scaling, other shard dimensions, PyTorch releases; and properties of generated plans over
// all of them. What PyTorch's own recording says is in order_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/search.h"
#include "simulator/engine/engine.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "tests/support/any_plan.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

const Implementation& native() { return find_implementation("native", false, "test"); }

std::map<Action, int> counts(const Program& program) {
  std::map<Action, int> n;
  for (const Operation& op : program.steady_step.ops) ++n[op.action];
  return n;
}

void set_all(ShardingPlan& plan, Reshard r) {
  for (Unit& u : plan.units) u.reshard_after_forward = r;
}

std::vector<const Operation*> of(const Program& program, Action action) {
  std::vector<const Operation*> found;
  for (const Operation& op : program.steady_step.ops)
    if (op.action == action) found.push_back(&op);
  return found;
}

// Bytes of one kind that are allocated in the steady step.
std::int64_t bytes_of(const Program& program, BufferKind kind) {
  std::int64_t sum = 0;
  for (const Operation& op : program.steady_step.ops)
    for (const std::int32_t b : program.steady_step.allocs_of(op)) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (buffer.kind == kind) sum += buffer.bytes;
    }
  return sum;
}

}  // namespace

TEST_CASE("gradient accumulation: the counts that PyTorch's test asserts") {
  const int B = 3, M = 3;
  const ModelGraph model = toy::model({.blocks = B});
  for (const std::int64_t replicate : {1, 2}) {
    for (const Reshard reshard : {Reshard::yes, Reshard{2}, Reshard::no}) {
      for (const int skipping : {0, 1, 2, 3, 4}) {  // 0: all units, 1: the root alone, 2..4: that many blocks less one
        for (const int keep : {0, 1, 2}) {          // after backward: 0 nothing, 1 everything, 2 the root
          CAPTURE(replicate);
          CAPTURE(name(reshard));
          CAPTURE(skipping);
          CAPTURE(keep);
          ShardingPlan plan = toy::plan(model, 4, replicate);
          set_all(plan, reshard);
          plan.micro_batches.assign(M, 1);
          for (std::size_t u = 0; u < plan.units.size(); ++u) {
            const bool root = u + 1 == plan.units.size();
            if (skipping == 0 || (skipping == 1 && root) ||
                (skipping > 1 && !root && static_cast<int>(u) < skipping - 1))
              plan.units[u].grad_sync = GradSync::last;
            if (keep == 1 || (keep == 2 && root)) plan.units[u].reshard_after_backward = false;
          }
          check(plan, model);
          auto n = counts(lower(model, plan, native()));
          int reductions = B + 1;
          if (skipping == 1) reductions += B * (M - 1);
          if (skipping > 1) reductions += (B - (skipping - 1) + 1) * (M - 1);
          CHECK(n[Action::reduce_scatter] == reductions);
          CHECK(n[Action::all_reduce] == (replicate > 1 ? reductions : 0));
          int gathers = (B + 1) * M;
          if (reshard != Reshard::no) {
            // What backward leaves whole, the next forward need not gather.
            gathers = 2 * (B + 1) * M - (keep == 0 ? 0 : (keep == 1 ? B + 1 : 1) * (M - 1));
          } else if (keep == 1) {
            gathers = B + 1;
          } else if (keep == 2) {
            gathers = B + 1 + B * (M - 1);
          }
          CHECK(n[Action::all_gather] == gathers);
        }
      }
    }
  }
  ShardingPlan partial = toy::plan(model, 2, 2);
  partial.micro_batches.assign(M, 1);
  partial.grad_sync = GradSync::reduce_scatter_only;
  auto n = counts(lower(model, partial, native()));
  CHECK(n[Action::reduce_scatter] == (B + 1) * M);
  CHECK(n[Action::all_reduce] == B + 1);
}

TEST_CASE(
    "integer reshard: every rank of a small group keeps its part in the compute dtype; backward gathers over that "
    "group") {
  const ModelGraph model = toy::model({.blocks = 2, .vocab = 17, .width = 8, .hidden = 24});
  ShardingPlan plan = toy::plan(model, 8);
  set_all(plan, Reshard{4});
  plan.param_dtype = DType::bf16;
  const Program program = lower(model, plan, native(), 6);  // rank 6: the third of its group of four
  // Block: 24 x 8 on 8 ranks: 3 rows; 8 x 24: one row. Root: twice 17 x 8: 3 rows (24 with padding). Parts: W * S / n
  // elements of 2 B.
  const std::int64_t block = 8 * (3 * 8 + 1 * 24), root = 8 * 2 * 3 * 8;
  CHECK(bytes_of(program, BufferKind::kept_shard) == 2 * (2 * block + root) / 4);
  int small = 0;
  for (const Operation* op : of(program, Action::all_gather)) small += op->comm == Communicator::reshard ? 1 : 0;
  CHECK(small == 3);
  CHECK(of(program, Action::all_gather).size() == 6);
  for (const Operation* op : of(program, Action::keep_shard)) {
    const auto args = program.steady_step.args_of(*op);
    CHECK(args[0].offset == 2 * args[0].bytes);
    CHECK(args[0].bytes == program.buffers[static_cast<std::size_t>(args[1].buffer)].bytes);
  }
  CHECK(find_races(program).empty());
}

TEST_CASE("integer reshard: parts that no backward gathers stay until the next forward has kept others") {
  const ModelGraph model = toy::model({.blocks = 2, .vocab = 17, .width = 8, .hidden = 24});
  ShardingPlan plan = toy::plan(model, 8);
  plan.units.insert(plan.units.begin(), Unit{{"embed"}});
  set_all(plan, Reshard{4});
  plan.param_dtype = DType::bf16;
  plan.micro_batches = {1, 1};
  plan.units.front().unshard_in_backward = false;
  const Program program = lower(model, plan, native());
  const std::int64_t part = 2 * 24 * 8 / 4;  // 17 rows padded to 24, a quarter of them, in bf16
  std::int64_t live = 0;
  const auto follow = [&](const Step& step) {
    std::int64_t least = live;
    for (const Operation& op : step.ops) {
      const auto change = [&](int sign) {
        return [&, sign](std::int32_t b) {
          const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
          if (buffer.kind == BufferKind::kept_shard && buffer.unit == 0) live += sign * buffer.bytes;
        };
      };
      memory_events(step, op, change(1), change(-1));
      least = std::min(least, live);
    }
    return least;
  };
  CHECK(follow(program.first_step) == 0);
  CHECK(live == part);
  for (int step = 0; step < 2; ++step) {
    (void)follow(program.steady_step);
    CHECK(live == part);
  }
  CHECK(find_races(program).empty());
}

TEST_CASE("gradient scaling: PyTorch's table") {
  using R = ReduceOp;
  const auto scale = [](std::int64_t w, std::int64_t r, DType t, std::optional<double> f = {}, bool sum = false) {
    return gradient_scale(w, r, t, f, sum);
  };
  CHECK(scale(4, 1, DType::f32) == GradientScale{});
  CHECK(scale(1, 1, DType::f32) == GradientScale{R::sum, R::sum});
  CHECK(scale(4, 2, DType::bf16, 4.0) == GradientScale{R::average, R::sum});
  CHECK(scale(4, 2, DType::bf16, 8.0) == GradientScale{R::scaled_sum, R::sum, 1 / 8.0});
  CHECK(scale(4, 2, DType::f32, {}, true) == GradientScale{R::sum, R::sum, 1, 1, 8});
  CHECK(scale(4, 2, DType::f32, 3.0, true) == GradientScale{R::sum, R::sum, 1, 1, 3});
  // fp16, N ranks: before / after as A1.8 lists them.
  struct Row {
    std::int64_t n;
    double before, after;
  };
  for (const Row row : {Row{2, 2, 1}, Row{4, 2, 2}, Row{6, 4, 1.5}, Row{8, 4, 2}, Row{128, 16, 8}}) {
    CAPTURE(row.n);
    CHECK(scale(row.n, 1, DType::f16) == GradientScale{R::sum, R::sum, 1, row.before, row.after});
    CHECK(scale(row.n / 2, 2, DType::f16) == GradientScale{R::sum, R::sum, 1, row.before, row.after});
  }
}

TEST_CASE("cpu offload: shards over the link for every gather, gradients back, the host waits before it steps") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = toy::plan(model, 2);
  plan.offload = true;
  plan.param_dtype = DType::bf16;
  plan.micro_batches = {1, 1};
  check(plan, model);
  const Program program = lower(model, plan, native());
  auto n = counts(program);
  const int parameters = 6, gathers = n[Action::all_gather];
  CHECK(gathers == 2 * (2 * 2 + 1));
  CHECK(n[Action::shard_to_device] == 2 * (2 * 4 + 2));  // two per gather of each unit
  CHECK(n[Action::gradient_to_host] == 2 * parameters);
  CHECK(n[Action::host_wait] == 3 + parameters);  // the first micro-batch for each unit, the second for each addition
  CHECK(n[Action::add_gradient] == parameters);
  for (const Operation* op : of(program, Action::optimizer)) CHECK(op->host_only);
  CHECK(find_races(program).empty());
  const ProgramMemory memory = replay_memory(program);
  // On the host: shards (padded), gradients, two Adam states, all of fp32; W = 2 and only 11 rows are padded (rank 0
  // has 6 of them). On the device nothing stays.
  const std::int64_t shard = 2 * (60 + 60) / 2 + 2 * 6 * 6;
  CHECK(memory.steady_step.start == 0);
  CHECK(memory.host_peak >= 4 * 4 * shard);
  CHECK(memory.host_peak <= 4 * 4 * shard + 4 * 36);  // and one gradient that has just arrived

  // Without the host's wait its additions read what may still be on the way.
  Program broken = program;
  for (Operation& op : broken.steady_step.ops)
    if (op.action == Action::host_wait) op.waits.count = 0;
  CHECK_FALSE(find_races(broken).empty());
}

TEST_CASE("a parameter sharded on another dimension is reordered after its gather and before its reduce-scatter") {
  const ModelGraph model = toy::model({.blocks = 1});
  ShardingPlan plan = toy::plan(model, 2);
  plan.shard_dims = {{"layers.0.up.weight", 1}};
  check(plan, model);
  const Program program = lower(model, plan, native());
  CHECK(of(program, Action::reorder_shards).size() == 3);  // forward, backward, gradient
  const ShardedParam& up = program.layouts[0].params[0];
  CHECK(up.dim == 1);
  CHECK(up.local_elements(0) == 10 * 3);
  CHECK(up.local_elements(1) == 10 * 3);
  plan.mesh = {{"shard", 4}};
  CHECK(fsdp::testing::refusal([&] { check(plan, model); }).find("4 ranks do not divide") != std::string::npos);
}

// Recorded: random_plans.py, kept plan "parts that the next micro-batch gathers from".
TEST_CASE(
    "parts kept after forward that backward never needs serve the next micro-batch if backward does not reshard") {
  const ModelGraph model =
      freeze(toy::model({.blocks = 2, .tied = false}), std::vector<std::string>{"embed.weight"}, "test");
  ShardingPlan plan = toy::plan(model, 4);
  plan.units.insert(plan.units.begin(), Unit{{"embed"}, {2}});
  plan.micro_batches = {1, 1};
  plan.backward_prefetch = 0;  // backward gathers it for nobody
  const auto gathers = [&] {
    std::vector<Communicator> over;
    check(plan, model);
    const Program program = lower(model, plan, native());
    for (const Operation* op : of(program, Action::all_gather))
      if (op->unit == 0) over.push_back(op->comm);
    CHECK(find_races(program).empty());
    return over;
  };
  CHECK(gathers() == std::vector<Communicator>{Communicator::shard, Communicator::shard});
  plan.units[0].reshard_after_backward = false;
  CHECK(gathers() == std::vector<Communicator>{Communicator::shard, Communicator::reshard});
}

TEST_CASE("a frozen parameter that is ignored has no gradient") {
  const ModelGraph model =
      freeze(toy::model({.blocks = 2, .tied = false}), std::vector<std::string>{"layers.0.up.weight"}, "test");
  ShardingPlan plan = toy::plan(model, 2);
  plan.param_dtype = plan.reduce_dtype = plan.master_dtype;
  plan.ignored = {"layers.0.up.weight"};
  check(plan, model);
  const Program program = lower(model, plan, native());
  CHECK(std::none_of(program.buffers.begin(), program.buffers.end(), [&](const Buffer& b) {
    return b.kind == BufferKind::sharded_gradient && b.param >= 0 &&
           model.parameters[static_cast<std::size_t>(b.param)].name == "layers.0.up.weight";
  }));
}

TEST_CASE("frozen parameters: no backward below the first trained one, smaller reductions, no optimizer for them") {
  ModelGraph model = toy::model({.blocks = 3});
  for (Parameter& p : model.parameters)
    if (p.name == "embed.weight" || p.name.starts_with("layers.0") || p.name == "layers.1.up.weight")
      p.trainable = false;
  ShardingPlan plan = toy::plan(model, 2);
  plan.model_digest = model.digest();
  check(plan, model);
  const Program program = lower(model, plan, native());
  for (const Operation* op : of(program, Action::reduce_scatter)) {
    CHECK(op->unit != 0);
    const Buffer& input = program.buffers[static_cast<std::size_t>(program.steady_step.args_of(*op)[0].buffer)];
    if (op->unit == 1) CHECK(input.bytes == 4 * 60);  // of layers.1 only `down`
  }
  CHECK(of(program, Action::optimizer).size() == 3);
  CHECK(find_races(program).empty());
}

TEST_CASE("by PyTorch release: the root's explicit reshard, one shard alone, gradients that wait") {
  const ModelGraph model = toy::model({.blocks = 2});
  const auto lowered = [&](ShardingPlan plan, const char* version) {
    plan.torch = parse_torch_version(version, "test");
    check(plan, model);
    return lower(model, plan, native());
  };
  ShardingPlan yes = toy::plan(model, 2);
  set_all(yes, Reshard::yes);
  CHECK(of(lowered(yes, "2.7"), Action::all_gather).size() == 5);  // before 2.8 the root stayed whole
  CHECK(of(lowered(yes, "2.8"), Action::all_gather).size() == 6);
  const ShardingPlan alone = toy::plan(model, 1);
  CHECK(of(lowered(alone, "2.8"), Action::all_gather).size() == 5);  // collectives of one rank
  CHECK(of(lowered(alone, "2.9"), Action::all_gather).empty());
  // Two micro-batches, reduced after the last, bf16 gradients kept in fp32: since 2.15 each as it comes (6 parameters,
  // twice), before that a unit's together (3 units, twice).
  ShardingPlan waiting = toy::plan(model, 2);
  waiting.param_dtype = DType::bf16;
  waiting.micro_batches = {1, 1};
  waiting.grad_sync = GradSync::last;
  CHECK(of(lowered(waiting, "2.14"), Action::accumulate_gradient).size() == 6);
  CHECK(of(lowered(waiting, "2.15"), Action::accumulate_gradient).size() == 12);
  CHECK(bytes_of(lowered(waiting, "2.14"), BufferKind::gradient_accumulator) ==
        bytes_of(lowered(waiting, "2.15"), BufferKind::gradient_accumulator));
  // Two units whose inputs need no gradient (root and embedding): before 2.15 the second's post-backward waited for the
  // first's reduction, even where reduce-scatter inputs may wait.
  ShardingPlan late = toy::plan(model, 2);
  late.units.insert(late.units.begin(), {{"embed"}});
  late.reduce_scatter_buffers = 3;
  const auto waits_for_root = [&](const char* version) {
    const Program program = lowered(late, version);
    const Operation& copy = *of(program, Action::scatter_copy_in).back();
    CHECK(copy.unit == 0);
    bool waits = false;
    for (const std::int32_t w : program.steady_step.waits_of(copy)) {
      const Operation& op = program.steady_step.ops[static_cast<std::size_t>(w)];
      waits = waits || (op.action == Action::reduce_scatter && op.unit == 3);
    }
    return waits;
  };
  CHECK(waits_for_root("2.14"));
  CHECK_FALSE(waits_for_root("2.15"));
  // fp32 gradients reduced in bf16: before 2.15 the copy-in makes them whole in fp32 first; since then autograd has
  // narrowed them.
  ShardingPlan narrow = toy::plan(model, 2);
  narrow.reduce_dtype = DType::bf16;
  const auto copies = of(lowered(narrow, "2.14"), Action::scatter_copy_in);
  CHECK(copies.size() == 3);
  CHECK(bytes_of(lowered(narrow, "2.14"), BufferKind::scratch) -
            bytes_of(lowered(narrow, "2.15"), BufferKind::scratch) ==
        4 * (2 * 120 + 2 * 72));
  CHECK(bytes_of(lowered(narrow, "2.15"), BufferKind::gradient_accumulator) == 2 * (2 * 120 + 2 * 66));
}

TEST_CASE("experts in units smaller than a block: before 2.15 refused where their weights are cast") {
  const ModelGraph model = load_model("tiny-mixtral");
  ShardingPlan plan = toy::plan(model, 2);
  plan.param_dtype = DType::bf16;
  plan.torch = {2, 12};
  const auto says = [&] { return fsdp::testing::refusal([&] { check(plan, model); }); };
  CHECK(says().empty());
  plan.units.insert(plan.units.begin(), Unit{{"model.layers.0.mlp.experts"}});
  CHECK(says().find("units[0].modules: how PyTorch 2.12 casts the weights of choices") != std::string::npos);
  plan.param_dtype = DType::f32;
  CHECK(says().empty());
  plan.param_dtype = DType::bf16;
  plan.torch = {};
  CHECK(says().empty());
}

// As recorded of PyTorch 2.15 (tests/torch/random, seed 91000040): the hook before attention's backward runs when the
// gradients of both its results are there, and a list of units to prefetch is gathered each time.
TEST_CASE("gpt-oss's attention returns two tensors: what its unit prefetches is gathered twice") {
  const ModelGraph model = small_gpt_oss(1);
  const std::string attention = "model.layers.0.self_attn";
  ShardingPlan plan = toy::plan(model, 2);
  plan.units = {{{attention + ".q_proj"}}, {{attention + ".v_proj"}}, {{attention + ".o_proj"}}, {{attention}}, {{""}}};
  set_all(plan, Reshard::yes);
  const auto gathers = [&](std::int32_t unit) {
    int n = 0;
    for (const Operation* op : of(lower(model, plan, hf_implementation(false)), Action::all_gather))
      n += op->unit == unit ? 1 : 0;
    return n;
  };
  plan.backward_prefetch = 1;  // follows the order of forward, once
  CHECK(gathers(2) == 2);
  plan.backward_prefetch = 2;  // a list: the units before
  CHECK(gathers(2) == 3);
  CHECK(gathers(1) == 2);  // it is there still
  plan.units[3].modules = {"model.layers.0"};
  CHECK(gathers(2) == 2);
}

TEST_CASE("what a plan cannot ask of fully_shard is refused by name") {
  const ModelGraph model = toy::model({.blocks = 2, .tied = false});
  const auto refused = [&](auto change) {
    ShardingPlan plan = toy::plan(model, 4);
    change(plan);
    return fsdp::testing::refusal([&] { check(plan, model); });
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(refused([](ShardingPlan& p) { p.torch = {2, 5}; }), "PyTorch 2.5 is not known"));
  CHECK(has(refused([](ShardingPlan& p) { p.torch = {2, 16}; }), "PyTorch 2.16 is not known"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.torch = {2, 12};
              p.reduce_scatter_buffers = 2;
            }),
            "came with PyTorch 2.13"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.torch = {2, 12};
              p.separate_reduce_scatter = true;
            }),
            "came with PyTorch 2.13"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.torch = {2, 7};
              p.force_sum_reduction = true;
            }),
            "came with PyTorch 2.8"));
  CHECK(
      has(refused([](ShardingPlan& p) { p.units[0].reshard_after_forward = {3}; }), "units[0].reshard_after_forward"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.checkpointed = {"layers.0"};
              p.checkpoint_policy = CheckpointPolicy::selective_op;
              p.units.insert(p.units.begin(), Unit{{"layers.0.up"}});
            }),
            "checkpoint_policy: 'layers.0' is recomputed selectively and holds the unit of 'layers.0.up'"));
  CHECK(has(refused([](ShardingPlan& p) { p.units[0].grad_sync = GradSync::reduce_scatter_only; }),
            "units[0].grad_sync"));
  CHECK(has(refused([](ShardingPlan& p) { p.units[0].gradient_divide_factor = 0; }), "out of range"));
  CHECK(has(refused([](ShardingPlan& p) { p.units[1].forward_prefetch = {"layers.7"}; }), "units[1].forward_prefetch"));
  CHECK(has(refused([](ShardingPlan& p) { p.units[0].unshard_in_backward = false; }),
            "the backward of its linear needs"));
  CHECK(has(refused([](ShardingPlan& p) { p.shard_dims = {{"nothing", 1}}; }), "no parameter is named 'nothing'"));
  CHECK(has(refused([](ShardingPlan& p) { p.shard_dims = {{"head.weight", 2}}; }), "has no dimension 2"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.mesh = {{"shard", 2}};
              p.shard_dims = {{"head.weight", 1}, {"head.weight", 1}};
            }),
            "listed twice"));
  CHECK(has(refused([](ShardingPlan& p) { p.ignored = {"nothing"}; }), "no module or parameter is named"));
  CHECK(has(refused([](ShardingPlan& p) { p.ignored = {""}; }), "every parameter is ignored"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.ignored = {"head"};
              p.param_dtype = DType::bf16;
            }),
            "nothing casts"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.clip_norm = 1;
              p.ignored = {"head"};
            }),
            "clip_norm: PyTorch cannot take one norm over sharded and ignored parameters"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.mesh = {{"shard", 6}};
              p.shard_dims = {{"layers.0.up.weight", 1}};
              p.units[0].reshard_after_forward = {2};
            }),
            "cannot gather 'layers.0.up.weight'"));
  CHECK(has(refused([](ShardingPlan& p) {
              p.mesh = {{"shard", 1}};
              p.force_sum_reduction = true;
              p.units[0].gradient_divide_factor = 2;
            }),
            "once"));
  const auto ddp = [&](auto change) {
    return refused([&](ShardingPlan& p) {
      p.dialect = Dialect::ddp;
      p.mesh = {{"replicate", 4}};
      change(p);
    });
  };
  CHECK(ddp([](ShardingPlan&) {}).empty());
  CHECK(has(ddp([](ShardingPlan& p) { p.offload = true; }), "offload"));
  CHECK(has(ddp([](ShardingPlan& p) { p.units[0].unshard_in_backward = false; }), "unshard_in_backward"));
  CHECK(has(ddp([](ShardingPlan& p) { p.units[0].reshard_after_forward = {2}; }), "cannot reshard"));
  CHECK(has(ddp([](ShardingPlan& p) { p.torch = {2, 11}; }), "newest PyTorch only"));
}

namespace {

// Reductions of the steady step that the plan asks for: one per unit that trains something and micro-batch that it does
// not skip.
int expected_reductions(const ShardingPlan& plan, const Program& program) {
  int n = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (!program.layouts[u].trained()) continue;
    const GradSync sync = plan.units[u].grad_sync.value_or(plan.grad_sync);
    n += sync == GradSync::last ? 1 : static_cast<int>(plan.micro_batches.size());
  }
  return n;
}

}  // namespace

TEST_CASE(
    "properties over every choice: race-free in an arena, closed memory, nothing gathered stays, counts, shards "
    "reassemble") {
  const unsigned seed = 20261121;
  std::mt19937 random(seed);
  CAPTURE(seed);
  const ClusterSpec cluster = load_cluster("dgx-h100", 8);
  const Costs costs = default_costs(cluster);
  for (int trial = 0; trial < 600; ++trial) {
    CAPTURE(trial);
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    toy::Shape shape{
        .blocks = 1 + pick(5), .vocab = 5 + pick(9), .width = 3 + pick(9), .hidden = 4 + pick(9), .tied = pick(3) == 0};
    const bool repeats = shape.blocks > 1 && pick(5) == 0;  // a block runs twice
    if (repeats) {
      for (int b = 0; b < shape.blocks; ++b) shape.order.push_back(b);
      shape.order.push_back(pick(shape.blocks - 1));
    }
    ModelGraph model = toy::model(shape);
    const ShardingPlan plan = testing::any_plan(model, repeats, random);
    CAPTURE(to_json_text(plan));
    check(plan, model);
    const Implementation& impl = pick(2) ? native() : find_implementation("torchtitan", false, "test");
    Program program = lower(model, plan, impl, pick(static_cast<int>(plan.ranks())));
    const ProgramMemory memory = replay_memory(program);
    assign_arena(program);
    CHECK(program.arena_bytes >= memory.peak);
    const std::int64_t first_rank = program.rank == 0 ? memory.peak : replay_memory(lower(model, plan, impl, 0)).peak;
    CHECK(memory_lower_bound(model, plan, impl).count() <= first_rank);
    if (trial % 4 == 0) {  // the host and the streams wait for nothing that never happens
      const Demands demands = demands_of(program.steady_step, program, {model, plan, impl, cluster, costs});
      CHECK(simulate(program.steady_step, demands).duration > 0);
    }
    const auto races = find_races(program);
    if (!races.empty()) {
      const Step& step = races[0].step == 0   ? program.init
                         : races[0].step == 1 ? program.first_step
                                              : program.steady_step;
      const auto text = [&](std::int32_t i) {
        return i < 0 ? "?" : describe(step.ops[static_cast<std::size_t>(i)], program, plan, model);
      };
      FAIL("race: " << races[0].rule << "; step " << races[0].step << ", " << text(races[0].earlier) << ", "
                    << text(races[0].later));
    }

    // Parts that backward never gathers live until the next step keeps others: what a step ends with it began with.
    std::set<std::int32_t> gathered, carried;
    for (const Operation& op : program.steady_step.ops) {
      for (const std::int32_t b : program.steady_step.allocs_of(op)) {
        const BufferKind k = program.buffers[static_cast<std::size_t>(b)].kind;
        if (k == BufferKind::gather || k == BufferKind::unsharded_parameter || k == BufferKind::kept_shard ||
            k == BufferKind::reduce_input)
          gathered.insert(b);
      }
      for (const std::int32_t b : program.steady_step.frees_of(op)) {
        const bool kept = program.buffers[static_cast<std::size_t>(b)].kind == BufferKind::kept_shard;
        if (gathered.erase(b) == 0 && kept) carried.insert(b);
      }
    }
    CHECK(gathered == carried);

    auto n = counts(program);
    const int reductions = expected_reductions(plan, program);
    CHECK(n[Action::reduce_scatter] == reductions);
    const auto lists = [](const Unit& u) { return !u.forward_prefetch.empty() || !u.backward_prefetch.empty(); };
    const bool prefetches_at_random = std::any_of(plan.units.begin(), plan.units.end(), lists);
    int units = 0;
    for (const UnitLayout& l : program.layouts) units += l.params.empty() ? 0 : 1;
    const int batches = static_cast<int>(plan.micro_batches.size());
    const int again = repeats ? 3 : 0;  // the block's unit, and one inside of it
    if (plan.shard() > 1 && !prefetches_at_random) CHECK(n[Action::all_gather] <= 2 * (units + again) * batches);
    CHECK(n[Action::gather_copy_out] <= 2 * (units + again) * batches);
    CHECK(n[Action::gather_copy_out] >= units);

    for (const UnitLayout& l : program.layouts) {
      std::int64_t numel = 0, trained = 0;
      for (std::int64_t r = 0; r < l.shards; ++r) numel += l.local_elements(r), trained += l.local_trained_elements(r);
      CHECK(numel == l.numel);
      CHECK(trained <= numel);
      CHECK((l.shard_elements * l.shards >= numel && l.reduce_elements * l.shards >= trained));
    }
  }
}
