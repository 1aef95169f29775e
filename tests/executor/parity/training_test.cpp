// What PyTorch's test_fully_shard_training.py demands, run: sharded training equals training on one rank (fp64, 1e-10),
// in the predicted order and memory. tests/PARITY.md says which test case stands for which of its tests.
#include <mutex>
#include <set>
#include <thread>

#include "executor/data/synthetic.h"
#include "models/input/error.h"
#include "tests/support/delaying_backend.h"
#include "tests/support/mlp_model.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph llama(bool tied = false, int vocab = 37) {
  return small_llama({.layers = 3, .vocab = vocab, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1, .tied = tied});
}

ShardingPlan double_plan(const ModelGraph& model, const PlanWords& words) { return make_plan(model, in_double(words)); }

void set_reshard_of_all(ShardingPlan& p, Reshard r) {
  for (Unit& u : p.units) u.reshard_after_forward = r;
}

// Every parameter on its largest dimension.
std::vector<ShardDim> largest_dims(const ModelGraph& model) {
  std::vector<ShardDim> dims;
  for (const Parameter& p : model.parameters) {
    const auto largest = std::max_element(p.shape.begin(), p.shape.end());
    if (largest != p.shape.begin()) dims.push_back({p.name, largest - p.shape.begin()});
  }
  return dims;
}

// The root, and everything else as units of the modules listed.
void set_units(ShardingPlan& p, const std::vector<std::vector<std::string>>& groups) {
  p.units.clear();
  for (const auto& modules : groups) p.units.push_back({modules, Reshard::automatic});
  p.units.push_back({{""}, Reshard::automatic});
}

}  // namespace

TEST_CASE("test_train_parity_single_group_shard_dim0: uneven and empty shards on 2, 3, 4 and 8 ranks") {
  for (const std::vector<std::int64_t>& widths : {std::vector<std::int64_t>{16, 15, 8}, {7, 15, 3}, {16, 17, 8}}) {
    const ModelGraph model = mlp({.blocks = {widths}});
    for (const std::int64_t ranks : {2, 3, 4, 8})
      check_parity(model, double_plan(model, {.shard = ranks, .wrap = "root", .micro_batches = {2}}));
  }
}

TEST_CASE("test_train_parity_single_group_shard_largest_dim") {
  const ModelGraph model = mlp({.blocks = {{32, 16, 8}}});
  for (const std::int64_t ranks : {2, 4, 8}) {
    ShardingPlan plan = double_plan(model, {.shard = ranks, .wrap = "root", .micro_batches = {2}});
    plan.shard_dims = largest_dims(model);
    REQUIRE(plan.shard_dims.size() == 3);
    check_parity(model, plan);
    CHECK(count(model, plan, Action::reorder_shards) == 6);  // copied out once, reduced once
  }
}

TEST_CASE("test_train_parity_multi_group: reshard after forward yes, no, over 2 of 4, automatic") {
  const ModelGraph model = llama();
  for (const Reshard r : {Reshard::yes, Reshard::no, Reshard{2}, Reshard::automatic})
    for (const std::int64_t ranks : {2, 4})
      if (r.ranks < ranks) check_parity(model, double_plan(model, {.shard = ranks, .reshard = r}));
}

TEST_CASE("test_train_parity_multi_group: streams and ranks delayed, each place alone and all at once, change no bit") {
  const ModelGraph model = mlp({.blocks = {{5, 7, 6}, {6, 9, 6}, {6, 5, 6}}, .vocab = 11});
  struct Where {
    const char* name;
    Delays delays;
    std::set<Action> kernels;
  };
  const std::vector<Where> places = {
      {"after compute", {}, {Action::forward, Action::backward}},
      {"before all-gather", {.before_all_gather = 3}, {}},
      {"after all-gather", {.after_all_gather = 3}, {}},
      {"before reduce-scatter", {.before_reduce_scatter = 3}, {}},
      {"after reduce-scatter", {.after_reduce_scatter = 3}, {}},
      {"copies",
       {},
       {Action::gather_copy_in, Action::gather_copy_out, Action::scatter_copy_in, Action::finish_gradient}},
      {"optimizer", {}, {Action::optimizer}},
      {"all",
       {.before_all_gather = 2,
        .after_all_gather = 2,
        .before_reduce_scatter = 2,
        .after_reduce_scatter = 2,
        .before_all_reduce = 2},
       {Action::forward, Action::backward, Action::optimizer, Action::gather_copy_out}},
  };
  for (const Reshard r : {Reshard::yes, Reshard::no, Reshard{2}}) {
    const ShardingPlan plan = double_plan(model, {.shard = 4, .reshard = r, .micro_batches = {1, 1}});
    const RunResult plain = check_parity(model, plan);
    for (const Where& w : places) {
      CAPTURE(w.name);
      RunOptions o = five_steps();
      o.in_kernel = [&](const Operation& op, std::int64_t rank) {
        if (w.kernels.contains(op.action))
          std::this_thread::sleep_for(std::chrono::microseconds(300 * ((op.unit + rank + 3) % 3)));
      };
      DelayingBackend backend(make_host_backend({1, 4}, {30}), w.delays);
      const RunResult delayed = run(model, plan, load_cluster("host", 4), backend, o);
      CHECK(equal_bits(delayed, plain));
      check_as_predicted(model, plan, delayed.measurement);
    }
  }
}

