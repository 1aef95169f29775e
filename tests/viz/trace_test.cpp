// Traces: valid Chrome JSON; on one thread, events never overlap; the counter's highest value is the peak.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "viz/trace.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

Operation op_on(Stream stream, Action action) {
  Operation op;
  op.stream = stream;
  op.action = action;
  return op;
}

// Five operations on two streams, the third on no stream.
struct Made {
  Program program;
  Prediction prediction;
  Measurement measurement;
  Made() {
    Step& s = program.steady_step;
    s.ops = {op_on(Stream::compute, Action::clip_local_norm), op_on(Stream::all_gather, Action::clip_reduce),
             op_on(Stream::compute, Action::zero_gradients), op_on(Stream::compute, Action::clip_scale),
             op_on(Stream::all_gather, Action::reduce_loss)};
    s.ops[2].host_only = true;
    // The all-gather stream's second span starts a rounding error before the first ends; the first begins before the
    // step does.
    prediction.timeline.spans = {{0.0, 1.0}, {-0.25, 1.5}, {0.5, 0.5}, {1.5, 2.0}, {1.4999999999, 3.0}};
    prediction.memory.steady_step = {{{100, 100}, {700, 100}, {100, 50}, {60, 60}, {60, 10}}, 10};
    measurement.ranks.resize(2);
    for (std::size_t r = 0; r < 2; ++r) {
      measurement.ranks[r].rank = static_cast<std::int64_t>(r);
      measurement.ranks[r].timeline = prediction.timeline;
      measurement.ranks[r].steady_step = prediction.memory.steady_step;
    }
  }
};

Json parsed(const Made& m, bool predicted, bool measured) {
  return Json::parse(
      trace_json({m.program, {}, {}, predicted ? &m.prediction : nullptr, {}, measured ? &m.measurement : nullptr}));
}

constexpr int kFirstStream = 100'010;  // number of the compute stream's track

// A slice on the track of a stream.
bool is_operation(const Json& e) {
  if (e.at("ph") != "X" || !e.at("args").contains("op")) return false;
  const int track = e.at("tid");
  return track >= kFirstStream && track < kFirstStream + kStreams;
}

}  // namespace

TEST_CASE("a trace is JSON with one process per timeline and one track per stream that is used") {
  const Json trace = parsed(Made(), true, true);
  std::map<int, std::string> processes;
  std::map<int, std::set<std::string>> tracks;
  int spans = 0;
  for (const Json& e : trace.at("traceEvents")) {
    if (e.at("name") == "process_name") processes[e.at("pid")] = e.at("args").at("name");
    if (e.at("name") == "thread_name") tracks[e.at("pid")].insert(e.at("args").at("name"));
    spans += is_operation(e) ? 1 : 0;
  }
  CHECK(processes == std::map<int, std::string>{{1, "predicted"}, {2, "measured rank 0"}, {3, "measured rank 1"}});
  for (const auto& [process, names] : tracks)
    CHECK(names == std::set<std::string>{"critical path", "compute stream", "all_gather stream"});
  CHECK(tracks.size() == 3);
  CHECK(spans == 3 * 4);  // zero_gradients runs on no stream
  CHECK(parsed(Made(), false, false).at("traceEvents").empty());
}

TEST_CASE("of a long step the first and the last micro-batches are drawn, and the trace says so") {
  constexpr int kMicroBatches = 100, kEach = 1000;
  Made m;
  Step& s = m.program.steady_step;
  s.ops.clear();
  m.prediction.timeline.spans.clear();
  m.prediction.memory.steady_step.points.clear();
  for (int i = 0; i < kMicroBatches * kEach; ++i) {
    Operation op = op_on(Stream::compute, Action::clip_scale);
    op.micro_batch = static_cast<std::int16_t>(i / kEach);
    s.ops.push_back(op);
    m.prediction.timeline.spans.push_back({i * 1e-3, (i + 1) * 1e-3});
    m.prediction.memory.steady_step.points.push_back({i == 50'500 ? 999 : 10, 10});
  }
  const auto cut = trace_cut(s);
  REQUIRE(cut);
  CHECK(describe(*cut) == "micro-batches 1 to 32 and 69 to 100 of 100");
  std::map<std::int64_t, int> drawn;
  std::int64_t highest = 0;
  std::vector<std::string> marks;
  const Json trace = parsed(m, true, false);
  for (const Json& e : trace.at("traceEvents")) {
    if (is_operation(e)) ++drawn[e.at("args").at("micro_batch").get<std::int64_t>()];
    if (e.at("ph") == "C") highest = std::max(highest, e.at("args").at("bytes").get<std::int64_t>());
    if (e.at("ph") == "i") marks.push_back(e.at("name"));
  }
  CHECK(drawn.size() == 64);
  for (const auto& [micro_batch, count] : drawn) {
    CHECK(count == kEach);
    CHECK((micro_batch < 32 || micro_batch >= 68));
  }
  CHECK(highest == 999);  // the counter shows what was left out, too
  CHECK(marks == std::vector<std::string>{"cut: only micro-batches 1 to 32 and 69 to 100 of 100 are drawn"});
  CHECK_FALSE(trace_cut(Made().program.steady_step));
  for (Operation& op : s.ops) op.micro_batch = 0;  // one micro-batch cannot be cut
  CHECK_FALSE(trace_cut(s));
}

TEST_CASE("operations of one stream do not overlap and none begins before zero") {
  const Json trace = parsed(Made(), true, true);
  std::map<std::pair<int, int>, double> busy_until;
  for (const Json& e : trace.at("traceEvents")) {
    if (!is_operation(e)) continue;
    double& until = busy_until[{e.at("pid"), e.at("tid")}];
    CHECK(e.at("ts").get<double>() >= until);
    CHECK(e.at("dur").get<double>() >= 0);
    until = e.at("ts").get<double>() + e.at("dur").get<double>();
  }
  CHECK(busy_until.size() == 6);
  CHECK((busy_until[{1, kFirstStream + static_cast<int>(Stream::all_gather)}]) ==
        doctest::Approx(3.25e6));  // 3.0 s, shifted by the 0.25 s before zero
}

TEST_CASE("the memory counter reaches the peak") {
  const Json trace = parsed(Made(), true, false);
  std::int64_t highest = 0;
  for (const Json& e : trace.at("traceEvents")) {
    if (e.at("ph") == "C" && e.at("name") == "memory: allocated")
      highest = std::max(highest, e.at("args").at("bytes").get<std::int64_t>());
  }
  CHECK(highest == Made().prediction.memory.steady_step.peak());
  CHECK(highest == 700);
}

TEST_CASE("a timeline shorter than the step draws what it has") {
  Made m;
  m.prediction.timeline.spans.resize(2);
  m.prediction.memory.steady_step.points.clear();
  CHECK_NOTHROW((void)parsed(m, true, false));
}
