// The `fsdp2` dialect: the order of work of PyTorch's fully_shard (2.6 to 2.15, host-time frees, no record_stream).
//
// Streams: compute (D), copy_in (C), all_gather (G), reduce_scatter (R), all_reduce (A). Comments name the rule of
// docs/fsdp-order.md that they follow: forward order F1..F7, backward order B1..B7 of PyTorch's FSDPParamGroup pre/post
// hooks and `foreach_all_gather`, `foreach_all_gather_copy_out`, `foreach_reduce`.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/graph/output_layer.h"
#include "models/index.h"
#include "planner/layout/unit_order.h"
#include "planner/lowering/dialect.h"
#include "planner/lowering/fsdp2_reduce.h"
#include "planner/lowering/fsdp2_units.h"
#include "planner/lowering/fsdp2_unshard.h"

namespace fsdp {
namespace {

class Fsdp2 final : public DialectHooks {
 public:
  explicit Fsdp2(const LoweringContext& c)
      : units_(c),
        unshard_(units_),
        reduce_(units_),
        slot_(c.model.parameters.size()),
        forward_lists_(c.plan.units.size()),
        backward_lists_(c.plan.units.size()),
        post_forward_indices_(c.plan.units.size()),
        forward_root_(c.plan.units.size(), kNone) {
    for (std::int32_t u : units_.forward_order) {
      set_reshard(u);
      const auto& params = units_.layout(u).params;
      for (std::size_t i = 0; i < params.size(); ++i) slot_[at(params[i].param)] = {u, i};
    }
    for (const std::int32_t u : units_.execution_order) {
      forward_lists_[at(u)] = listed(c.plan.units[at(u)].forward_prefetch);
      backward_lists_[at(u)] = listed(c.plan.units[at(u)].backward_prefetch);
    }
    if (c.plan.backward_prefetch > 1) list_units_before();
    if (c.plan.loop.chunk_head) {
      const std::int32_t u = slot_[at(c.model.ops[at(chunked_head(c.model))].params[0])].first;
      if (c.ids.units[at(u)].size() > 1) shared_head_ = u;
    }
    unshard_first_ = listed(c.plan.loop.unshard).value_or(std::vector<std::int32_t>{});
    reshard_ = listed(c.plan.loop.reshard).value_or(std::vector<std::int32_t>{});
  }

  void init(StepBuilder& b) override {
    for (std::int32_t u : units_.forward_order) {
      Buffer info = units_.buffer(0, plan().master_dtype, BufferKind::parameter_shard, Stream::compute, u);
      info.bytes = units_.layout(u).shard_bytes();
      info.host = plan().offload;
      units_[u].shard = b.allocate_new(info);
      reduce_.init(b, u);
      const Operation here = plan().offload ? units_.on_host(Action::init_parameters, u)
                                            : units_.op(Action::init_parameters, Stream::compute, u);
      b.issue(here, {{Arg{units_[u].shard, Access::write}}});
    }
  }

  void begin_step(StepBuilder& b) override {
    bool any = false;
    for (const Fsdp2Unit& s : units_.all()) any = any || s.has_sharded_gradient;
    if (any) b.issue(units_.on_host(Action::zero_gradients, -1), {});
    for (Fsdp2Unit& s : units_.all()) {
      if (s.has_sharded_gradient) b.release(s.sharded_gradient);
      s.has_sharded_gradient = false;
      s.post_reduce_op = -1;
    }
    reduce_.begin_step();
    event_ = plan().loop.post_optim_event && optimizer_before_ >= 0;
  }

  void begin_micro_batch(StepBuilder&, std::int16_t micro_batch) override {
    units_.micro_batch = micro_batch;
    last_ = at(micro_batch) + static_cast<std::size_t>(plan().loop.forwards) == plan().micro_batches.size();
    for (std::int32_t u : units_.forward_order) set_last(u, last_);
    begin_next_backward(/*waited=*/false);
    forward_root_.assign(forward_root_.size(), kNone);
  }

  void go_to(std::int16_t micro_batch) override { units_.micro_batch = micro_batch; }

  void begin_backward(StepBuilder& b) override {
    for (const std::int32_t u : reshard_)
      for (const std::int32_t g : units_.groups(u)) unshard_.reshard(b, g);
  }

  // Only the output layer's unit may have its last backward before the rest has any: where it holds nothing else.
  void begin_part(StepBuilder&, std::int32_t unit, bool last) override {
    const bool alone = unit != shared_head_;
    for (std::int32_t u : units_.forward_order) set_last(u, last_ && last && u == unit && alone);
    begins_forward_ = alone || !std::exchange(in_parts_, true);
    in_parts_ = true;
    if (!alone) begin_next_backward(/*waited=*/false);
  }

