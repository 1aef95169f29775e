// The columns that the timeline and the memory of a step are drawn from.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/index.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/critical_path.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"
#include "viz/drawn_as.h"
#include "viz/memory_walk.h"
#include "viz/report.h"
#include "viz/report/json_columns.h"
#include "viz/report/labels.h"
#include "viz/report/shapes.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

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

// By operation, what its arguments hold: buffers that it reads and writes, each counted once per argument.
std::int64_t bytes_touched(const Operation& op, const StepPicture& p) {
  std::int64_t bytes = 0;
  for (const Arg& a : p.program.steady_step.args_of(op))
    if (a.buffer >= 0) bytes += a.bytes >= 0 ? a.bytes : p.program.buffers[at(a.buffer)].bytes;
  return bytes;
}

// All of an operation that its label depends on. Repeated micro-batches of one size share theirs.
using Labelled = std::tuple<Action, Stream, bool, std::int32_t, std::int32_t, std::int64_t>;
Labelled labelled(const Operation& op, const ShardingPlan& plan) {
  const std::size_t mb = op.micro_batch < 0 ? 0 : static_cast<std::size_t>(op.micro_batch);
  const std::int64_t sequences = mb < plan.micro_batches.size() ? plan.micro_batches[mb] : 0;
  return {op.action, op.stream, op.host_only, op.unit, op.graph_op, op.graph_op >= 0 ? sequences : 0};
}

// Who runs where and is called what.
void add_labels(JsonColumns& out, const StepPicture& p) {
  const std::int64_t host_lane = streams_of(p.program.steady_step);
  const Step& step = p.program.steady_step;
  const std::vector<std::int32_t> units = units_of_operations(step, p.plan, p.model);
  std::map<Labelled, std::int64_t> known;
  Labels labels;
  labels.of.reserve(step.ops.size());
  labels.micro_batches.reserve(step.ops.size());
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const auto [it, fresh] = known.try_emplace(labelled(op, p.plan), labels.count());
    labels.of.push_back(it->second);
    labels.micro_batches.push_back(op.micro_batch);
    if (fresh)
      labels.rows.push_back({label_of(op, p), shape_text(op, p),
                             runs_on_a_stream(op) ? static_cast<std::int64_t>(op.stream) : host_lane,
                             drawn_as(op.action, op.host_only), units[i], op.comm});
  }
  labels.write(out, host_lane);
}

void add_times(JsonColumns& out, const StepPicture& p) {
  const Step& step = p.program.steady_step;
  Column start, duration, issued;
  for (const Span& s : p.timeline.spans) {
    start.push_back(nanoseconds(s.start));
    duration.push_back(nanoseconds(s.end) - nanoseconds(s.start));
  }
  for (const double t : p.timeline.issued) issued.push_back(nanoseconds(t));
  out.add("step_ns", nanoseconds(p.timeline.duration));
  out.add("start_ns_d", deltas(std::move(start)));
  out.add("duration_ns", duration);
  out.add("issued_ns_d", deltas(std::move(issued)));
  const std::vector<std::int32_t> chain = critical_chain(step, p.timeline);
  out.add("critical_d", deltas(Column(chain.begin(), chain.end())));
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
  out.add("parts", parts);
  out.add("exposed_part", part);
  out.add("exposed_start_ns_d", deltas(std::move(from)));
  out.add("exposed_ns", length);
}

// waits: of each operation how many, then each as the distance back to the operation that is waited for (waits for the
// step before are left out).
void add_demands(JsonColumns& out, const StepPicture& p) {
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
  out.add("waits", waits);
  out.add("waits_back", back);
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
  out.add("demand_flops", flops);
  out.add("demand_bytes", bytes);
  out.add("demand_alone_ns", alone);
  out.add("demand_host_ns", host);
  out.add("demand", demands.of());
}

void add_memory(JsonColumns& out, const StepPicture& p) {
  const std::vector<MemoryPart> parts = parts_of_buffers(p.program, p.model);
  std::vector<std::int64_t> part_of;
  for (const MemoryPart part : parts) part_of.push_back(static_cast<std::int64_t>(part));
  Column moments, changed, bytes;
  MemoryStack start, last;
  walk_memory(
      p.program, part_of, kMemoryParts, [&](const MemoryStack& s) { start = last = s; },
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
  out.add("memory_parts", names);
  out.add("memory_start_bytes", start);
  out.add("memory_moment_d", deltas(std::move(moments)));
  out.add("memory_part", changed);
  out.add("memory_bytes", bytes);
  if (p.measured == nullptr) return;
  Column counted;  // at 0, after 0, at 1, ...
  for (const MemoryPoint& point : p.measured->points) {
    counted.push_back(point.at);
    counted.push_back(point.after);
  }
  out.add("measured_bytes_d", deltas(std::move(counted)));
}

}  // namespace

ReportStep report_step(std::string name, const StepPicture& p) {
  JsonColumns out;
  add_labels(out, p);
  add_times(out, p);
  add_demands(out, p);
  add_memory(out, p);
  return {std::move(name), std::move(out).text()};
}

}  // namespace fsdp
