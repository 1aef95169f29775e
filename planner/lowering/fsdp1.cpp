// The `fsdp1` dialect: the order of work of PyTorch's FullyShardedDataParallel, as 2.15 does it (docs/fsdp-order.md
// A2), or 1.13 (A2.12).
//
// Streams: compute (default), copy_in (pre_unshard), all_gather (unshard), reduce_scatter (post_backward), all_reduce.
// Strategies follow from the plan: W > 1 shards and a unit that reshards is FULL_SHARD, one that does not
// SHARD_GRAD_OP, with replicas HYBRID_SHARD and _HYBRID_SHARD_ZERO2; W = 1 is NO_SHARD over all ranks. The all-gather's
// output is the parameters' storage: there is no copy into or out of it. Buffers are freed with the streams that
// PyTorch marks them for (Buffer::recorded_streams), so what is allocated at host time is less than what a device needs
// whose host runs ahead.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "models/index.h"
#include "models/input/error.h"
#include "planner/lowering/dialect.h"
#include "planner/lowering/fsdp1_limiter.h"
#include "planner/lowering/fsdp1_reduce.h"
#include "planner/lowering/fsdp1_units.h"

namespace fsdp {
namespace {

class Fsdp1 final : public DialectHooks {
 public:
  explicit Fsdp1(const LoweringContext& c)
      : units_(c), limiter_(c.plan.limit_all_gathers), slot_(c.model.parameters.size()) {
    if (units_.early() && c.implementation.compiled)
      throw InputError(setting("compile"), "torch.compile came with PyTorch 2.0, the plan is for fsdp1 of 1.13",
                       "leave it out, or use the dialect fsdp1");
    if (c.plan.reentrant && c.implementation.compiled)
      throw InputError(setting("compile"), "what torch.compile makes of reentrant checkpoints is not known here",
                       "leave it out, or recompute with --activation-checkpointing full");
    for (std::int32_t u : units_.with_parameters)
      for (std::size_t i = 0; i < layout(u).params.size(); ++i) slot_[at(layout(u).params[i].param)] = {u, i};
  }

  void init(StepBuilder& b) override {
    const ShardingPlan& plan = units_.c.plan;
    for (std::int32_t u : units_.with_parameters) {
      Fsdp1Unit& s = units_[u];
      Buffer shard =
          units_.buffer(layout(u).shard_elements, units_.kept(u), BufferKind::parameter_shard, Stream::compute, u);
      shard.host = plan.offload;
      s.shard = b.allocate_new(shard);
      if (units_.trained(u)) s.sharded_gradient = b.declare(fsdp1_sharded_gradient(units_, u));
      if (plan.offload && units_.trained(u)) b.allocate(s.sharded_gradient);  // on the host for good
      b.issue(units_.op(Action::init_parameters, Stream::compute, u), {{Arg{s.shard, Access::write}}});
    }
  }

  void begin_step(StepBuilder& b) override {
    limiter_.begin_step();
    bool any = false;
    for (std::int32_t u : units_.with_parameters) any = any || units_[u].has_sharded_gradient;
    if (any) {
      Operation zero = units_.op(Action::zero_gradients, Stream::compute, -1);
      zero.host_only = true;
      b.issue(zero, {});
    }
    // With use_orig_params the flat gradient is dropped when the root's forward finds that its parameters have none.
    if (!units_.c.plan.use_orig_params) drop_gradients(b);
    first_micro_batch_ = true;
  }

  bool end_step(StepBuilder& b) override { return limiter_.end_step(b.step()); }

  void begin_micro_batch(StepBuilder&, std::int16_t micro_batch) override {
    units_.micro_batch = micro_batch;
    last_ = static_cast<std::size_t>(micro_batch) + 1 == units_.c.plan.micro_batches.size();
    sync_ = last_ || units_.c.plan.grad_sync == GradSync::every;
  }

  void before_forward(StepBuilder& b, std::int32_t u) override {
    if (layout(u).root) root_before_forward(b);
    if (units_.empty(u)) return;
    Fsdp1Unit& s = units_[u];
    position_ = layout(u).uses.at(s.forwards++).op_begin;
    if (first_iteration_) pre_forward_order_.push_back(u);
    if (!s.prefetched || units_.early()) unshard(b, u, /*forward=*/true);
    s.needs_forward = false;
    b.wait_stream(Stream::compute, Stream::all_gather);
    if (units_.c.plan.forward_prefetch > 0) prefetch_forward(b, u);
  }