  void end_parts() override {
    for (std::int32_t u : units_.forward_order) set_last(u, last_);
    in_parts_ = false;
  }

  void before_forward(StepBuilder& b, std::int32_t u) override {
    if (units_.layout(u).root)
      for (const std::int32_t target : unshard_first_)
        for (const std::int32_t g : units_.groups(target)) unshard_.unshard(b, g, /*by_hand=*/true);
    if (units_.layout(u).root || (in_parts_ && begins_forward_)) begin_forward(b, u);
    gather_for_forward(b, u);
  }

  void after_forward(StepBuilder& b, std::int32_t u) override {  // F7
    if (u == shared_head_) return;                               // its forward ends with the root's
    leave(b, u);
    if (units_.layout(u).root && shared_head_ >= 0) leave(b, shared_head_);
    end_forward(b, u);
  }

  // A unit whose pre-backward has run only makes sure of its parameters. Any other goes through its whole pre-forward:
  // the outermost one as the root of this forward.
  void before_recompute(StepBuilder& b, std::int32_t u) override {
    if (units_[u].in_backward) {
      for (const std::int32_t g : units_.groups(u)) {
        gather_for_backward(b, g);
        unshard_.wait(b, g, /*forward=*/false);
      }
      return;
    }
    if (forward_root_[at(units_.root_of(u))] < 0) begin_forward(b, u);
    gather_for_forward(b, u);
  }

  void after_recompute(StepBuilder& b, std::int32_t u) override {
    if (units_[u].in_backward) return;
    if (units_.before(10)) leave(b, u);  // as after the forward itself
    end_forward(b, u);
  }

  void before_recomputed_op(StepBuilder& b, std::int32_t u) override {
    if (units_[u].gathered) return;
    unshard_.unshard(b, u);
    unshard_.wait(b, u, /*forward=*/false);
  }

  void before_backward(StepBuilder& b, std::int32_t u) override {
    if (!units_.layout(u).outputs_require_grad) return;
    const std::int32_t root = units_.root_of(u);
    if (std::find(in_backward_.begin(), in_backward_.end(), root) == in_backward_.end()) in_backward_.push_back(root);
    // The backward of an earlier forward, before the unit's post-backward: its lists are gathered again, all else is
    // left out.
    const auto& groups = units_.groups(u);
    const bool again = std::exchange(units_[u].in_backward, true) && !units_[u].backward_done && !groups.empty();
    units_[u].backward_done = false;  // of this use
    const bool by_default = !backward_lists_[at(u)] && !again && plan().backward_prefetch != 0;
    for (const std::int32_t g : groups) {
      gather_for_backward(b, g);               // B2
      unshard_.wait(b, g, /*forward=*/false);  // B3
      if (by_default) prefetch_before(b, g);   // B4
    }
    if (!backward_lists_[at(u)]) return;
    for (const std::int32_t target : *backward_lists_[at(u)])
      for (auto g = units_.groups(target).rbegin(); g != units_.groups(target).rend(); ++g) gather_for_backward(b, *g);
  }

  void after_backward(StepBuilder& b, std::int32_t u) override {
    Fsdp2Unit& s = units_[u];
    const auto& groups = units_.groups(u);
    if (s.backward_done || groups.empty()) return;
    s.backward_done = true;
    for (auto g = groups.rbegin(); g != groups.rend(); ++g) finish_backward(b, *g);  // the last one first (A1.16)
  }

  // The final callbacks, one of each root (A1.17).
  void end_backward(StepBuilder& b) override {
    const bool waits = !plan().loop.last_backward || (last_ && !in_parts_);  // B7a
    for (const std::int32_t root : std::exchange(in_backward_, {})) end_root(b, root, waits);
    begin_next_backward(waits);
  }

  void after_optimizer(StepBuilder& b) override {
    unshard_.after_optimizer(b);
    optimizer_ = b.last(Stream::compute);
  }

  // Gathers that wait for the optimizer of the step before wait for its place in a steady step.
  bool end_step(StepBuilder&) override {
    return std::exchange(optimizer_before_, optimizer_) == optimizer_ || !plan().loop.post_optim_event;
  }

  Arg parameter(StepBuilder&, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    if (!units_[u].gathered)
      return {};  // an op whose backward reads no weights, of a unit that stays sharded in backward
    return {units_[u].full[i], Access::read, 0,
            units_.gathered_bytes_of(u, units_.layout(u).params[i])};  // a view: padding rows lie behind it
  }