TEST_CASE("test_train_parity_multi_group_cpu_offload_eager: shards, gradients and optimizer in host memory") {
  const ModelGraph model = llama();
  for (const Reshard r : {Reshard::yes, Reshard::no, Reshard{2}})
    for (const std::int64_t ranks : {1, 2, 4}) {
      if (r.ranks >= ranks && r.ranks > 1) continue;
      ShardingPlan plan = double_plan(model, {.shard = ranks, .reshard = r});
      plan.offload = true;
      if (ranks > 1) plan.clip_norm = 0.05;
      const RunResult result = check_parity(model, plan);
      const Program program = lower(model, plan, native_implementation());
      for (const Operation& op : program.steady_step.ops)
        if (op.action == Action::optimizer || op.action == Action::clip_local_norm || op.action == Action::clip_scale)
          CHECK(op.host_only);
      ShardingPlan on_device = plan;
      on_device.offload = false;
      CHECK(equal_bits(result, execute(model, on_device, five_steps())));
    }
}

TEST_CASE("test_multi_forward_module: a unit that runs twice in a forward") {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 0}, {0, 1, 2, 1}, {0, 1, 0, 1}}) {
    const int blocks = 1 + *std::max_element(order.begin(), order.end());
    const std::vector<std::vector<std::int64_t>> widths(static_cast<std::size_t>(blocks), {6, 9, 6});
    const ModelGraph model = mlp({.blocks = widths, .vocab = 11, .order = order});
    for (const Reshard r : {Reshard::yes, Reshard::no, Reshard{2}})
      for (const std::vector<std::int64_t>& batches : {std::vector<std::int64_t>{2}, {1, 1}}) {
        const ShardingPlan plan = double_plan(model, {.shard = 4, .reshard = r, .micro_batches = batches});
        const RunResult result = check_parity(model, plan);
        CHECK(executed(result.measurement.ranks[0], Action::reduce_scatter) ==
              count(model, plan, Action::reduce_scatter));
      }
  }
}

TEST_CASE("test_explicit_prefetching: 8 layers, two ahead in forward and in backward, by count and by name") {
  const ModelGraph model = mlp({.blocks = std::vector<std::vector<std::int64_t>>(8, {6, 9, 6}), .vocab = 11});
  ShardingPlan plan = double_plan(
      model,
      {.shard = 3, .reshard = Reshard::yes, .micro_batches = {2}, .forward_prefetch = 2, .backward_prefetch = 2});
  const RunResult counted = check_parity(model, plan);
  plan.forward_prefetch = 0;
  plan.backward_prefetch = 1;
  for (int i = 0; i < 8; ++i)
    for (int k = 1; k <= 2; ++k) {
      if (i + k < 8)
        plan.units[static_cast<std::size_t>(i)].forward_prefetch.push_back("layers." + std::to_string(i + k));
      if (i - k >= 0)
        plan.units[static_cast<std::size_t>(i)].backward_prefetch.push_back("layers." + std::to_string(i - k));
    }
  const RunResult listed = check_parity(model, plan);
  CHECK(equal_bits(counted, listed));
}

TEST_CASE(
    "test_train_parity_with_activation_checkpointing: by reshard, by grouping, tied, embeddings that stay sharded in "
    "backward") {
  for (const bool tied : {false, true}) {
    const ModelGraph model = llama(tied);
    std::vector<std::vector<std::vector<std::string>>> groupings = {
        {{"model.layers.0"}, {"model.layers.1"}, {"model.layers.2"}},
        {{"model.layers.0", "model.layers.1"}, {"model.layers.2"}},
    };
    if (!tied)
      groupings.push_back({{"model.embed_tokens"},
                           {"model.layers.0", "model.layers.1"},
                           {"model.layers.2"},
                           {"model.norm", "lm_head"}});
    for (const auto& groups : groupings)
      for (const Reshard r : {Reshard::yes, Reshard::no, Reshard{2}}) {
        ShardingPlan plan = double_plan(model, {.shard = 4});
        set_units(plan, groups);
        set_reshard_of_all(plan, r);
        const int gathers = count(model, plan, Action::all_gather);
        plan.checkpointed = checkpointed_modules(model, "full", "test");
        if (plan.units.front().modules.front() == "model.embed_tokens") plan.units.front().unshard_in_backward = false;
        const RunResult result = check_parity(model, plan);
        const bool embeds = !plan.units.front().unshard_in_backward && r != Reshard::no;
        CHECK(executed(result.measurement.ranks[0], Action::all_gather) ==
              gathers - (embeds ? 1 : 0));  // recomputing adds none
      }
  }
}

TEST_CASE(
    "test_train_parity_shard_placement_fn_shard_largest_dim: a transformer, and gathered parameters equal whole ones") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 24, .hidden = 16, .inner = 48, .heads = 4, .kv_heads = 2});
  for (const Reshard r : {Reshard::yes, Reshard::no})
    for (const std::int64_t ranks : {2, 4, 8}) {
      ShardingPlan plan = double_plan(model, {.shard = ranks, .reshard = r});
      plan.shard_dims = largest_dims(model);
      check_parity(model, plan);
      plan.checkpointed = checkpointed_modules(model, "full", "test");
      plan.clip_norm = 0.05;
      check_parity(model, plan);
    }
}

TEST_CASE("test_shard_placement_fn_contiguous_params_grads: a rank's shard of a dimension is one dense block") {
  const ModelGraph model = mlp({.blocks = {{32, 16, 8}}, .bias = false});
  ShardingPlan plan = double_plan(model, {.shard = 4, .wrap = "root", .micro_batches = {2}});
  plan.shard_dims = largest_dims(model);
  const Parameter& weight = model.parameters[1];  // [16, 32], columns are split
  std::mutex mutex;
  std::vector<std::vector<double>> shards(4);
  RunOptions o = five_steps();
  o.after_step = [&](const RankState& state) {
    if (state.steps_done != 5) return;
    const UnitLayout& layout = state.program.layouts[0];
    const auto* all =
        reinterpret_cast<const double*>(state.view(0, StatePart::parameter).data) + layout.params[1].offset;
    const std::lock_guard lock(mutex);
    shards[static_cast<std::size_t>(state.program.rank)].assign(all, all + weight.numel() / 4);
  };
  const RunResult result = check_parity(model, plan, o);
  const std::vector<double>& whole = named(result.parameters, weight.name);
  for (std::size_t rank = 0; rank < 4; ++rank)
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t column = 0; column < 8; ++column)
        CHECK(shards[rank][row * 8 + column] == whole[row * 32 + rank * 8 + column]);
}

TEST_CASE("test_train_parity_with_shared_params: embedding and head tied in the root; a vocabulary of 4 W + 1 rows") {
  for (const std::int64_t ranks : {2, 3, 4})
    for (const Reshard r : {Reshard::yes, Reshard::no, Reshard::automatic}) {
      const ModelGraph model = llama(true, static_cast<int>(4 * ranks + 1));
      const ShardingPlan plan = double_plan(model, {.shard = ranks, .reshard = r, .micro_batches = {1, 2}});
      const RunResult result = check_parity(model, plan);
      // Weight decay alone moves every row: the last one, on a rank with a padded shard, too.
      const Parameter& shared = model.parameters[0];
      const std::vector<double>& values = named(result.parameters, shared.name);
      for (std::int64_t i = shared.numel() - shared.shape[1]; i < shared.numel(); ++i)
        CHECK(values[static_cast<std::size_t>(i)] != initial_value(plan.seed, shared, i));
    }
}

TEST_CASE("test_shared_params_separate_fsdp_groups_error") {
  const ModelGraph model = llama(true);
  ShardingPlan plan = double_plan(model, {.shard = 2});
  set_units(plan, {{"model.embed_tokens"}, {"lm_head"}});
  CHECK(refusal([&] { static_cast<void>(execute(model, plan, five_steps())); }).find("tied") != std::string::npos);
}

