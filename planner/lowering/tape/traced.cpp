#include "planner/lowering/tape/traced.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/graph/byte_total.h"
#include "models/index.h"
#include "models/trace/model_file.h"
#include "planner/lowering/tape/traced_lives.h"

namespace fsdp {
namespace {

class Replaying {
 public:
  Replaying(const ModelGraph& model, const Implementation& impl, const Workload& work)
      : model_(model), trace_(model.trace), impl_(impl), work_(work), total_(work) {
    const std::size_t n = model.ops.size();
    region_of_.assign(n, kNone), kept_.assign(n, 0);
    tape_.forward_of.resize(n), tape_.backward_begin.resize(n), tape_.backward_end.resize(n);
    tape_.recomputed_at.assign(n, kNone), tape_.weight_first.assign(n, 0);
  }

  void add_region(const Module& m, CheckpointPolicy policy) {
    const auto id = static_cast<std::int32_t>(tape_.regions.size());
    Region r{m.op_begin, m.op_end, m.op_begin - 1, kNone, impl_.recompute_stops_early};
    std::int64_t matmuls = 0;
    for (std::int32_t i = r.begin; i < r.end; ++i) {
      const Op& op = model_.ops[at(i)];
      region_of_[at(i)] = id;
      if (kind(i).kept_until != kNone) r.needed_by = i;
      if (op.kind == OpKind::linear && op.params.size() == 1) ++matmuls;
      kept_[at(i)] =
          policy == CheckpointPolicy::selective_op && impl_.keeps_selectively && impl_.keeps_selectively(op, matmuls);
    }
    if (r.runs()) {
      r.last = !r.stops_early ? r.end - 1 : kind(r.needed_by).kept_until > 0 ? r.needed_by : r.needed_by - 1;
      tape_.recomputed_at[at(r.needed_by)] = id;
    }
    tape_.regions.push_back(r);
  }