  Arg gradient(StepBuilder& b, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    return reduce_.gradient(b, u, i);
  }

  void after_gradient(StepBuilder& b, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    reduce_.after_gradient(b, u, i);
  }

  [[nodiscard]] std::int32_t sharded_gradient(std::int32_t u) const override { return units_[u].sharded_gradient; }
  [[nodiscard]] std::int32_t parameter_shard(std::int32_t u) const override { return units_[u].shard; }

 private:
  const ShardingPlan& plan() const { return units_.c.plan; }

  void set_last(std::int32_t u, bool last) {
    Fsdp2Unit& s = units_[u];
    const GradSync sync = units_.switches(u).grad_sync.value_or(plan().grad_sync);
    s.last = last;
    s.sync = sync != GradSync::last || last;
    s.all_reduce = sync != GradSync::reduce_scatter_only || last;
  }

  // What one backward leaves to the next forward: nothing, but where it has not waited the order of its forward.
  void begin_next_backward(bool waited) {
    if (waited || (!plan().loop.last_backward && !in_parts_)) {
      post_forward_order_.clear();
      for (auto& indices : post_forward_indices_) indices.clear();
    }
    for (Fsdp2Unit& s : units_.all()) s.backward_done = s.in_backward = false;  // also of units without parameters
    reduce_.begin_backward(plan().loop.forwards);
  }

  // A root's final callback: its states in module pre-order, the root first; then D waits for every reduction, of other
  // roots, too. Before PyTorch 2.15 it waited for each unit's before the next one's post-backward.
  void end_root(StepBuilder& b, std::int32_t root, bool waits) {
    const bool one_by_one = waits && units_.before(15);
    for (std::int32_t u : units_.states) {
      if (units_.root_of(u) != root) continue;
      after_backward(b, u);
      if (!one_by_one) continue;
      reduce_.finalize(b, u);
      unshard_.drop_unused(b, u, units_[u].last);
    }
    if (!waits) return unshard_.end_backward(b);
    if (!one_by_one) {
      for (std::int32_t u : units_.module_order)
        if (units_.root_of(u) == root) unshard_.drop_unused(b, u, units_[u].last);
      unshard_.end_backward(b);
      for (std::int32_t u : units_.module_order) reduce_.finalize(b, u);
    }
    reduce_.end_backward(b, root);
    if (one_by_one) unshard_.end_backward(b);
  }

  // Root pre-forward (F1): C and G wait for the optimizer and the batch.
  void begin_forward(StepBuilder& b, std::int32_t u) {
    forward_root_[at(units_.root_of(u))] = u;
    if (std::exchange(event_, false)) {
      b.wait_for_step_before(Stream::copy_in, optimizer_before_);
      return b.wait_for_step_before(Stream::all_gather, optimizer_before_);
    }
    b.wait_stream(Stream::copy_in, Stream::compute);
    b.wait_stream(Stream::all_gather, Stream::compute);
  }

  // The end of a unit's forward: it is resharded, and has its place in the order that backward prefetches follow.
  void leave(StepBuilder& b, std::int32_t u) {
    for (const std::int32_t g : units_.groups(u)) {
      unshard_.reshard_after_forward(b, g);
      post_forward_indices_[at(g)].push_back(post_forward_order_.size());
      post_forward_order_.push_back(g);
    }
  }

  // Prefetch of what ended its forward before group g did. Of a unit with several groups the second one asks, for all
  // groups of the unit before, the last one first.
  void prefetch_before(StepBuilder& b, std::int32_t g) {
    if (post_forward_indices_[at(g)].empty()) return;
    const std::size_t position = post_forward_indices_[at(g)].back();
    post_forward_indices_[at(g)].pop_back();
    const std::int32_t own = units_.state_of(g);
    if (units_.groups(own).size() == 1) {
      if (position > 0) gather_for_backward(b, post_forward_order_[position - 1]);
      return;
    }
    if (g != units_.groups(own)[1]) return;
    std::int32_t before = kNone;
    for (std::size_t i = position; i-- > 0;) {
      const std::int32_t unit = units_.state_of(post_forward_order_[i]);
      if (unit == own) continue;
      if (before >= 0 && unit != before) return;
      before = unit;
      gather_for_backward(b, post_forward_order_[i]);
    }
  }

  // Post-backward of one group (B6).
  void finish_backward(StepBuilder& b, std::int32_t g) {
    const Fsdp2Unit& s = units_[g];
    reduce_.accumulate_late(b, g, /*only_into_existing=*/true);  // B6a
    if (s.sync) reduce_.reduce_over_tensor(b, g);
    if (units_.switches(g).reshard_after_backward || s.last) unshard_.reshard(b, g);  // B6b
    if (s.sync) reduce_.reduce(b, g);
    else reduce_.accumulate_late(b, g, /*only_into_existing=*/false);
  }

