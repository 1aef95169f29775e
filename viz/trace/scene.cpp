#include "viz/trace/scene.h"

#include <algorithm>
#include <cmath>

#include "simulator/analysis/memory_report.h"
#include "simulator/analysis/times.h"

namespace fsdp {
namespace {

constexpr double kNanoseconds = 1e9;
std::int64_t rounded(double seconds) { return std::llround(seconds * kNanoseconds); }

// A copy, or a collective, belongs to the phase in which the host issues it.
std::vector<std::string> phases_of(const Step& step) {
  std::vector<std::string> phases;
  phases.reserve(step.ops.size());
  std::string now = "forward";
  for (const Operation& op : step.ops) {
    switch (op.action) {
      case Action::load_batch:
      case Action::forward: now = "forward"; break;
      case Action::recompute:
      case Action::backward: now = "backward"; break;
      case Action::clip_local_norm:
      case Action::clip_scale:
      case Action::fetch_state:
      case Action::optimizer: now = "optimizer"; break;
      default: break;
    }
    phases.push_back(now == "optimizer" ? now : now + ", micro-batch " + std::to_string(op.micro_batch + 1));
  }
  return phases;
}

// The earliest moment of a timeline.
std::int64_t earliest(const TraceOf& of, const Timeline& timeline) {
  std::int64_t first = 0;
  for (const Span& s : timeline.spans) first = std::min(first, rounded(s.start));
  for (std::size_t i = 0; i < std::min(timeline.issued.size(), std::size_t{1}); ++i)
    first = std::min(first, rounded(timeline.issued[i] - (of.demands.empty() ? 0 : of.demands[i].host.count())));
  return first;
}

}  // namespace

TraceScene::TraceScene(const TraceOf& t)
    : of(t),
      step(t.program.steady_step),
      cut(trace_cut(step)),
      units(units_of_operations(step, t.plan, t.model)),
      phases(phases_of(step)) {
  names.reserve(step.ops.size());
  for (std::size_t i = 0; i < step.ops.size(); ++i)
    names.push_back(draws(i) ? describe(step.ops[i], t.program, t.plan, t.model) : std::string());
  if (t.prediction != nullptr) {
    const std::vector<MemoryPart> parts = parts_of_buffers(t.program, t.model);
    std::vector<std::int64_t> part_of;
    for (const MemoryPart part : parts) part_of.push_back(static_cast<std::int64_t>(part));
    for (int k = 0; k < kMemoryParts; ++k)
      part_names.push_back("memory: " + std::string(name(static_cast<MemoryPart>(k))));
    walk_memory(
        t.program, part_of, kMemoryParts, [](const MemoryStack&) {},
        [this](std::size_t moment, const MemoryStack& now) {
          (moment % 2 == 0 ? part_highest : part_after).push_back(now);
        });
    zero = std::min(zero, earliest(t, t.prediction->timeline));
  }
  if (t.measurement != nullptr)
    for (const RankMeasurement& rank : t.measurement->ranks) zero = std::min(zero, earliest(t, rank.timeline));
}

std::int64_t TraceScene::at(double seconds) const { return rounded(seconds) - zero; }

}  // namespace fsdp
