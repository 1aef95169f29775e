// The `ddp` dialect: every rank holds everything; gradients are averaged over all ranks, one bucket per unit of the
// plan, as soon as the unit's backward is done (DistributedDataParallel with gradient_as_bucket_view). The baseline
// that sharding is measured by.
#include <memory>
#include <vector>

#include "models/index.h"
#include "planner/lowering/dialect.h"

namespace fsdp {
namespace {

struct UnitState {
  // Flat, in layout order, the gradient of the trained parameters alone. It lives from its first write to the next
  // step.
  std::int32_t shard = -1, gradient = -1;
  bool gradient_live = false, backward_done = false;
  std::vector<bool> written;  // per parameter, in this step
  std::int32_t reduce_op = -1;
};

class Ddp final : public DialectHooks {
 public:
  explicit Ddp(const LoweringContext& c) : c_(c), state_(c.program.layouts.size()), slot_(c.model.parameters.size()) {
    for (std::size_t u = 0; u < state_.size(); ++u) {
      const auto& params = c.program.layouts[u].params;
      state_[u].written.assign(params.size(), false);
      std::int64_t trained = 0;
      for (std::size_t i = 0; i < params.size(); ++i) {
        slot_[at(params[i].param)] = {static_cast<std::int32_t>(u), i, trained};
        if (params[i].trainable) trained += params[i].padded_shard();
      }
      if (!params.empty()) units_.push_back(static_cast<std::int32_t>(u));
    }
  }

  void init(StepBuilder& b) override {
    for (std::int32_t u : units_) {
      UnitState& s = state_[at(u)];
      const UnitLayout& layout = c_.program.layouts[at(u)];
      s.shard = b.allocate_new(flat(u, BufferKind::parameter_shard, layout.shard_bytes()));
      const std::int64_t gradient = layout.reduce_elements * size_of(c_.plan.kept_dtype(/*trained=*/true));
      if (layout.trained()) s.gradient = b.declare(flat(u, BufferKind::sharded_gradient, gradient));
      // Whole buckets that gradients are copied into to be reduced are made at once, and stay.
      if (layout.trained() && c_.implementation.ddp_copies_gradients && c_.plan.replicate() > 1)
        (void)b.allocate_new(flat(u, BufferKind::reduce_input, gradient));
      b.issue(op(Action::init_parameters, Stream::compute, u), {{Arg{s.shard, Access::write}}});
    }
  }

  void begin_step(StepBuilder& b) override {
    bool any = false;
    for (std::int32_t u : units_) any = any || state_[at(u)].gradient_live;
    if (any) {
      Operation zero = op(Action::zero_gradients, Stream::compute, -1);
      zero.host_only = true;
      b.issue(zero, {});
    }
    for (std::int32_t u : units_) {
      UnitState& s = state_[at(u)];
      if (s.gradient_live) b.release(s.gradient);
      s.gradient_live = false;
      s.written.assign(s.written.size(), false);
      s.reduce_op = -1;
    }
  }

  void begin_micro_batch(StepBuilder&, std::int16_t micro_batch) override {
    micro_batch_ = micro_batch;
    const bool last = static_cast<std::size_t>(micro_batch) + 1 == c_.plan.micro_batches.size();
    sync_ = c_.plan.replicate() > 1 && (c_.plan.grad_sync == GradSync::every || last);
    for (UnitState& s : state_) s.backward_done = false;
  }

  void before_forward(StepBuilder&, std::int32_t) override {}
  void after_forward(StepBuilder&, std::int32_t) override {}
  void before_backward(StepBuilder&, std::int32_t) override {}

  void after_backward(StepBuilder& b, std::int32_t u) override {
    UnitState& s = state_[at(u)];
    if (s.backward_done || !s.gradient_live) return;
    s.backward_done = true;
    if (!sync_) return;
    b.wait(Stream::all_reduce, b.last(Stream::compute));
    Operation reduce = op(Action::all_reduce, Stream::all_reduce, u);
    reduce.comm = Communicator::replicate;
    s.reduce_op = b.issue(reduce, {{Arg{s.gradient, Access::accumulate}}});
  }

  void end_backward(StepBuilder& b) override {
    for (std::int32_t u : units_) after_backward(b, u);
    b.wait(Stream::compute, b.last(Stream::all_reduce));
  }

  Arg parameter(StepBuilder&, std::int32_t param) override {
    const Slot& slot = slot_[at(param)];
    return {state_[at(slot.unit)].shard, Access::read, c_.program.layouts[at(slot.unit)].shard_begin(slot.place),
            bytes_of(slot)};
  }

  Arg gradient(StepBuilder& b, std::int32_t param) override {
    const Slot& slot = slot_[at(param)];
    UnitState& s = state_[at(slot.unit)];
    if (!s.gradient_live) b.allocate(s.gradient);
    s.gradient_live = true;
    const Access access = s.written[slot.place] ? Access::accumulate : Access::write;
    s.written[slot.place] = true;
    return {s.gradient, access, slot.gradient * size_of(of(slot).kept), bytes_of(slot)};
  }

  [[nodiscard]] std::int32_t sharded_gradient(std::int32_t u) const override { return state_[at(u)].gradient; }
  [[nodiscard]] std::int32_t parameter_shard(std::int32_t u) const override { return state_[at(u)].shard; }

 private:
  Operation op(Action action, Stream stream, std::int32_t unit) const {
    return operation(action, stream, unit, micro_batch_);
  }

  struct Slot {
    std::int32_t unit = -1;
    std::size_t place = 0;      // in its unit's layout
    std::int64_t gradient = 0;  // elements of its unit's gradient before it
  };

  const ShardedParam& of(const Slot& slot) const { return c_.program.layouts[at(slot.unit)].params[slot.place]; }

  std::int64_t bytes_of(const Slot& slot) const { return of(slot).numel() * size_of(of(slot).kept); }

  Buffer flat(std::int32_t u, BufferKind kind, std::int64_t bytes) const {
    Buffer info;
    info.bytes = bytes;
    info.dtype = c_.plan.kept_dtype(kind == BufferKind::sharded_gradient);
    info.kind = kind;
    info.unit = u;
    return info;
  }

  const LoweringContext c_;
  std::vector<UnitState> state_;
  std::vector<Slot> slot_;  // by parameter
  std::vector<std::int32_t> units_;
  std::int16_t micro_batch_ = 0;
  bool sync_ = true;
};

}  // namespace

std::unique_ptr<DialectHooks> make_ddp(const LoweringContext& c) { return std::make_unique<Ddp>(c); }

}  // namespace fsdp
