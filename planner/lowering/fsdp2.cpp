// The `fsdp2` dialect: the order of work of PyTorch's fully_shard (2.x, host-time frees, no record_stream).
//
// Streams: compute (D), copy_in (C), all_gather (G), reduce_scatter (R), all_reduce (A). Comments name the rule they follow:
// forward order F1..F7, backward order B1..B6i of PyTorch's FSDPParamGroup pre/post hooks and `foreach_all_gather`,
// `foreach_all_gather_copy_out`, `foreach_reduce`.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "planner/lowering/dialect.h"

namespace fsdp {
namespace {

struct UnitState {
  bool reshard = true;                       // after forward
  bool gathered = false;                     // unsharded parameters are live
  bool pending = false;                      // an all-gather was issued and not yet waited for
  bool backward_done = false;                // post-backward has run in this micro-batch
  std::int32_t shard = -1, gather = -1, gather_op = -1;
  std::vector<std::int32_t> full, gradient, accumulator;   // per parameter of the unit; gradient, accumulator -1: not live
  std::int32_t sharded_gradient = -1, partial = -1;        // buffers; partial: HSDP sum of reduce-scatter outputs
  bool has_sharded_gradient = false;         // live in this step
  std::int32_t post_reduce_op = -1;          // last operation of this unit's reduction in this step
};

class Fsdp2 final : public DialectHooks {
 public:
  explicit Fsdp2(const LoweringContext& c) : c_(c), state_(c.program.layouts.size()), slot_(c.model.parameters.size()) {
    for (std::size_t u = 0; u < state_.size(); ++u) {
      const Reshard r = c.plan.units[u].reshard_after_forward;
      state_[u].reshard = r == Reshard::yes || (r == Reshard::automatic && !layout(u).root);
      state_[u].full.assign(layout(u).params.size(), -1);
      state_[u].gradient.assign(layout(u).params.size(), -1);
      state_[u].accumulator.assign(layout(u).params.size(), -1);
      for (std::size_t i = 0; i < layout(u).params.size(); ++i) slot_[at(layout(u).params[i].param)] = {static_cast<std::int32_t>(u), i};
      if (!layout(u).params.empty()) forward_units_.push_back(static_cast<std::int32_t>(u));
    }
    // Execution order of the groups: by where their forward begins, outer before inner (the plan lists inner before outer).
    std::sort(forward_units_.begin(), forward_units_.end(), [&](std::int32_t a, std::int32_t b) {
      const UnitLayout &x = layout(a), &y = layout(b);
      if (x.op_begin != y.op_begin) return x.op_begin < y.op_begin;
      return x.op_end != y.op_end ? x.op_end > y.op_end : a > b;
    });
  }

  void init(StepBuilder& b) override {
    for (std::int32_t u : forward_units_) {
      UnitState& s = state(u);
      s.shard = b.allocate_new(buffer(layout(u).shard_elements, c_.plan.master_dtype, BufferKind::parameter_shard, Stream::compute, u));
      // A sharded gradient is the reduce-scatter's own output, or its cast where the dtypes differ.
      const bool cast = c_.plan.reduce_dtype != c_.plan.master_dtype;
      const Stream pool = cast && hsdp() ? Stream::all_reduce : Stream::reduce_scatter;
      s.sharded_gradient = b.declare(buffer(layout(u).shard_elements, c_.plan.master_dtype, BufferKind::sharded_gradient, pool, u));
      b.issue(op(Action::init_parameters, Stream::compute, u), {{Arg{s.shard, Access::write}}});
    }
  }

  void begin_step(StepBuilder& b) override {
    bool any = false;
    for (std::int32_t u : forward_units_) any = any || state(u).has_sharded_gradient;
    if (any) {
      Operation zero = op(Action::zero_gradients, Stream::compute, -1);
      zero.host_only = true;
      b.issue(zero, {});
    }
    for (std::int32_t u : forward_units_) {
      UnitState& s = state(u);
      if (s.has_sharded_gradient) b.release(s.sharded_gradient);
      s.has_sharded_gradient = false;
      s.post_reduce_op = -1;
    }
    reduce_input_ = -1;
  }

  void begin_micro_batch(StepBuilder&, std::int16_t micro_batch) override {
    micro_batch_ = micro_batch;
    const bool last = static_cast<std::size_t>(micro_batch) + 1 == c_.plan.micro_batches.size();
    sync_ = c_.plan.grad_sync != GradSync::last || last;
    all_reduce_ = hsdp() && (c_.plan.grad_sync != GradSync::reduce_scatter_only || last);
    post_forward_order_.clear();
    for (UnitState& s : state_) s.backward_done = false;
  }

  void before_forward(StepBuilder& b, std::int32_t u) override {
    if (layout(u).root) {                    // root pre-forward: C and G wait for the optimizer and the batch
      b.wait(Stream::copy_in, b.last(Stream::compute));
      b.wait(Stream::all_gather, b.last(Stream::compute));
    }
    if (layout(u).params.empty()) return;
    unshard(b, u);                                                       // F2
    wait_for_unshard(b, u, /*backward=*/false);                          // F3
    const auto here = std::find(forward_units_.begin(), forward_units_.end(), u);
    for (int k = 1; k <= c_.plan.forward_prefetch && forward_units_.end() - here > k; ++k) unshard(b, *(here + k));   // F5
  }

  void after_forward(StepBuilder& b, std::int32_t u) override {          // F7
    if (!layout(u).params.empty()) {
      if (state(u).reshard) reshard(b, u);
      post_forward_order_.push_back(u);
    }
    if (layout(u).root) drop_held_gather(b);
  }

  void before_recompute(StepBuilder& b, std::int32_t u) override {
    if (layout(u).params.empty() || state(u).gathered) return;
    unshard(b, u);
    wait_for_unshard(b, u, /*backward=*/true);
  }

  void before_backward(StepBuilder& b, std::int32_t u) override {
    if (layout(u).params.empty()) return;
    unshard(b, u);                                                       // B2
    wait_for_unshard(b, u, /*backward=*/true);                           // B3
    const auto here = std::find(post_forward_order_.begin(), post_forward_order_.end(), u);   // B4
    const auto position = static_cast<int>(here - post_forward_order_.begin());
    for (int k = 1; k <= c_.plan.backward_prefetch && position - k >= 0; ++k)
      unshard(b, post_forward_order_[static_cast<std::size_t>(position - k)]);
  }

  void after_backward(StepBuilder& b, std::int32_t u) override {
    UnitState& s = state(u);
    if (s.backward_done || layout(u).params.empty()) return;
    s.backward_done = true;
    if (any_live(s.accumulator) && any_live(s.gradient)) accumulate(b, u);   // B6a
    reshard(b, u);                                                       // B6b
    if (!sync_) {
      if (c_.plan.reduce_dtype != c_.plan.param_dtype && any_live(s.gradient)) accumulate(b, u);
      return;
    }
    if (!any_live(s.accumulator) && !any_live(s.gradient)) return;       // nothing to reduce (frozen)
    drop_reduce_input(b);                                                // B6c
    b.wait(Stream::compute, s.post_reduce_op);                           // B6d
    reduce(b, u);
  }

  void end_backward(StepBuilder& b) override {
    // The final callback: states in module pre-order, root first; then D waits for every reduction.
    std::vector<std::int32_t> order(forward_units_);
    for (std::int32_t u : order) after_backward(b, u);
    for (std::int32_t u : order) b.wait(Stream::compute, state(u).post_reduce_op);
    drop_reduce_input(b);
    for (std::int32_t held : held_outputs_) b.release(held);
    held_outputs_.clear();
  }

  Arg parameter(StepBuilder&, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    return {state(u).full[i], Access::read, 0, bytes_of(param)};         // a view: padding rows lie behind it
  }

  Arg gradient(StepBuilder& b, std::int32_t param) override {
    const auto [u, i] = slot_[at(param)];
    std::int32_t& g = state(u).gradient[i];
    if (g >= 0) return {g, Access::accumulate};
    Buffer info = buffer(c_.model.parameters[at(param)].numel(), c_.plan.param_dtype, BufferKind::gradient, Stream::compute, u);
    info.param = param;
    g = b.allocate_new(info);
    return {g, Access::write};
  }

  [[nodiscard]] std::int32_t sharded_gradient(std::int32_t u) const override { return state_[at(u)].sharded_gradient; }
  [[nodiscard]] std::int32_t parameter_shard(std::int32_t u) const override { return state_[at(u)].shard; }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
  UnitState& state(std::int32_t u) { return state_[at(u)]; }
  const UnitLayout& layout(std::size_t u) const { return c_.program.layouts[u]; }
  const UnitLayout& layout(std::int32_t u) const { return layout(at(u)); }
  bool hsdp() const { return c_.plan.replicate() > 1; }
  bool sharded() const { return c_.plan.shard() > 1; }

  static bool any_live(const std::vector<std::int32_t>& buffers) {
    return std::any_of(buffers.begin(), buffers.end(), [](std::int32_t id) { return id >= 0; });
  }

  Operation op(Action action, Stream stream, std::int32_t unit) const { return operation(action, stream, unit, micro_batch_); }

  Buffer buffer(std::int64_t elements, DType dtype, BufferKind kind, Stream pool, std::int32_t unit) const {
    Buffer info;
    info.bytes = elements * size_of(dtype);
    info.dtype = dtype;
    info.kind = kind;
    info.pool = pool;
    info.unit = unit;
    info.micro_batch = micro_batch_;
    return info;
  }

  std::int64_t bytes_of(std::int32_t param) const {
    return c_.model.parameters[at(param)].numel() * size_of(c_.plan.param_dtype);
  }

  // F2: cast and copy the local shard into its slot of a fresh gather buffer on C, all-gather on G.
  void unshard(StepBuilder& b, std::int32_t u) {
    UnitState& s = state(u);
    if (s.gathered || s.pending) return;
    s.pending = true;
    const UnitLayout& l = layout(u);
    if (!sharded()) return;                  // one shard: wait_for_unshard copies it
    const std::int32_t source = cast_shard(b, u, Stream::copy_in);
    s.gather = b.allocate_new(buffer(l.shard_elements * l.shards, c_.plan.param_dtype, BufferKind::gather, Stream::copy_in, u));
    const std::int32_t copy = b.issue(op(Action::gather_copy_in, Stream::copy_in, u), {{Arg{source}, Arg{s.gather, Access::write}}});
    if (source != s.shard) b.release(source);
    b.wait(Stream::all_gather, copy);
    Operation gather = op(Action::all_gather, Stream::all_gather, u);
    gather.comm = Communicator::shard;
    s.gather_op = b.issue(gather, {{Arg{s.gather, Access::accumulate}}});
  }

  // The shard in the compute dtype: itself, or a temporary that the caller releases.
  std::int32_t cast_shard(StepBuilder& b, std::int32_t u, Stream stream) {
    UnitState& s = state(u);
    if (c_.plan.param_dtype == c_.plan.master_dtype) return s.shard;
    const std::int32_t cast = b.allocate_new(buffer(layout(u).shard_elements, c_.plan.param_dtype, BufferKind::cast_shard, stream, u));
    b.issue(op(Action::cast_shard, stream, u), {{Arg{s.shard}, Arg{cast, Access::write}}});
    return cast;
  }

