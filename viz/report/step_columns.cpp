// The columns that the timeline and the memory of a step are drawn from.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "models/index.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/critical_path.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"
#include "viz/report.h"
#include "viz/report/memory_walk.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
using Column = std::vector<std::int64_t>;

constexpr double kNanoseconds = 1e9;
std::int64_t nanoseconds(double seconds) { return std::llround(seconds * kNanoseconds); }

// What an operation is drawn as.
enum class DrawnAs : std::uint8_t {
  forward,
  backward,
  recompute,
  all_gather,
  reduce_scatter,
  all_reduce,
  copy,
  optimizer,
  host
};
constexpr const char* kDrawnAs[] = {"forward",    "backward", "recompute", "all-gather", "reduce-scatter",
                                    "all-reduce", "copy",     "optimizer", "host"};

DrawnAs drawn_as(const Operation& op) {
  switch (op.action) {
    case Action::forward: return DrawnAs::forward;
    case Action::backward:
    case Action::add_gradient: return DrawnAs::backward;
    case Action::recompute: return DrawnAs::recompute;
    case Action::all_gather: return DrawnAs::all_gather;
    case Action::reduce_scatter: return DrawnAs::reduce_scatter;
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::reduce_loss: return DrawnAs::all_reduce;
    case Action::clip_local_norm:
    case Action::clip_scale:
    case Action::init_optimizer:
    case Action::optimizer: return DrawnAs::optimizer;
    case Action::zero_gradients:
    case Action::read_loss:
    case Action::host_wait: return DrawnAs::host;
    default: return op.host_only ? DrawnAs::host : DrawnAs::copy;
  }
}

std::string label_of(const Operation& op, const StepPicture& p) {
  const std::string text = describe(op, p.program, p.plan, p.model);
  return text.substr(0, text.rfind(" mb "));
}

// A table of distinct rows, and the row of each operation.
template <class Row>
class Distinct {
 public:
  void add(const Row& row) {
    const auto [it, fresh] = number_.try_emplace(row, static_cast<std::int64_t>(rows_.size()));
    if (fresh) rows_.push_back(row);
    of_.push_back(it->second);
  }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  [[nodiscard]] const Column& of() const { return of_; }

 private:
  std::map<Row, std::int64_t> number_;
  std::vector<Row> rows_;
  Column of_;
};

Column deltas(Column values) {
  std::adjacent_difference(values.begin(), values.end(), values.begin());
  return values;
}

// By operation, what its arguments hold: buffers that it reads and writes, each counted once per argument.
std::int64_t bytes_touched(const Operation& op, const StepPicture& p) {
  std::int64_t bytes = 0;
  for (const Arg& a : p.program.steady_step.args_of(op))
    if (a.buffer >= 0) bytes += a.bytes >= 0 ? a.bytes : p.program.buffers[at(a.buffer)].bytes;
  return bytes;
}

// Who runs where and is called what. An operation's label says nothing of the micro-batch, so that repeated
// micro-batches share theirs.
void add_labels(Json& out, const StepPicture& p) {
  constexpr std::int64_t kHostLane = kStreams;
  using Label = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>;  // text, lane, drawn as, unit
  const Step& step = p.program.steady_step;
  const std::vector<std::int32_t> units = units_of_operations(step, p.plan, p.model);
  Distinct<Label> labels;
  Column micro_batches;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const std::int64_t lane = runs_on_a_stream(op) ? static_cast<std::int64_t>(op.stream) : kHostLane;
    labels.add({label_of(op, p), lane, static_cast<std::int64_t>(drawn_as(op)), units[i]});
    micro_batches.push_back(op.micro_batch);
  }
  Json texts = Json::array();
  Column lanes, kinds, unit_of;
  for (const auto& [text, lane, kind, unit] : labels.rows()) {
    texts.push_back(text);
    lanes.push_back(lane), kinds.push_back(kind), unit_of.push_back(unit);
  }
  Json lane_names = Json::array();
  for (int s = 0; s < kStreams; ++s) lane_names.push_back(std::string(name(static_cast<Stream>(s))));
  lane_names.push_back("host");
  out["lanes"] = std::move(lane_names);
  out["kinds"] = kDrawnAs;
  out["label_text"] = std::move(texts);
  out["label_lane"] = lanes;
  out["label_kind"] = kinds;
  out["label_unit"] = unit_of;
  out["label"] = labels.of();
  out["micro_batch"] = micro_batches;
}

