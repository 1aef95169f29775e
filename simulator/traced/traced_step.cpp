#include "simulator/traced/traced_step.h"

#include <algorithm>

namespace fsdp {
namespace {

// Spans that neither overlap nor touch, by start.
std::vector<Span> united(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  std::vector<Span> all;
  for (const Span& s : spans) {
    if (s.end <= s.start) continue;
    if (all.empty() || s.start > all.back().end) all.push_back(s);
    else all.back().end = std::max(all.back().end, s.end);
  }
  return all;
}

double seconds_of(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& s : spans) sum += s.end - s.start;
  return sum;
}

// Seconds of `span` in which none of `busy` (united) runs.
double outside(const Span& span, const std::vector<Span>& busy) {
  double left = std::max(0.0, span.end - span.start);
  auto it =
      std::upper_bound(busy.begin(), busy.end(), span.start, [](double start, const Span& s) { return start < s.end; });
  for (; it != busy.end() && it->start < span.end; ++it)
    left -= std::min(it->end, span.end) - std::max(it->start, span.start);
  return std::max(0.0, left);
}

}  // namespace

std::string_view words(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return "all-gather";
    case CollectiveKind::reduce_scatter: return "reduce-scatter";
    case CollectiveKind::all_reduce: break;
  }
  return "all-reduce";
}

void finish(TracedStep& step) {
  std::stable_sort(step.collectives.begin(), step.collectives.end(),
                   [](const Collective& a, const Collective& b) { return a.span.start < b.span.start; });
  step.compute = united(std::move(step.compute));
  step.busy = seconds_of(step.compute);
  for (Collective& c : step.collectives) c.exposed = outside(c.span, step.compute);
  std::vector<Span> covered = step.compute;
  double before = step.busy;
  for (int k = 0; k < kCollectiveKinds; ++k) {
    for (const Collective& c : step.collectives)
      if (static_cast<int>(c.kind) == k) covered.push_back(c.span);
    covered = united(std::move(covered));
    const double now = seconds_of(covered);
    step.exposed[static_cast<std::size_t>(k)] = now - before;
    before = now;
  }
  step.idle = std::max(0.0, step.duration - before);
}

}  // namespace fsdp