  // F3 and B3: D waits for the all-gather and copies out. In forward the gather buffer stays until the next group's wait.
  void wait_for_unshard(StepBuilder& b, std::int32_t u, bool backward) {
    UnitState& s = state(u);
    if (!s.pending) return;
    s.pending = false;
    s.gathered = true;
    std::int32_t source = s.gather;
    if (sharded()) {
      drop_held_gather(b);                                               // F3a
      b.wait(Stream::compute, s.gather_op);                              // F3b
    } else {
      source = cast_shard(b, u, Stream::compute);
    }
    std::vector<Arg> args = {{source}};
    for (std::size_t i = 0; i < s.full.size(); ++i) {
      const ShardedParam& p = layout(u).params[i];
      Buffer full = buffer(p.padded_shard() * layout(u).shards, c_.plan.param_dtype, BufferKind::unsharded_parameter, Stream::compute, u);
      full.param = p.param;
      s.full[i] = b.allocate_new(full);
      args.push_back({s.full[i], Access::write, 0, bytes_of(p.param)});
    }
    const std::int32_t copy_out = b.issue(op(Action::gather_copy_out, Stream::compute, u), args);   // F3c
    if (!sharded()) {
      if (source != s.shard) b.release(source);
      return;
    }
    held_gather_ = s.gather;
    held_copy_out_ = copy_out;
    s.gather = -1;
    if (backward) drop_held_gather(b);
  }

  void drop_held_gather(StepBuilder& b) {
    if (held_gather_ < 0) return;
    b.wait(Stream::copy_in, held_copy_out_);
    b.wait(Stream::all_gather, held_copy_out_);
    b.release(held_gather_);
    held_gather_ = -1;
  }

  void reshard(StepBuilder& b, std::int32_t u) {
    UnitState& s = state(u);
    if (!s.gathered) return;
    s.gathered = false;
    for (std::int32_t full : s.full) b.release(full);
  }

  // Converts gradients into accumulators of the reduce dtype, or adds them to those that exist.
  void accumulate(StepBuilder& b, std::int32_t u) {
    UnitState& s = state(u);
    std::vector<Arg> args;
    for (std::size_t i = 0; i < s.gradient.size(); ++i) {
      const bool fresh = s.accumulator[i] < 0;
      if (fresh && s.gradient[i] >= 0) {
        const ShardedParam& p = layout(u).params[i];
        Buffer info = buffer(p.numel(), c_.plan.reduce_dtype, BufferKind::gradient_accumulator, Stream::compute, u);
        info.param = p.param;
        s.accumulator[i] = b.allocate_new(info);
      }
      args.push_back({s.gradient[i]});
      args.push_back({s.gradient[i] >= 0 ? s.accumulator[i] : -1, fresh ? Access::write : Access::accumulate});
    }
    b.issue(op(Action::accumulate_gradient, Stream::compute, u), args);
    release_all(b, s.gradient);
  }

  static void release_all(StepBuilder& b, std::vector<std::int32_t>& buffers) {
    for (std::int32_t& id : buffers) {
      if (id >= 0) b.release(id);
      id = -1;
    }
  }

  void drop_reduce_input(StepBuilder& b) {
    if (reduce_input_ < 0) return;
    b.wait(Stream::compute, reduce_input_op_);
    b.release(reduce_input_);
    reduce_input_ = -1;
  }