void add_times(Json& out, const StepPicture& p) {
  const Step& step = p.program.steady_step;
  Column start, duration, issued;
  for (const Span& s : p.timeline.spans) {
    start.push_back(nanoseconds(s.start));
    duration.push_back(nanoseconds(s.end) - nanoseconds(s.start));
  }
  for (const double t : p.timeline.issued) issued.push_back(nanoseconds(t));
  out["step_ns"] = nanoseconds(p.timeline.duration);
  out["start_ns_d"] = deltas(std::move(start));
  out["duration_ns"] = duration;
  out["issued_ns_d"] = deltas(std::move(issued));
  const std::vector<std::int32_t> chain = critical_chain(step, p.timeline);
  out["critical_d"] = deltas(Column(chain.begin(), chain.end()));
  Column part, from, length;
  for (const ExposedSpan& e : exposed_spans(step, p.timeline)) {
    const auto row = std::find_if(kBreakdownParts.begin(), kBreakdownParts.end(),
                                  [&e](const BreakdownPart& b) { return b.member == e.part; });
    part.push_back(row - kBreakdownParts.begin());
    from.push_back(nanoseconds(e.span.start));
    length.push_back(nanoseconds(e.span.end) - nanoseconds(e.span.start));
  }
  Json parts = Json::array();
  for (const BreakdownPart& b : kBreakdownParts) parts.push_back(std::string(b.label));
  out["parts"] = std::move(parts);
  out["exposed_part"] = part;
  out["exposed_start_ns_d"] = deltas(std::move(from));
  out["exposed_ns"] = length;
}

// waits: of each operation how many, then each as the distance back to the operation that is waited for (waits for the
// step before are left out).
void add_demands(Json& out, const StepPicture& p) {
  const Step& step = p.program.steady_step;
  Column waits, back;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    std::int64_t count = 0;
    for (const std::int32_t w : step.waits_of(step.ops[i])) {
      if (w < 0) continue;
      ++count;
      back.push_back(static_cast<std::int64_t>(i) - w);
    }
    waits.push_back(count);
  }
  out["waits"] = waits;
  out["waits_back"] = back;
  if (p.demands.empty()) return;
  using Demanded = std::tuple<double, std::int64_t, std::int64_t, std::int64_t>;  // flops, bytes, alone, host
  Distinct<Demanded> demands;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Demand& d = p.demands[i];
    demands.add(
        {d.flops.count(), bytes_touched(step.ops[i], p), nanoseconds(d.alone.count()), nanoseconds(d.host.count())});
  }
  Json flops = Json::array();
  Column bytes, alone, host;
  for (const auto& [f, b, a, h] : demands.rows()) {
    flops.push_back(f);
    bytes.push_back(b), alone.push_back(a), host.push_back(h);
  }
  out["demand_flops"] = std::move(flops);
  out["demand_bytes"] = bytes;
  out["demand_alone_ns"] = alone;
  out["demand_host_ns"] = host;
  out["demand"] = demands.of();
}

void add_memory(Json& out, const StepPicture& p) {
  const std::vector<MemoryPart> parts = parts_of_buffers(p.program, p.model);
  std::vector<std::int64_t> part_of;
  for (const MemoryPart part : parts) part_of.push_back(static_cast<std::int64_t>(part));
  Column moments, changed, bytes;
  MemoryStack start, last;
  walk_memory(
      p, part_of, kMemoryParts, [&](const MemoryStack& s) { start = last = s; },
      [&](std::size_t moment, const MemoryStack& now) {
        for (std::size_t k = 0; k < now.size(); ++k) {
          if (now[k] == last[k]) continue;
          moments.push_back(static_cast<std::int64_t>(moment));
          changed.push_back(static_cast<std::int64_t>(k));
          bytes.push_back(now[k] - last[k]);
        }
        last = now;
      });
  Json names = Json::array();
  for (int k = 0; k < kMemoryParts; ++k) names.push_back(std::string(name(static_cast<MemoryPart>(k))));
  out["memory_parts"] = std::move(names);
  out["memory_start_bytes"] = start;
  out["memory_moment_d"] = deltas(std::move(moments));
  out["memory_part"] = changed;
  out["memory_bytes"] = bytes;
  if (p.measured == nullptr) return;
  Column counted;  // at 0, after 0, at 1, ...
  for (const MemoryPoint& point : p.measured->points) {
    counted.push_back(point.at);
    counted.push_back(point.after);
  }
  out["measured_bytes_d"] = deltas(std::move(counted));
}

}  // namespace

ReportStep report_step(std::string name, const StepPicture& p) {
  Json out = Json::object();
  add_labels(out, p);
  add_times(out, p);
  add_demands(out, p);
  add_memory(out, p);
  return {std::move(name), out.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace fsdp
