// The period is cut at the spans of the compute stream; what lies between them is charged to what else runs there,
// products on a second stream first, then an all-gather, a reduce-scatter, an all-reduce, a copy, the optimizer on the
// host; the rest is idle. So the parts sum to the period.
#include "simulator/analysis/breakdown.h"

#include <algorithm>
#include <vector>

namespace fsdp {

namespace {

using Intervals = std::vector<Span>;  // sorted, disjoint, not empty

Intervals merged(Intervals spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  Intervals out;
  for (const Span& s : spans) {
    if (s.end <= s.start) continue;
    if (!out.empty() && s.start <= out.back().end) out.back().end = std::max(out.back().end, s.end);
    else out.push_back(s);
  }
  return out;
}

double total(const Intervals& spans) {
  double sum = 0;
  for (const Span& s : spans) sum += s.end - s.start;
  return sum;
}

// What of `from` is not covered by `cover`.
Intervals minus(const Intervals& from, const Intervals& cover) {
  Intervals out;
  std::size_t c = 0;
  for (const Span& f : from) {
    double at = f.start;
    while (c < cover.size() && cover[c].end <= at) ++c;
    for (std::size_t i = c; i < cover.size() && cover[i].start < f.end; ++i) {
      if (cover[i].start > at) out.push_back({at, cover[i].start});
      at = std::max(at, cover[i].end);
    }
    if (at < f.end) out.push_back({at, f.end});
  }
  return out;
}

using Part = Seconds Breakdown::*;

// The part of the breakdown that an operation of the compute stream is.
Part part_of(Action action) {
  switch (action) {
    case Action::forward:
    case Action::backward:
    case Action::add_gradient:
    case Action::update_metrics: return &Breakdown::compute;
    case Action::recompute: return &Breakdown::recompute;
    case Action::all_gather:
    case Action::share_part:
    case Action::pull_part: return &Breakdown::exposed_all_gather;
    case Action::reduce_scatter:
    case Action::exchange_part: return &Breakdown::exposed_reduce_scatter;
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::tensor_barrier:
    case Action::reduce_largest:
    case Action::reduce_loss: return &Breakdown::exposed_all_reduce;
    case Action::clip_local_norm:
    case Action::clip_scale:
    case Action::optimizer:
    case Action::init_optimizer: return &Breakdown::optimizer;
    default: return &Breakdown::copies;
  }
}

Span clipped(const Span& s, const Span& window) {
  return {std::max(s.start, window.start), std::min(s.end, window.end)};
}

// While a part moves on the compute stream, another may be multiplied on the second one.
bool moves_part(Action action) { return action == Action::pull_part || action == Action::exchange_part; }

// `exposed`, where it is not null, gets the spans of what runs while the compute stream does not compute.
Breakdown charge(const Step& step, const Timeline& timeline, std::vector<ExposedSpan>* exposed) {
  Breakdown b;
  double end = 0;
  for (const Span& s : timeline.spans) end = std::max(end, s.end);
  const Span window{end - timeline.duration, end};
  constexpr int kOthers = 7, kFirstExposed = 2, kCopies = 5, kOptimizer = 6;
  constexpr Part kCharged[kOthers] = {&Breakdown::compute,
                                      &Breakdown::recompute,
                                      &Breakdown::exposed_all_gather,
                                      &Breakdown::exposed_reduce_scatter,
                                      &Breakdown::exposed_all_reduce,
                                      &Breakdown::copies,
                                      &Breakdown::optimizer};
  const auto number = [&kCharged](Part part) {
    const auto* const found = std::find(std::begin(kCharged), std::end(kCharged), part);
    return found == std::end(kCharged) ? kOthers : static_cast<int>(found - std::begin(kCharged));
  };
  Intervals busy, others[kOthers];
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const Span s = clipped(timeline.spans[i], window);
    if (op.action == Action::read_loss || s.end <= s.start) continue;
    if (op.host_only) {  // offloaded states are stepped by the host
      if (op.action == Action::optimizer) others[kOptimizer].push_back(s);
      continue;
    }
    const Part part = part_of(op.action);
    if (op.stream == Stream::compute && !moves_part(op.action)) {
      b.*part += Seconds(s.end - s.start);
      busy.push_back(s);
      if (exposed != nullptr && number(part) >= kFirstExposed && number(part) < kCopies) exposed->push_back({part, s});
      continue;
    }
    others[number(part) == kOthers ? kCopies : number(part)].push_back(s);
  }
  Intervals gaps = minus({window}, merged(std::move(busy)));
  for (int k = 0; k < kOthers; ++k) {
    Intervals rest = minus(gaps, merged(std::move(others[k])));
    b.*kCharged[k] += Seconds(total(gaps) - total(rest));
    if (exposed != nullptr && k >= kFirstExposed)
      for (const Span& s : minus(gaps, rest)) exposed->push_back({kCharged[k], s});
    gaps = std::move(rest);
  }
  b.idle = Seconds(total(gaps));
  return b;
}

}  // namespace

Breakdown where_time_goes(const Step& step, const Timeline& timeline) { return charge(step, timeline, nullptr); }

std::vector<ExposedSpan> exposed_spans(const Step& step, const Timeline& timeline) {
  std::vector<ExposedSpan> spans;
  (void)charge(step, timeline, &spans);
  std::stable_sort(spans.begin(), spans.end(),
                   [](const ExposedSpan& a, const ExposedSpan& b) { return a.span.start < b.span.start; });
  return spans;
}

}  // namespace fsdp