namespace {

// PyTorch's formulas for B groups beside the root and M micro-batches; `quiet` groups reduce after the last one only.
struct Counts {
  int gathers, scatters, reduces;
};

}  // namespace

TEST_CASE(
    "test_gradient_accumulation: 3 MLPs and a root linear, 3 micro-batches: exact collective counts, and parity") {
  const int B = 3, M = 3;
  const ModelGraph model = mlp({.blocks = {{5, 20, 5}, {5, 20, 5}, {5, 20, 5}}, .vocab = 7});
  for (const std::int64_t replicate : {1, 2})
    for (const Reshard r : {Reshard::yes, Reshard::no, Reshard{2}})
      for (const char* mode :
           {"every", "all", "root only", "some MLPs", "reduce-scatter only", "keep after backward"}) {
        const std::string how = mode;
        if (how == "reduce-scatter only" && replicate == 1) continue;
        CAPTURE(replicate);
        CAPTURE(mode);
        ShardingPlan plan =
            double_plan(model, {.shard = 4 / replicate, .replicate = replicate, .micro_batches = {1, 2, 1}});
        if (r.ranks >= plan.shard() && r.ranks > 1) continue;
        set_reshard_of_all(plan, r);
        Counts want{(r == Reshard::no ? 1 : 2) * (B + 1) * M, (B + 1) * M, 0};
        if (how == "all" || how == "keep after backward") plan.grad_sync = GradSync::last, want.scatters = B + 1;
        if (how == "root only") plan.units.back().grad_sync = GradSync::last, want.scatters = B + 1 + B * (M - 1);
        if (how == "some MLPs") {
          plan.units[0].grad_sync = plan.units[1].grad_sync = GradSync::last;
          want.scatters = B + 1 + (B - 2 + 1) * (M - 1);
        }
        want.reduces = replicate > 1 ? want.scatters : 0;
        if (how == "reduce-scatter only") plan.grad_sync = GradSync::reduce_scatter_only, want.reduces = B + 1;
        if (how == "keep after backward") {
          for (Unit& u : plan.units) u.reshard_after_backward = false;
          if (r == Reshard::no) want.gathers = B + 1;
          else want.gathers = -1;
        }
        const RunResult result = check_parity(model, plan);
        for (const RankMeasurement& rank : result.measurement.ranks) {
          if (want.gathers >= 0) CHECK(executed(rank, Action::all_gather) == want.gathers);
          CHECK(executed(rank, Action::reduce_scatter) == want.scatters);
          CHECK(executed(rank, Action::all_reduce) == want.reduces);
        }
      }
}

TEST_CASE(
    "test_gradient_accumulation: offloaded shards, where gradients of later micro-batches are added on the host") {
  const ModelGraph model = mlp({.blocks = {{5, 20, 5}, {5, 20, 5}}, .vocab = 7});
  for (const std::int64_t replicate : {1, 2})
    for (const GradSync sync : {GradSync::every, GradSync::last}) {
      ShardingPlan plan =
          double_plan(model, {.shard = 2, .replicate = replicate, .micro_batches = {1, 2, 1}, .grad_sync = sync});
      plan.offload = true;
      check_parity(model, plan, five_steps(), 1e-9);  // the first steps of Adam make 2e-10 of last bits
      plan.reduce_dtype = DType::f32;                 // another buffer holds what is cast
      const RunResult result = execute(model, plan, five_steps());
      const RunResult& one = reference(model, plan);  // Adam makes much of a small gradient's last bits
      CHECK(distance(result.measurement.losses, one.measurement.losses) <= 1e-5);
      for (std::size_t i = 0; i < one.first_gradients.size(); ++i)
        CHECK(distance(result.first_gradients[i].values, one.first_gradients[i].values) <= 1e-5);
      check_as_predicted(model, plan, result.measurement);
    }
}

TEST_CASE(
    "test_train_parity_hsdp: 2 x 2 and 2 x 4, dims 3, 16, 17, recomputation, gradients of every or of the last "
    "micro-batch, offload") {
  for (const std::int64_t dim : {3, 16, 17}) {
    const ModelGraph model = mlp({.blocks = {{dim, 4 * dim, dim}, {dim, 4 * dim, dim}, {dim, 4 * dim, dim}}});
    for (const std::int64_t shard : {2, 4})
      for (const Reshard r : {Reshard::yes, Reshard::no})
        for (const GradSync sync : {GradSync::every, GradSync::last, GradSync::reduce_scatter_only})
          for (const bool extras : {false, true}) {
            ShardingPlan plan = double_plan(
                model, {.shard = shard, .replicate = 2, .reshard = r, .micro_batches = {1, 1}, .grad_sync = sync});
            plan.offload = extras;
            if (extras) plan.checkpointed = checkpointed_modules(model, "full", "test");
            check_parity(model, plan);
          }
  }
}