  void after_forward(StepBuilder& b, std::int32_t u) override {
    if (!units_.empty(u)) end_forward(b, u);
  }

  // A unit inside of a checkpointed module runs its forward's hooks again, but for one whose backward has begun, and no
  // list of prefetches asks for it. Autograd does not go through what is made again: it is no view of the flat
  // parameter that a backward completes. Where the checkpoint is reentrant it goes through nothing else: forward ran
  // without it, and hooked no backward.
  void before_recompute(StepBuilder& b, std::int32_t u) override {
    if (units_.empty(u) || units_[u].ran_pre_backward) return;
    if (!units_[u].prefetched) unshard(b, u, /*forward=*/false);
    if (units_.again(u) && units_.trained(u)) views_.emplace_back(layout(u).uses.front().op_begin, u);
    b.wait_stream(Stream::compute, Stream::all_gather);
  }

  void after_recompute(StepBuilder& b, std::int32_t u) override {
    if (units_.empty(u) || units_[u].ran_pre_backward) return;
    end_forward(b, u);
    units_[u].needs_backward = layout(u).outputs_require_grad;
  }

  void before_backward(StepBuilder& b, std::int32_t u) override {
    if (units_.empty(u) || !layout(u).outputs_require_grad) return;
    Fsdp1Unit& s = units_[u];
    if (std::exchange(s.ran_pre_backward, true)) return;  // a later use's backward has come by
    if (s.needs_backward) {
      if (!s.prefetched || units_.early()) unshard(b, u, /*forward=*/false);
      b.wait_stream(Stream::compute, Stream::all_gather);
    }
    s.needs_backward = false;
    if (!units_.c.plan.backward_post) prefetch_backward(b, u);
  }

  // Of trained units autograd decides: backward_passed. A frozen one has no gradient to wait for: a hook on its inputs
  // frees its parameters. It was registered in its own forward, so that pre-backward hooks on the same tensors, of
  // units that ran before, come first.
  void after_backward(StepBuilder&, std::int32_t u) override {
    if (!units_.empty(u) && !units_.trained(u)) passed_frozen_.push_back(u);
  }

  void outputs_ready(StepBuilder& b) override {
    for (const std::int32_t u : std::exchange(passed_frozen_, {})) reshard_after_backward(b, u);
  }

  // Autograd runs what was made later first, and a unit's views of the flat parameter were made when it was gathered:
  // their backward, which completes the flat gradient, comes when that of every operation since then has been.
  void backward_passed(StepBuilder& b, std::int32_t graph_op) override {
    while (!views_.empty() && views_.back().first >= graph_op) {
      const std::int32_t u = views_.back().second;
      views_.pop_back();
      const bool first_use =
          std::none_of(views_.begin(), views_.end(), [&](const auto& earlier) { return earlier.second == u; });
      if (first_use) post_backward(b, u);
      else fsdp1_flatten(units_, b, u, /*first_use=*/false);
    }
  }

  void end_backward(StepBuilder& b) override {
    outputs_ready(b);
    if (sync_) {
      b.wait_stream(Stream::compute, Stream::reduce_scatter);
      if (units_.hybrid()) b.wait_stream(Stream::compute, Stream::all_reduce);
      if (units_.c.plan.offload) end_offload(b);
    }
    first_iteration_ = false;
    post_forward_order_.clear();
    reshard_what_is_left(b);
    for (std::int32_t u : units_.with_parameters) {
      Fsdp1Unit& s = units_[u];
      s.needs_backward = s.prefetched = s.ran_pre_backward = false;
      s.post_forward_index = kNone;
      s.forwards = 0;
    }
  }

  Arg parameter(StepBuilder&, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    const std::int64_t size = size_of(units_.parameter_dtype(u));
    const ShardedParam& p = layout(u).params[i];
    return {units_[u].full >= 0 ? units_[u].full : units_[u].shard, Access::read, p.offset * size, p.numel() * size};
  }

  Arg gradient(StepBuilder& b, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    return fsdp1_gradient(units_, b, u, i, param);
  }

  [[nodiscard]] std::int32_t sharded_gradient(std::int32_t u) const override { return units_[u].sharded_gradient; }
  [[nodiscard]] std::int32_t parameter_shard(std::int32_t u) const override { return units_[u].shard; }