  Tape build() {
    lives_ = traced_lives(trace_, tape_.regions, region_of_, kept_);
    first_.assign(lives_.made_by.size(), kNone), again_ = first_;
    const auto n = static_cast<std::int32_t>(model_.ops.size());
    std::size_t gradients = 0;
    for (const TracedOp& op : trace_.ops) gradients += passes(op).backward ? passes(op).backward->makes.size() : 0;
    gradients_.assign(gradients, kNone);
    released_at_end_.resize(at(n));
    for (std::size_t v = 0; v < lives_.first.size(); ++v)
      if (lives_.first[v].at_its_end) released_at_end_[at(lives_.first[v].last_backward)].push_back(v);
    load_batch();
    for (std::int32_t i = 0; i < n; ++i) {
      tape_.forward_of[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      forward(i, Action::forward);
    }
    for (std::int32_t i = n - 1; i >= 0; --i) {
      tape_.backward_begin[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
      if (const std::int32_t r = tape_.recomputed_at[at(i)]; r != kNone) recompute(tape_.regions[at(r)]);
      if (kind(i).backward) backward(i);
      for (const std::size_t v : released_at_end_[at(i)]) free(first_[v]);
      tape_.backward_end[at(i)] = static_cast<std::uint32_t>(tape_.ops.size());
    }
    for (std::size_t v = 0; v < alive_.size(); ++v) free(static_cast<std::int32_t>(v));
    lay_out();
    tape_.region_of = std::move(region_of_);
    return std::move(tape_);
  }

 private:
  const TracedKind& passes(const TracedOp& op) const { return trace_.kinds[at(op.kind)]; }
  const TracedKind& kind(std::int32_t i) const { return passes(trace_.ops[at(i)]); }
  bool is_alive(std::int32_t value) const { return value >= 0 && alive_[at(value)] != 0; }

  std::int32_t appear(Scaled bytes, DType dtype, BufferKind kind) {
    const std::int64_t size = bytes.at(work_.sequences);
    total_.add(size);
    tape_.values.push_back({size, kind, dtype, kNone});
    alive_.push_back(1);
    return static_cast<std::int32_t>(tape_.values.size()) - 1;
  }
  std::int32_t appear_inside(const TracedValue& made, BufferKind kind) {
    const std::int32_t value = appear(made.bytes, made.dtype, kind);
    // What went before this appears is no longer at the op's end.
    auto& [inner, frees, late] = changes_.back();
    for (const std::int32_t f : std::exchange(frees, {})) inner.push_back(~f);
    inner.push_back(value);
    return value;
  }
  // After all that the last op has made, for now.
  void free(std::int32_t value) {
    if (!is_alive(value)) return;
    alive_[at(value)] = 0;
    changes_.back().frees.push_back(value);
  }

  void begin(Action action, std::int32_t graph_op) {
    TapeOp op;
    op.action = action;
    op.recomputed = action == Action::recompute;
    op.graph_op = op.turn = graph_op;
    op.args.begin = static_cast<std::uint32_t>(tape_.args.size());
    tape_.ops.push_back(op);
    changes_.emplace_back();
  }
  void arg(TapeArg::Kind kind, std::int32_t id, Access access) {
    tape_.args.push_back({kind, access, kNone, id});
    ++tape_.ops.back().args.count;
  }
  void value_arg(std::int32_t value, Access access) {
    if (is_alive(value)) arg(TapeArg::Kind::value, value, access);
  }
  void parameters(std::int32_t i) {
    for (const std::int32_t p : model_.ops[at(i)].params) arg(TapeArg::Kind::parameter, p, Access::read);
  }

  void load_batch() {
    begin(Action::load_batch, kNone);
    for (const Scaled& bytes : trace_.batch) {
      const std::int32_t value = appear(bytes, DType::i64, BufferKind::batch);
      changes_.back().inner.push_back(value);
      value_arg(value, Access::write);
    }
    arg(TapeArg::Kind::loss, kNone, Access::write);
  }

  // The copy that op i sees when it runs: inside of a recomputed module that one's.
  std::int32_t& seen(std::int32_t i, std::int32_t value, bool again) {
    const std::int32_t maker = lives_.made_by[at(value)];
    const bool inside =
        again && region_of_[at(i)] != kNone && region_of_[at(maker)] == region_of_[at(i)] && kept_[at(maker)] == 0;
    return inside ? again_[at(value)] : first_[at(value)];
  }

  // The op_begin of the module that has returned last when so many of those that end with op i have.
  std::int32_t scope_of(std::int32_t i, std::int32_t ended) const {
    std::int32_t m = model_.ops[at(i)].module, scope = i;
    for (; m >= 0 && ended > 0; m = model_.modules[at(m)].parent) {
      if (model_.modules[at(m)].container) continue;
      scope = model_.modules[at(m)].op_begin;
      --ended;
    }
    return scope;
  }

  void forward(std::int32_t i, Action action) {
    const bool again = action == Action::recompute;
    const TracedOp& op = trace_.ops[at(i)];
    const TracedKind& k = kind(i);
    begin(action, i);
    for (std::int32_t r = 0; r < k.reads; ++r) value_arg(seen(i, op.values[at(r)], again), Access::read);
    parameters(i);
    const bool stops = again && tape_.regions[at(region_of_[at(i)])].stops_early &&
                       tape_.regions[at(region_of_[at(i)])].needed_by == i;
    const std::size_t events = stops ? static_cast<std::size_t>(k.kept_until) : k.forward.events.size();
    for (std::size_t e = 0; e < events; ++e) change(i, k.forward.events[e], again);
    for (std::size_t m = 0; m < k.forward.makes.size(); ++m)
      value_arg(seen(i, op.first_value + static_cast<std::int32_t>(m), again), Access::write);
    if (i + 1 == static_cast<std::int32_t>(model_.ops.size())) arg(TapeArg::Kind::loss, kNone, Access::accumulate);
  }

  void change(std::int32_t i, const TracedEvent& e, bool again) {
    const std::int32_t value = named_value(trace_.ops[at(i)], e);
    const TracedKind& maker = kind(lives_.made_by[at(value)]);
    if (e.what == TracedEvent::What::appears) {
      const TracedLife& life = again ? lives_.again[at(value)] : lives_.first[at(value)];
      seen(i, value, again) =
          appear_inside(maker.forward.makes[at(e.index)],
                        life.last_backward != kNone && !life.at_its_end ? BufferKind::saved : BufferKind::activation);
      return;
    }
    const bool inside = region_of_[at(lives_.made_by[at(value)])] == region_of_[at(i)];
    if (again && !inside) return;  // its first copy is the checkpoint's
    const TracedLife& life =
        again && kept_[at(lives_.made_by[at(value)])] == 0 ? lives_.again[at(value)] : lives_.first[at(value)];
    if (life.last_backward != kNone) return;
    const std::int32_t copy = seen(i, value, again);
    if (e.ended == 0 || !is_alive(copy)) return free(copy);
    alive_[at(copy)] = 0;
    tape_.values[at(copy)].scope = scope_of(i, e.ended);
    changes_.back().late.push_back(copy);
  }

  // What Python held goes as the recomputation ends.
  void recompute(const Region& r) {
    const std::size_t from = tape_.ops.size();
    for (std::int32_t i = r.begin; i <= r.last; ++i)
      if (kept_[at(i)] == 0) forward(i, Action::recompute);
    if (tape_.ops.size() == from) return;
    for (std::int32_t i = r.begin; i <= r.last; ++i) {
      const TracedOp& op = trace_.ops[at(i)];
      for (std::size_t m = 0; m < kind(i).forward.makes.size(); ++m) {
        const std::size_t value = at(op.first_value) + m;
        if (lives_.again[value].last_backward == kNone) free(again_[value]);
      }
    }
  }

  void backward(std::int32_t i) {
    const TracedOp& op = trace_.ops[at(i)];
    const TracedPass& pass = *kind(i).backward;
    begin(Action::backward, i);
    for (const std::int32_t g : op.gradient_values) value_arg(gradients_[at(g)], Access::read);
    for (const TracedEvent& e : pass.events)
      if (e.of_forward) value_arg(seen(i, named_value(op, e), true), Access::read);
    parameters(i);
    for (const TracedEvent& e : pass.events) {
      if (e.of_forward) {
        const std::int32_t value = named_value(op, e);
        std::int32_t& copy = seen(i, value, true);
        const TracedLife& life = &copy == &again_[at(value)] ? lives_.again[at(value)] : lives_.first[at(value)];
        if (life.last_backward == i && !life.at_its_end) free(copy);
        continue;
      }
      const std::int32_t id = e.is_own ? op.first_gradient_value + e.index : op.gradient_values[at(e.index)];
      if (e.what == TracedEvent::What::appears)
        gradients_[at(id)] = appear_inside(pass.makes[at(e.index)], BufferKind::activation_gradient);
      else free(gradients_[at(id)]);
    }
    for (std::size_t m = 0; m < pass.makes.size(); ++m)
      value_arg(gradients_[at(op.first_gradient_value) + m], Access::write);
    for (const std::int32_t p : op.gradients) arg(TapeArg::Kind::gradient, p, Access::write);
  }

  // From a list per op to the tape's flat ones.
  void lay_out() {
    const auto append = [](std::vector<std::int32_t>& to, const std::vector<std::int32_t>& more) {
      const Slice slice{static_cast<std::uint32_t>(to.size()), static_cast<std::uint32_t>(more.size())};
      to.insert(to.end(), more.begin(), more.end());
      return slice;
    };
    for (std::size_t o = 0; o < tape_.ops.size(); ++o) {
      Changes& c = changes_[o];
      std::stable_sort(c.late.begin(), c.late.end(), [&](std::int32_t a, std::int32_t b) {
        return tape_.values[at(a)].scope > tape_.values[at(b)].scope;  // inner modules return first
      });
      tape_.ops[o].inner = append(tape_.inner, c.inner);
      tape_.ops[o].frees = append(tape_.frees, c.frees);
      tape_.ops[o].late_frees = append(tape_.late_frees, c.late);
    }
  }

  struct Changes {  // inner: v appears, ~v goes
    std::vector<std::int32_t> inner, frees, late;
  };

  const ModelGraph& model_;
  const Trace& trace_;
  const Implementation& impl_;
  const Workload work_;
  ByteTotal total_;
  std::vector<std::int32_t> region_of_;  // by op
  std::vector<char> kept_;               // by op: a selective checkpoint keeps its results
  TracedLives lives_;
  std::vector<std::int32_t> first_, again_, gradients_;    // by value of the trace: of the tape
  std::vector<std::vector<std::size_t>> released_at_end_;  // by op
  std::vector<char> alive_;                                // by value of the tape
  std::vector<Changes> changes_;                           // by tape op
  Tape tape_;
};

}  // namespace

Tape traced_tape(const ModelGraph& model, const Implementation& impl, const Workload& work,
                 const std::vector<std::int32_t>& checkpointed, CheckpointPolicy policy) {
  require_traced(model, work);
  (void)facts(impl, model.ops.front(), work);  // refuses implementations of the program's own models
  Replaying replaying(model, impl, work);
  for (const std::int32_t id : checkpointed) replaying.add_region(model.modules[at(id)], policy);
  return replaying.build();
}

}  // namespace fsdp