TEST_CASE("test_train_parity_single_worldsize1: no collective but that of the loss") {
  const ModelGraph model = llama();
  for (const Reshard r : {Reshard::yes, Reshard::no})
    for (const bool offload : {false, true}) {
      ShardingPlan plan = double_plan(model, {.reshard = r, .micro_batches = {2}});
      plan.offload = offload;
      const RunResult result = check_parity(model, plan);
      CHECK(result.measurement.ranks[0].wire_bytes == 0);
      CHECK(executed(result.measurement.ranks[0], Action::all_gather) == 0);
    }
}

TEST_CASE("test_param_registration_after_forward, _after_backward: sharded, whole, or in parts of two ranks") {
  const ModelGraph model = mlp({.blocks = {{6, 9, 6}, {6, 9, 6}}, .vocab = 11});
  struct Held {
    std::set<std::int32_t> whole, parts;
  };
  const auto held = [&](const ShardingPlan& plan,
                        bool backward) {  // units, after the last op of forward or of the step
    const Program program = lower(model, plan, native_implementation());
    const Step& step = program.steady_step;
    std::set<std::int32_t> live;
    for (const Operation& op : step.ops) {
      if (!backward && op.action == Action::backward) break;
      memory_events(
          step, op, [&](std::int32_t b) { live.insert(b); }, [&](std::int32_t b) { live.erase(b); });
    }
    Held h;
    for (const std::int32_t b : live) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (buffer.kind == BufferKind::unsharded_parameter) h.whole.insert(buffer.unit);
      if (buffer.kind == BufferKind::kept_shard) h.parts.insert(buffer.unit);
    }
    return h;
  };
  const std::set<std::int32_t> none, root = {2}, all = {0, 1, 2};
  for (const Reshard r : {Reshard::automatic, Reshard::yes, Reshard::no, Reshard{2}}) {
    const ShardingPlan plan = double_plan(model, {.shard = 4, .reshard = r, .micro_batches = {2}});
    const Held after = held(plan, false);
    // The root's own backward is next and gathers it again before the loss's; the blocks are as forward left them.
    CHECK(after.whole == (r == Reshard::no          ? all
                          : r == Reshard::automatic ? root
                          : after.whole.contains(2) ? root
                                                    : none));
    CHECK(after.parts == (r == Reshard{2} ? (after.parts.contains(2) ? all : std::set<std::int32_t>{0, 1}) : none));
    CHECK(held(plan, true).whole.empty());
    CHECK(held(plan, true).parts.empty());
    check_parity(model, plan);
  }
}

TEST_CASE("test_root_move_forward_input_to_device: every micro-batch is loaded once, before anything computes on it") {
  const ModelGraph model = llama();
  const ShardingPlan plan = double_plan(model, {.shard = 2, .micro_batches = {1, 2}});
  const RunResult result = check_parity(model, plan);
  const std::vector<OrderedOperation>& order = result.measurement.ranks[1].order;
  std::vector<std::size_t> loads;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i].action == Action::load_batch) loads.push_back(i);
  CHECK(loads.size() == 2);
  CHECK(loads.front() == 0);
}

TEST_CASE("test_root_no_forward_inputs: what needs no gradient of its inputs is reduced at the end of backward") {
  const ModelGraph model = llama();
  const ShardingPlan plan = double_plan(model, {.shard = 2, .reshard = Reshard::yes});
  const RunResult result = check_parity(model, plan);
  std::string last;
  for (const OrderedOperation& o : result.measurement.ranks[0].order)
    if (o.action == Action::reduce_scatter) last = o.object;
  CHECK(last.find("(root)") != std::string::npos);
}

TEST_CASE(
    "test_reset_iter_state_after_exception: a backend runs again after a rank has failed in the middle of a step") {
  const ModelGraph model = llama();
  const ShardingPlan plan = double_plan(model, {.shard = 2});
  const auto backend = make_host_backend({1, 2}, {30});
  const ClusterSpec cluster = load_cluster("host", 2);
  RunOptions failing = five_steps();
  failing.in_kernel = [](const Operation& op, std::int64_t rank) {
    if (rank == 1 && op.action == Action::backward) throw std::runtime_error("planted");
  };
  CHECK_THROWS_AS(static_cast<void>(run(model, plan, cluster, *backend, failing)), RankFailure);
  check_equal(run(model, plan, cluster, *backend, five_steps()), reference(model, plan), 1e-10);
}