 private:
  const UnitLayout& layout(std::int32_t u) const { return units_.layout(u); }

  void end_forward(StepBuilder& b, std::int32_t u) {
    // PyTorch goes by the first use of a unit, but takes the index 0 for none.
    if (units_[u].post_forward_index <= 0)
      units_[u].post_forward_index = static_cast<std::int32_t>(post_forward_order_.size());
    post_forward_order_.push_back(u);
    reshard(b, u, units_.sharded() && units_[u].full_shard && !layout(u).root);
    units_[u].needs_backward = layout(u).outputs_require_grad && !units_.again(u);
  }

  void root_before_forward(StepBuilder& b) {
    if (units_.c.plan.forward_prefetch > 0)
      for (std::int32_t u : units_.with_parameters) units_[u].needs_forward = true, units_[u].prefetched = false;
    b.wait_stream(Stream::all_gather, Stream::compute);
    b.wait_stream(Stream::copy_in, Stream::compute);
    if (first_micro_batch_ && units_.c.plan.use_orig_params) drop_gradients(b);
    first_micro_batch_ = false;
  }

  void drop_gradients(StepBuilder& b) {
    for (std::int32_t u : units_.with_parameters) {
      Fsdp1Unit& s = units_[u];
      if (s.has_sharded_gradient && !units_.c.plan.offload) b.release(s.sharded_gradient);
      s.has_sharded_gradient = false;
      s.flat_gradient = -1;
    }
  }

  // pre_unshard, the limiter, unshard, post_unshard. Also asked for where the parameter is whole already: then nothing
  // is gathered, but the limiter takes its event and an offloaded shard is copied in vain.
  void unshard(StepBuilder& b, std::int32_t u, bool forward) {
    Fsdp1Unit& s = units_[u];
    const ShardingPlan& plan = units_.c.plan;
    const bool gathers = units_.sharded() && s.full < 0;
    std::int32_t source = s.shard;
    if (units_.early()) limiter_.before_all_gather(b, units_.micro_batch);
    if (gathers || plan.offload || (!units_.sharded() && units_.casts_shards(u)))
      source = shard_to_gather(b, u, gathers);
    if (source != s.shard) b.wait_stream(Stream::all_gather, Stream::copy_in);
    if (!units_.early()) limiter_.before_all_gather(b, units_.micro_batch);
    if (gathers) {
      s.full = b.allocate_new(units_.buffer(layout(u).shard_elements * layout(u).shards, units_.parameter_dtype(u),
                                            BufferKind::unsharded_parameter, Stream::all_gather, u, {Stream::compute}));
      b.issue(units_.op(Action::all_gather, Stream::all_gather, u, Communicator::shard),
              {{Arg{s.full, Access::write}, Arg{source}}});
    }
    if (!units_.sharded()) {
      s.full = source != s.shard ? source : -1;
    } else if (source != s.shard) {
      b.release(source);
    }
    if (forward && units_.trained(u) && !units_.again(u)) views_.emplace_back(position_, u);
  }

  // The shard on the device and in the compute dtype: itself, or a copy on the copy_in stream.
  std::int32_t shard_to_gather(StepBuilder& b, std::int32_t u, bool gathers) {
    const Fsdp1Unit& s = units_[u];
    const ShardingPlan& plan = units_.c.plan;
    const std::int64_t n = layout(u).shard_elements;
    const bool casts = units_.casts_shards(u);
    if (!casts && !plan.offload) return s.shard;
    // Without sharding the kernels read this. PyTorch does not mark a copy that is not gathered from, unless it is its
    // `_mp_shard`.
    const Stream reader = units_.sharded() ? Stream::all_gather : Stream::compute;
    const bool marked = casts || gathers;
    const std::int32_t copy = b.allocate_new(units_.buffer(n, units_.parameter_dtype(u), BufferKind::cast_shard,
                                                           Stream::copy_in, u, {marked ? reader : Stream::copy_in}));
    std::int32_t from = s.shard;
    if (plan.offload) {
      from =
          casts ? b.allocate_new(units_.buffer(n, units_.kept(u), BufferKind::cast_shard, Stream::copy_in, u)) : copy;
      b.issue(units_.op(Action::shard_to_device, Stream::copy_in, u), {{Arg{s.shard}, Arg{from, Access::write}}});
    }
    if (casts) b.issue(units_.op(Action::cast_shard, Stream::copy_in, u), {{Arg{from}, Arg{copy, Access::write}}});
    if (casts && plan.offload) b.release(from);
    return copy;
  }