  void end_forward(StepBuilder& b, std::int32_t u) {
    std::int32_t& root = forward_root_[at(units_.root_of(u))];
    if (root != u) return;
    unshard_.drop_held(b);
    root = kNone;
  }

  void gather_for_forward(StepBuilder& b, std::int32_t u) {
    for (const std::int32_t g : units_.groups(u)) {
      unshard_.unshard(b, g);                 // F2
      unshard_.wait(b, g, /*forward=*/true);  // F3
    }
    const auto prefetch = [&](std::int32_t target) {  // F5
      for (const std::int32_t g : units_.groups(target)) unshard_.unshard(b, g);
    };
    if (forward_lists_[at(u)]) {
      for (const std::int32_t target : *forward_lists_[at(u)]) prefetch(target);
      return;
    }
    const auto& order = units_.execution_order;
    const auto here = std::find(order.begin(), order.end(), u);
    for (int k = 1; k <= plan().forward_prefetch && order.end() - here > k; ++k) prefetch(*(here + k));
  }

  void gather_for_backward(StepBuilder& b, std::int32_t g) {
    if (units_.switches(g).unshard_in_backward) unshard_.unshard(b, g);
  }

  void set_reshard(std::int32_t u) {
    const Reshard r = units_.switches(u).reshard_after_forward;
    const bool root = units_.layout(u).root;
    Fsdp2Unit& s = units_[u];
    if (r == Reshard::automatic || (root && plan().torch.before(2, 8)))
      s.reshard_after_forward = !root;  // before 2.8 the root never resharded
    else s.reshard_after_forward = r != Reshard::no;
    if (s.reshard_after_forward && r.ranks > 1 && r.ranks < units_.layout(u).shards) s.small_group = r.ranks;
  }

  // Counts above 1 are lists in PyTorch, too (set_modules_to_backward_prefetch): the units that end before, last first.
  // One that ends before all others keeps the default.
  void list_units_before() {
    const std::vector<std::int32_t> ends = order_of_ends(units_.c.program.layouts);
    const auto count = static_cast<std::size_t>(plan().backward_prefetch);
    for (std::size_t i = 1; i < ends.size(); ++i) {
      if (backward_lists_[at(ends[i])]) continue;
      const auto end = ends.rbegin() + static_cast<std::ptrdiff_t>(ends.size() - i);
      backward_lists_[at(ends[i])].emplace(end, end + static_cast<std::ptrdiff_t>(std::min(i, count)));
    }
  }

  // Units by the name of their first module; nothing: no list was given. An empty root is listed without effect.
  std::optional<std::vector<std::int32_t>> listed(const std::vector<std::string>& names) const {
    if (names.empty()) return std::nullopt;
    std::vector<std::int32_t> list;
    for (const std::string& name : names)
      for (std::int32_t u : units_.states)
        if (plan().units[at(u)].modules.front() == name) list.push_back(u);
    return list;
  }

  Fsdp2Units units_;
  Fsdp2Unshard unshard_;
  Fsdp2Reduce reduce_;
  std::vector<std::pair<std::int32_t, std::size_t>> slot_;  // by parameter: its unit and its place there
  std::vector<std::optional<std::vector<std::int32_t>>> forward_lists_, backward_lists_;  // explicit prefetch, by unit
  std::vector<std::vector<std::size_t>> post_forward_indices_;  // by unit: where its uses stand in
  std::vector<std::int32_t> post_forward_order_;
  // By root: the unit whose pre-forward began the forward (or recomputation) that runs.
  std::vector<std::int32_t> forward_root_;
  std::vector<std::int32_t> in_backward_;                      // roots whose final callback is to come, in that order
  std::vector<std::int32_t> unshard_first_, reshard_;          // what the training loop gathers and reshards by hand
  std::int32_t optimizer_ = kNone, optimizer_before_ = kNone;  // its last operation, in this step and the one before
  bool event_ = false;                // recorded after the optimizer; the first forward of a step consumes it
  bool last_ = true;                  // micro-batch of the step
  std::int32_t shared_head_ = kNone;  // the unit of an output layer that runs by itself, where it holds more
  bool in_parts_ = false;             // the output layer runs by itself
  bool begins_forward_ = false;       // and this part of it does as a root would
};

}  // namespace

std::unique_ptr<DialectHooks> make_fsdp2(const LoweringContext& c) { return std::make_unique<Fsdp2>(c); }

}  // namespace fsdp
