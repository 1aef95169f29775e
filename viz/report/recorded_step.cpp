// The columns of a step of which only records are left: a prediction and a measurement, without the program that both
// are of.
#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "models/index.h"
#include "viz/drawn_as.h"
#include "viz/report.h"
#include "viz/report/json_columns.h"
#include "viz/report/labels.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kHostText = "on the host";

// "linear model.layers.3.mlp.gate_proj op 12 mb 0" -> the text before " mb", and 0.
std::pair<std::string, std::int64_t> split(const std::string& object) {
  const std::size_t mb = object.rfind("mb ");
  std::int64_t number = 0;
  if (mb == std::string::npos) return {object, 0};
  (void)std::from_chars(object.data() + mb + 3, object.data() + object.size(), number);
  return {object.substr(0, mb > 0 ? mb - 1 : 0), number};
}

std::int64_t unit_of(const std::string& object) {
  std::int64_t unit = -1;
  if (object.starts_with("unit ")) (void)std::from_chars(object.data() + 5, object.data() + object.size(), unit);
  return unit;
}

// As streams_of a Step: that of tensor ranks is there where something runs on it.
std::int64_t streams_of(const RecordedStep& r) {
  const bool tensor = std::any_of(r.order.begin(), r.order.end(),
                                  [](const OrderedOperation& op) { return op.stream == Stream::tensor; });
  return tensor ? kStreams : kStreams - 1;
}

void add_labels(JsonColumns& out, const RecordedStep& r) {
  const std::int64_t streams = streams_of(r);
  using Key = std::tuple<Stream, Action, std::string>;
  std::map<Key, std::int64_t> known;
  Labels labels;
  labels.rows.push_back({kHostText, "", streams, DrawnAs::host, -1, Communicator::none});
  std::int64_t micro_batch = 0;
  for (const std::int32_t at_order : r.issued) {
    std::int64_t number = 0;
    if (at_order >= 0) {
      const OrderedOperation& op = r.order[at(at_order)];
      auto [object, mb] = split(op.object);
      micro_batch = mb;
      const auto [it, fresh] = known.try_emplace(Key{op.stream, op.action, object}, labels.count());
      number = it->second;
      if (fresh)
        labels.rows.push_back({std::string(name(op.action)) + (object.empty() ? "" : " " + object), "",
                               static_cast<std::int64_t>(op.stream), drawn_as(op.action), unit_of(object),
                               Communicator::none});
    }
    labels.of.push_back(number);
    labels.micro_batches.push_back(micro_batch);
  }
  labels.write(out, streams);
}

void add_memory(JsonColumns& out, const MemoryTimeline& memory) {
  Column moments, changed, bytes;
  std::int64_t last = memory.start, moment = 0;
  for (const MemoryPoint& point : memory.points)
    for (const std::int64_t now : {point.at, point.after}) {
      if (now != last) {
        moments.push_back(moment);
        changed.push_back(0);
        bytes.push_back(now - last);
        last = now;
      }
      ++moment;
    }
  out.add("memory_parts", Json::array({"allocated"}));
  out.add("memory_start_bytes", Column{memory.start});
  out.add("memory_moment_d", deltas(std::move(moments)));
  out.add("memory_part", changed);
  out.add("memory_bytes", bytes);
}

}  // namespace

ReportStep report_step(std::string name, const RecordedStep& r) {
  JsonColumns out;
  add_labels(out, r);
  Column start, duration, issued;
  for (const Span& s : r.timeline.spans) {
    start.push_back(nanoseconds(s.start));
    duration.push_back(nanoseconds(s.end) - nanoseconds(s.start));
  }
  for (const double t : r.timeline.issued) issued.push_back(nanoseconds(t));
  out.add("step_ns", nanoseconds(r.timeline.duration));
  out.add("start_ns_d", deltas(std::move(start)));
  out.add("duration_ns", duration);
  out.add("issued_ns_d", deltas(std::move(issued)));
  for (const char* none : {"critical_d", "exposed_part", "exposed_start_ns_d", "exposed_ns", "waits_back"})
    out.add(none, Column{});
  out.add("parts", Json::array());
  out.add("waits", Column(r.timeline.spans.size(), 0));
  add_memory(out, r.memory);
  if (r.measured != nullptr) {
    Column counted;
    for (const MemoryPoint& point : r.measured->points) counted.insert(counted.end(), {point.at, point.after});
    out.add("measured_bytes_d", deltas(std::move(counted)));
  }
  return {std::move(name), std::move(out).text()};
}

}  // namespace fsdp