  void reshard(StepBuilder& b, std::int32_t u, bool free) {
    Fsdp1Unit& s = units_[u];
    if (free) {
      b.release(std::exchange(s.full, -1));
      limiter_.freed(b);
    } else if (!units_.sharded() && s.full >= 0) {
      b.release(std::exchange(s.full, -1));
    }
    if (free || !units_.early()) s.prefetched = false;
  }

  void prefetch_forward(StepBuilder& b, std::int32_t u) {
    const auto here = std::find(pre_forward_order_.begin(), pre_forward_order_.end(), u);
    if (pre_forward_order_.end() - here < 2) return;
    const std::int32_t next = *(here + 1);
    if (!units_[next].needs_forward || units_[next].prefetched) return;
    // Autograd's function of a reentrant checkpoint is older than the views that its first forward makes.
    if (units_.again(u) && !units_.again(next)) position_ = units_[u].again_until;
    unshard(b, next, /*forward=*/true);
    units_[next].prefetched = true;
  }

  void prefetch_backward(StepBuilder& b, std::int32_t u) {
    if (units_.c.plan.backward_prefetch == 0) return;
    const std::int32_t here = units_[u].post_forward_index;
    if (here <= 0) return;
    const std::int32_t before = post_forward_order_[at(here - 1)];
    if (!units_[before].needs_backward || units_[before].prefetched) return;
    unshard(b, before, /*forward=*/false);
    units_[before].prefetched = true;
  }

  void post_backward(StepBuilder& b, std::int32_t u) {
    fsdp1_flatten(units_, b, u, /*first_use=*/true);
    reshard_after_backward(b, u);
    if (sync_) fsdp1_reduce(units_, b, u, last_);
    if (units_[u].added >= 0) b.release(std::exchange(units_[u].added, -1));
  }

  void reshard_after_backward(StepBuilder& b, std::int32_t u) {
    reshard(b, u, units_.sharded() && (sync_ || units_[u].full_shard));
    if (units_.c.plan.backward_post) prefetch_backward(b, u);
  }

  // Frozen units that no backward has come to are still whole: outer before inner, as modules are listed.
  void reshard_what_is_left(StepBuilder& b) {
    std::vector<std::int32_t> left;
    for (std::int32_t u : units_.with_parameters)
      if (!units_.trained(u) && units_[u].full >= 0) left.push_back(u);
    std::sort(left.begin(), left.end(), [&](std::int32_t x, std::int32_t y) {
      return units_.c.ids.units[at(x)].front() < units_.c.ids.units[at(y)].front();
    });
    for (const std::int32_t u : left) reshard(b, u, units_.sharded() && (sync_ || units_[u].full_shard));
  }

  // The host waits for the gradients that are copied to it; their sources are dropped.
  void end_offload(StepBuilder& b) {
    std::vector<std::int32_t> last;
    for (Stream s : {Stream::compute, Stream::reduce_scatter, Stream::all_reduce})
      if (b.last(s) >= 0) last.push_back(b.last(s));
    b.host_wait(last, units_.micro_batch);
    for (std::int32_t u : units_.with_parameters)
      if (units_[u].on_device >= 0) b.release(std::exchange(units_[u].on_device, -1));
  }

  Fsdp1Units units_;
  Fsdp1Limiter limiter_;
  std::vector<std::pair<std::int32_t, std::size_t>> slot_;  // by parameter: its unit and its place there
  std::vector<std::int32_t> pre_forward_order_, post_forward_order_;
  // Of this micro-batch: the graph op before which they were made, and of which unit.
  std::vector<std::pair<std::int32_t, std::int32_t>> views_;
  std::vector<std::int32_t> passed_frozen_;  // units whose inputs' gradients have just been made
  std::int32_t position_ = 0;
  bool first_iteration_ = true;  // of the whole run: its forward order is what forward prefetch goes by later
  bool first_micro_batch_ = true, last_ = true, sync_ = true;
};

}  // namespace

std::unique_ptr<DialectHooks> make_fsdp1(const LoweringContext& c) { return std::make_unique<Fsdp1>(c); }

}  // namespace fsdp