  // B6f to B6i: copy-in on D, reduce-scatter on R, all-reduce over the replicas on A, then the sharded gradient.
  void reduce(StepBuilder& b, std::int32_t u) {
    UnitState& s = state(u);
    const UnitLayout& l = layout(u);
    const DType reduce_dtype = c_.plan.reduce_dtype;
    std::vector<std::int32_t>& source = any_live(s.accumulator) ? s.accumulator : s.gradient;
    reduce_input_ = b.allocate_new(buffer(l.shard_elements * l.shards, reduce_dtype, BufferKind::reduce_input, Stream::compute, u));
    std::vector<Arg> args;
    for (std::int32_t g : source) args.push_back({g});
    args.push_back({reduce_input_, Access::write});
    const std::int32_t copy_in = b.issue(op(Action::scatter_copy_in, Stream::compute, u), args);   // B6f
    release_all(b, source);

    // The output becomes the sharded gradient itself when nothing has to be cast or added.
    const bool final_here = !hsdp() || all_reduce_;
    const bool keeps = reduce_dtype == c_.plan.master_dtype && !s.has_sharded_gradient && final_here;
    std::int32_t out = s.sharded_gradient;
    if (keeps) {
      b.allocate(out);
    } else {
      out = b.allocate_new(buffer(l.shard_elements, reduce_dtype, BufferKind::reduce_output, Stream::reduce_scatter, u));
    }
    b.wait(Stream::reduce_scatter, copy_in);
    Operation scatter = op(Action::reduce_scatter, Stream::reduce_scatter, u);                      // B6g
    scatter.comm = Communicator::shard;
    reduce_input_op_ = b.issue(scatter, {{Arg{reduce_input_}, Arg{out, Access::write}}});
    s.post_reduce_op = reduce_input_op_;
    if (hsdp() && !replicate_sum(b, u, out)) return;                                               // B6h
    finish(b, u, out, keeps);                                                                      // B6i
  }

  // HSDP: keeps a partial sum until the all-reduce is due. False: it is not due in this micro-batch.
  bool replicate_sum(StepBuilder& b, std::int32_t u, std::int32_t out) {
    UnitState& s = state(u);
    if (!all_reduce_) {
      if (s.partial < 0) {
        s.partial = out;
      } else {
        s.post_reduce_op = b.issue(op(Action::add_gradient, Stream::reduce_scatter, u), {{Arg{out}, Arg{s.partial, Access::accumulate}}});
        b.release(out);
      }
      return false;
    }
    if (s.partial >= 0) {
      s.post_reduce_op = b.issue(op(Action::add_gradient, Stream::reduce_scatter, u), {{Arg{s.partial}, Arg{out, Access::accumulate}}});
      b.release(s.partial);
      s.partial = -1;
    }
    b.wait(Stream::all_reduce, s.post_reduce_op);
    Operation reduce = op(Action::all_reduce, Stream::all_reduce, u);
    reduce.comm = Communicator::replicate;
    s.post_reduce_op = b.issue(reduce, {{Arg{out, Access::accumulate}}});
    return true;
  }

  void finish(StepBuilder& b, std::int32_t u, std::int32_t out, bool keeps) {
    UnitState& s = state(u);
    if (!keeps) {
      const Access access = s.has_sharded_gradient ? Access::accumulate : Access::write;
      if (!s.has_sharded_gradient) b.allocate(s.sharded_gradient);
      const Stream stream = hsdp() ? Stream::all_reduce : Stream::reduce_scatter;
      s.post_reduce_op = b.issue(op(Action::finish_gradient, stream, u), {{Arg{out}, Arg{s.sharded_gradient, access}}});
      if (hsdp()) {
        held_outputs_.push_back(out);        // R's pool, used on A: kept until D has waited at the end of backward
      } else {
        b.release(out);
      }
    }
    s.has_sharded_gradient = true;
  }

  const LoweringContext c_;
  std::vector<UnitState> state_;
  std::vector<std::pair<std::int32_t, std::size_t>> slot_;    // by parameter: its unit and its place there
  std::vector<std::int32_t> forward_units_, post_forward_order_, held_outputs_;
  std::int16_t micro_batch_ = 0;
  bool sync_ = true, all_reduce_ = false;
  std::int32_t held_gather_ = -1, held_copy_out_ = -1;        // forward: the last group's gather buffer
  std::int32_t reduce_input_ = -1, reduce_input_op_ = -1;     // backward: the one reduce-scatter input in flight
};

}  // namespace

std::unique_ptr<DialectHooks> make_fsdp2(const LoweringContext& c) { return std::make_unique<Fsdp2>(c); }

}  // namespace fsdp