TEST_CASE("frozen parameters: they stay, their gradients are not reduced, the others train as if all did") {
  const ModelGraph whole = llama();
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"model.layers.1"},
        {"model.embed_tokens", "model.layers.0"},
        {"model.layers.2.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"}}) {
    const ModelGraph model = freeze(whole, names, "test");
    for (const PlanWords& words :
         {PlanWords{.shard = 2}, PlanWords{.shard = 3, .reshard = Reshard::yes, .micro_batches = {1, 1}},
          PlanWords{.shard = 2, .replicate = 2, .clip_norm = 0.05},
          PlanWords{.replicate = 2, .dialect = Dialect::ddp}}) {
      const ShardingPlan plan = double_plan(model, words);
      const RunResult result = check_parity(model, plan);
      PlanWords trained = words;
      trained.clip_norm.reset();
      const RunResult& full = reference(whole, double_plan(whole, trained));
      for (std::size_t i = 0; i < model.parameters.size(); ++i) {
        const Parameter& p = model.parameters[i];
        CAPTURE(p.name);
        const std::vector<double>& values = result.parameters[i].values;
        if (p.trainable) {
          CHECK(distance(result.first_gradients[i].values, full.first_gradients[i].values) <= 1e-10);
          continue;
        }
        bool kept = true;
        for (std::size_t k = 0; k < values.size(); ++k)
          kept = kept && values[k] == initial_value(plan.seed, p, static_cast<std::int64_t>(k));
        CHECK(kept);
      }
    }
  }
}

TEST_CASE("parameters without gradient: a layer whose result nobody reads is neither reduced nor stepped") {
  const Mlp spec{.blocks = {{5, 9, 5}, {5, 9, 5}}, .vocab = 7};
  Mlp with = spec;
  with.unused = true;
  const ModelGraph model = mlp(with), without = mlp(spec);
  for (const char* wrap : {"block", "root", "class:Linear"})
    for (const PlanWords& words : {PlanWords{.shard = 3, .wrap = wrap},
                                   PlanWords{.shard = 2, .replicate = 2, .wrap = wrap, .clip_norm = 0.05}}) {
      const ShardingPlan plan = double_plan(model, words);
      const RunResult result = check_parity(model, plan);
      const RunResult& other = reference(without, double_plan(without, words));
      for (const NamedTensor& p : other.parameters) {
        CAPTURE(p.name);
        CHECK(distance(named(result.parameters, p.name), p.values) <= 1e-10);
      }
      for (std::size_t i = 0; i < model.parameters.size(); ++i) {
        const Parameter& p = model.parameters[i];
        if (!p.name.starts_with("unused")) continue;
        for (std::int64_t k = 0; k < p.numel(); ++k)
          CHECK(result.parameters[i].values[static_cast<std::size_t>(k)] == initial_value(plan.seed, p, k));
      }
    }
}

TEST_CASE("ignored parameters: whole on every rank, stepped by each on its own gradient") {
  const ModelGraph model = llama();
  for (const std::vector<std::string>& ignored :
       {std::vector<std::string>{"model.layers.1"}, {"lm_head"}, {"model.embed_tokens", "model.norm"}}) {
    ShardingPlan plan = double_plan(model, {.shard = 2});
    plan.ignored = ignored;
    RunOptions o = five_steps();
    o.training.tokens = [&](std::int64_t sequence, std::int64_t length, std::int64_t* ids,
                            std::int64_t* targets) {  // the same on both ranks
      for (std::int64_t p = 0; p < length; ++p) {
        ids[p] = synthetic_token(3, sequence / 2, p, model.vocab);
        targets[p] = synthetic_token(3, sequence / 2, p + 1, model.vocab);
      }
    };
    const RunResult two = execute(model, plan, o);
    check_as_predicted(model, plan, two.measurement);
    check_equal(two, execute(model, unsharded(model, plan), o), 1e-10);
    plan.clip_norm = 1;
    CHECK(refusal([&] { static_cast<void>(execute(model, plan, five_steps())); }).find("ignored") != std::string::npos);
  }
}
