// Chrome trace events (the "JSON Array Format" with a traceEvents object; opens in ui.perfetto.dev and
// chrome://tracing): "X" complete events in microseconds, "M" names of processes and threads, "C" counters.
#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "models/units.h"
#include "viz/viz.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kMicroseconds = 1e6;
constexpr std::int64_t kMostDrawn = 65'536;  // operations of a step; a trace of so many has about 25 MB

struct Scene {  // what all processes of one trace share
  const Step& step;
  const Program& program;
  std::optional<TraceCut> cut;
  std::vector<std::string> names;  // describe() of each operation that is drawn

  [[nodiscard]] bool draws(const Operation& op) const {
    return !cut || op.micro_batch < cut->first || op.micro_batch >= cut->all - cut->last;
  }
};

std::vector<std::int64_t> operations_by_micro_batch(const Step& step) {
  std::vector<std::int64_t> counts;
  for (const Operation& op : step.ops) {
    const auto m = static_cast<std::size_t>(std::max<std::int16_t>(op.micro_batch, 0));
    if (m >= counts.size()) counts.resize(m + 1, 0);
    ++counts[m];
  }
  return counts;
}

void name_process(Json& events, int pid, const std::string& name) {
  events.push_back({{"ph", "M"}, {"pid", pid}, {"tid", 0}, {"name", "process_name"}, {"args", {{"name", name}}}});
  for (int s = 0; s < kStreams; ++s) {
    const std::string stream(fsdp::name(static_cast<Stream>(s)));
    events.push_back(
        {{"ph", "M"}, {"pid", pid}, {"tid", s}, {"name", "thread_name"}, {"args", {{"name", stream + " stream"}}}});
    events.push_back(
        {{"ph", "M"}, {"pid", pid}, {"tid", s}, {"name", "thread_sort_index"}, {"args", {{"sort_index", s}}}});
  }
}

double first_start(const Timeline& timeline) {
  double first = 0;
  for (const Span& s : timeline.spans) first = std::min(first, s.start);
  return first;
}

// Operations of one stream never overlap; starts are clamped to the end before, so that rounding cannot make them seem
// to.
void add_spans(Json& events, int pid, const Scene& scene, const Timeline& timeline) {
  const double zero = first_start(timeline);
  std::array<double, kStreams> busy_until{};
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < std::min(scene.step.ops.size(), timeline.spans.size()); ++i) {
    if (!scene.step.ops[i].host_only && scene.draws(scene.step.ops[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return timeline.spans[a].start < timeline.spans[b].start; });
  for (const std::size_t i : order) {
    const Operation& op = scene.step.ops[i];
    const auto stream = static_cast<std::size_t>(op.stream);
    const double start = std::max((timeline.spans[i].start - zero) * kMicroseconds, busy_until[stream]);
    const double end = std::max(start, (timeline.spans[i].end - zero) * kMicroseconds);
    busy_until[stream] = end;
    events.push_back({{"ph", "X"},
                      {"pid", pid},
                      {"tid", static_cast<int>(op.stream)},
                      {"name", scene.names[i]},
                      {"cat", std::string(name(op.action))},
                      {"ts", start},
                      {"dur", end - start},
                      {"args", {{"op", i}, {"micro_batch", op.micro_batch}}}});
  }
}

// Memory moves at host order; it is drawn where the compute stream starts the next operation that the host issued.
void add_memory(Json& events, int pid, const Scene& scene, const Timeline& timeline, const MemoryTimeline& memory) {
  const double zero = first_start(timeline);
  const std::size_t n = std::min({scene.step.ops.size(), timeline.spans.size(), memory.points.size()});
  std::int64_t highest = memory.start;
  for (std::size_t i = 0; i < n; ++i) {
    highest = std::max(highest, memory.points[i].at);
    const Operation& op = scene.step.ops[i];
    if (op.host_only || op.stream != Stream::compute || !scene.draws(op)) continue;
    events.push_back({{"ph", "C"},
                      {"pid", pid},
                      {"tid", 0},
                      {"name", "allocated bytes"},
                      {"ts", (timeline.spans[i].start - zero) * kMicroseconds},
                      {"args", {{"allocated", highest}}}});
    highest = memory.points[i].after;
  }
}

// A mark where operations are missing.
void add_gap(Json& events, int pid, const Scene& scene, const Timeline& timeline) {
  if (!scene.cut) return;
  const std::size_t n = std::min(scene.step.ops.size(), timeline.spans.size());
  for (std::size_t i = 0; i < n; ++i) {
    if (scene.draws(scene.step.ops[i])) continue;
    events.push_back({{"ph", "i"},
                      {"s", "p"},
                      {"pid", pid},
                      {"tid", 0},
                      {"name", "cut: only " + describe(*scene.cut) + " are drawn"},
                      {"ts", (timeline.spans[i].start - first_start(timeline)) * kMicroseconds}});
    return;
  }
}

}  // namespace

std::optional<TraceCut> trace_cut(const Step& steady) {
  if (static_cast<std::int64_t>(steady.ops.size()) <= kMostDrawn) return std::nullopt;
  const std::vector<std::int64_t> counts = operations_by_micro_batch(steady);
  TraceCut cut;
  cut.all = static_cast<std::int64_t>(counts.size());
  std::int64_t drawn = 0;
  for (std::size_t m = 0; m < counts.size() / 2; ++m) {
    drawn += counts[m] + counts[counts.size() - 1 - m];
    if (m > 0 && drawn > kMostDrawn) break;
    ++cut.first, ++cut.last;
  }
  if (cut.first == 0 || cut.first + cut.last >= cut.all) return std::nullopt;
  return cut;
}

std::string describe(const TraceCut& cut) {
  const auto range = [](std::int64_t from, std::int64_t to) {
    return from == to ? with_commas(from) : with_commas(from) + " to " + with_commas(to);
  };
  return "micro-batches " + range(1, cut.first) + " and " + range(cut.all - cut.last + 1, cut.all) + " of " +
         with_commas(cut.all);
}

std::string trace_json(const Step& steady, const Program& program, const ShardingPlan& plan, const ModelGraph& model,
                       const Prediction* prediction, const Measurement* measurement) {
  Scene scene{steady, program, trace_cut(steady), {}};
  for (const Operation& op : steady.ops)
    scene.names.push_back(scene.draws(op) ? describe(op, program, plan, model) : std::string());
  Json events = Json::array();
  int pid = 1;
  if (prediction != nullptr) {
    name_process(events, pid, "predicted");
    add_spans(events, pid, scene, prediction->timeline);
    add_memory(events, pid, scene, prediction->timeline, prediction->memory.steady_step);
    add_gap(events, pid, scene, prediction->timeline);
    ++pid;
  }
  if (measurement != nullptr) {
    for (const RankMeasurement& rank : measurement->ranks) {
      name_process(events, pid, "measured rank " + std::to_string(rank.rank));
      add_spans(events, pid, scene, rank.timeline);
      add_memory(events, pid, scene, rank.timeline, rank.steady_step);
      add_gap(events, pid, scene, rank.timeline);
      ++pid;
    }
  }
  const Json document = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp
