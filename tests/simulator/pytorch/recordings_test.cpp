// What PyTorch's own tools recorded beside a prediction: traces and snapshots with the fields that torch 2.11 writes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "models/input/error.h"
#include "simulator/pytorch/compare_recordings.h"
#include "simulator/pytorch/compare_traced.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace std::string_literals;
using testing::holds;
using testing::refusal;

namespace {

// A step of 10 ms: gathers of two units, the second beside compute, and a reduce-scatter that sticks out by 1 ms.
Prediction prediction() {
  Prediction p;
  p.ranks = 8;
  p.step_time = Seconds(0.010);
  p.order = {{Stream::compute, Action::forward, "a mb 0"},
             {Stream::compute, Action::backward, "a mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 0 (a) mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 1 (b) mb 0"},
             {Stream::reduce_scatter, Action::reduce_scatter, "unit 0 (a) mb 0"}};
  p.issued = {2, 3, 0, 1, 4, -1};
  p.timeline.spans = {{0, 0.001}, {0.001, 0.003}, {0.001, 0.005}, {0.005, 0.009}, {0.008, 0.010}, {0.010, 0.010}};
  p.timeline.duration = 0.010;
  p.peak_allocated = Bytes(1000);
  p.peak_reserved_estimate = Bytes(4096);
  p.peak_made_of[static_cast<std::size_t>(BufferKind::parameter_shard)] = 600;
  p.peak_made_of[static_cast<std::size_t>(BufferKind::activation)] = 400;
  p.peak_at = "forward a mb 0";
  return p;
}

// --- traces ---

struct Kernel {
  std::string name;
  double at, duration;  // milliseconds
  int stream = 7;
  std::string arguments = {};
};
std::string slice(const std::string& category, const std::string& name, double at, double duration, int process,
                  int track, const std::string& arguments) {
  return fmt::format(
      R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
      category, name, process, track, 4'631'077'112'940.0 + 1000 * at, 1000 * duration, arguments);
}
const std::string kGather =
    R"("Collective name": "_allgather_base", "In msg nelems": 1048576, "Out msg nelems": 8388608, )"
    R"("Group size": 8, "dtype": "BFloat16")";
const std::string kScatter =
    R"("Collective name": "_reduce_scatter_base", "In msg nelems": 8388608, "Out msg nelems": 1048576, )"
    R"("dtype": "Float")";
// The kernels of the predicted step, `slower` times as long where they are gathers.
std::vector<Kernel> kernels(double begin, double slower = 1) {
  return {
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", begin, slower, 20, kGather},
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", begin + slower, 2 * slower, 20, kGather},
      {"void cutlass::Kernel2<bf16>(Params)", begin + slower, 8, 7},
      {"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", begin + slower + 7, 2, 24,
       kScatter}};
}
// Marks of the host are 5 ms ahead of the kernels that it launches.
std::string trace(const std::vector<std::vector<Kernel>>& steps, bool marks = true, const std::string& info = "8") {
  std::string events = R"({"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}})";
  int correlation = 100;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const double mark = steps[s].front().at - 5;
    if (marks)
      events += ",\n" + slice("user_annotation", fmt::format("ProfilerStep#{}", s + 3), mark, 9, 4242, 4242, "");
    for (const Kernel& k : steps[s]) {
      const std::string id = fmt::format("\"correlation\": {}", ++correlation);
      events += ",\n" + slice("cuda_runtime", "cudaLaunchKernel", mark + 0.01, 0.005, 4242, 4242, id);
      events +=
          ",\n" + slice("kernel", k.name, k.at, k.duration, 0, k.stream,
                        id + ", \"device\": 0, \"grid\": [24, 1, 1]" + (k.arguments.empty() ? "" : ", " + k.arguments));
    }
  }
  return "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"NVIDIA H100\"}], \"distributedInfo\": "
         "{\"backend\": \"nccl\", \"rank\": 0, \"world_size\": " +
         info + "}, \"traceEvents\": [\n" + events + "\n], \"traceName\": \"t.json\"}";
}
ValidationReport compared(const std::string& text) {
  return compare_recordings(prediction(), {std::nullopt, read_trace(text, "t.json")});
}
// What record() keeps of ranks whose profilers wrote these traces, read back from its file.
Measurement measured(const std::vector<std::string>& traces) {
  Measurement m;
  for (const std::string& text : traces) {
    m.ranks.emplace_back();
    m.ranks.back().rank = static_cast<std::int64_t>(m.ranks.size()) - 1;
    m.ranks.back().profiled = read_any_trace(text, "t.json").step;
  }
  return parse_measurement(to_json_text(m), "m.json");
}
ValidationReport of_ranks(const std::vector<std::string>& traces) {
  ValidationReport report;
  compare_profiles(prediction(), measured(traces), report);
  return report;
}
bool mentions(const std::vector<Finding>& findings, const std::string& words) {
  for (const Finding& f : findings)
    if (holds(f.text, words)) return true;
  return false;
}
bool mentions(const std::vector<std::string>& texts, const std::string& words) {
  for (const std::string& text : texts)
    if (holds(text, words)) return true;
  return false;
}

}  // namespace

TEST_CASE("a trace of what was predicted agrees: step, exposed time, every collective with its size") {
  const ValidationReport r = compared(trace({kernels(0), kernels(10), kernels(20)}));
  CHECK(r.within);
  CHECK(r.time_compared);
  CHECK_FALSE(r.memory_compared);
  CHECK(r.step_time.error() == doctest::Approx(0).epsilon(1e-6));
  for (const CompareRow& row : r.where) CHECK_MESSAGE(row.error() == doctest::Approx(0).epsilon(1e-6), row.what);
  REQUIRE(r.by_action.size() == 2);
  CHECK(mentions({r.by_action[0].what, r.by_action[1].what}, "2 all-gathers of 16.0 MiB"));
  CHECK(mentions({r.by_action[0].what, r.by_action[1].what}, "1 reduce-scatter of 32.0 MiB"));
  CHECK(r.findings.empty());
}

TEST_CASE("slower all-gathers are named with their size, and so is what they expose") {
  const ValidationReport r = compared(trace({kernels(0, 3), kernels(13, 3), kernels(26, 3)}));
  CHECK_FALSE(r.within);
  CHECK(r.step_time.measured == doctest::Approx(0.012).epsilon(0.1));
  CHECK(mentions(r.findings, "2 all-gathers of 16.0 MiB take 4.50 ms instead of 1.50 ms each"));
  CHECK(mentions(r.findings, "the all-gather of unit 0 (a) mb 0 is exposed for 3.00 ms, predicted 1.00 ms: it takes"));
  CHECK_FALSE(mentions(r.findings, "reduce-scatter"));
}

TEST_CASE("a collective that is no slower but late is exposed, and the finding says that it is late") {
  std::vector<Kernel> late = kernels(0);
  late[1].at = 9.5;  // behind the compute
  const ValidationReport r = compared(trace({late}));
  CHECK(mentions(r.findings, "the all-gather of unit 1 (b) mb 0 is exposed for"));
  CHECK(mentions(r.findings, "it is no slower, but runs beside less compute"));
}

TEST_CASE("numbers of collectives that differ are compared by kind alone, and that is said") {
  std::vector<Kernel> more = kernels(0);
  more.push_back({"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 9.5, 0.2, 25});
  const ValidationReport r = compared(trace({more}));
  CHECK(mentions(r.not_compared, "each all-reduce by itself: 0 were predicted and 1 recorded"));
  CHECK_FALSE(mentions(r.not_compared, "each all-gather"));
}

TEST_CASE("the median step counts, and a trace without marks is one step, with a doubt") {
  CHECK(compared(trace({kernels(0), kernels(10), kernels(20), kernels(30), kernels(80)})).step_time.measured ==
        doctest::Approx(0.010));
  const ValidationReport r = compared(trace({kernels(0)}, false));
  CHECK(r.within);
  CHECK(mentions(r.doubts, "no marks of profiler.step()"));
}

TEST_CASE("one kernel for all collectives is told by the call that launched it") {
  std::vector<Kernel> generic = kernels(0);
  for (Kernel& k : generic)
    if (k.name.starts_with("nccl")) k.name = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)";
  CHECK(compared(trace({generic})).by_action.size() == 2);
}

TEST_CASE("profiles of a measurement are compared as traces are, from its file alone") {
  const std::string slow = trace({kernels(0, 3)});
  const ValidationReport r = of_ranks({slow}), same = compared(slow);
  REQUIRE(r.by_action.size() == same.by_action.size());
  for (std::size_t i = 0; i < r.by_action.size(); ++i) {
    CHECK(r.by_action[i].what == same.by_action[i].what);
    CHECK(r.by_action[i].measured == doctest::Approx(same.by_action[i].measured));
  }
  CHECK(r.where.size() == same.where.size());
  CHECK(mentions(r.findings, "2 all-gathers of 16.0 MiB take 4.50 ms instead of 1.50 ms each"));
  CHECK(of_ranks({trace({kernels(0)})}).findings.empty());
  CHECK(mentions(r.doubts, "the profiler itself"));
}

TEST_CASE("a collective takes as long as on the rank that comes last, and that rank is named") {
  const std::string waits = trace({kernels(0, 3)}), late = trace({kernels(0)});
  const ValidationReport r = of_ranks({waits, late, waits});
  CHECK(mentions(r.findings, "rank 1 comes last to collectives: the others wait 6.00 ms longer a step in them"));
  CHECK_FALSE(mentions(r.findings, "instead of 1.50 ms each"));
  CHECK_FALSE(mentions(of_ranks({waits, waits}).findings, "comes last"));
  std::vector<Kernel> more = kernels(0);
  more.push_back({"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 9.5, 0.2, 25});
  CHECK(mentions(of_ranks({late, trace({more})}).doubts, "ranks ran different collectives"));
}

TEST_CASE("of processors operators that no other calls and gloo's collectives are read, and nothing is compared") {
  const auto operation = [](const std::string& name, double at, double duration, int thread) {
    return ",\n" + slice("cpu_op", name, at, duration, 4242, thread, "");
  };
  const std::string text = "{\"traceEvents\": [" + slice("user_annotation", "gloo:all_gather", 0, 2, 4242, 9, "") +
                           operation("aten::linear", 1, 4, 1) + operation("aten::addmm", 2, 2, 1) +
                           operation("c10d::_allgather_base_", 0, 0.1, 1) + operation("MmBackward0", 5, 2, 2) +
                           operation("autograd::engine::evaluate_function: MmBackward0", 5, 2, 2) +
                           operation("aten::mm", 6, 1, 2) + ",\n" +
                           slice("user_annotation", "gloo:all_reduce", 6.5, 1.5, 4242, 8, "") + "]}";
  const TracedStep step = read_any_trace(text, "t.json").step;
  CHECK_FALSE(step.on_gpu);
  CHECK(step.duration == doctest::Approx(0.008));
  CHECK(step.busy == doctest::Approx(0.005));  // aten::linear with aten::addmm, aten::mm
  REQUIRE(step.collectives.size() == 2);
  CHECK(step.collectives[0].kind == CollectiveKind::all_gather);
  CHECK(step.collectives[1].exposed == doctest::Approx(0.001));
  REQUIRE(step.kernels.size() == 2);
  CHECK(step.kernels[0].name == "aten::linear");
  const ValidationReport r = of_ranks({text});
  CHECK(r.by_action.empty());
  CHECK(mentions(r.not_compared, "operators 5.00 ms, 1 all-gather 2.00 ms, 1 all-reduce 1.50 ms in a step of 8.00 ms"));
  CHECK(holds(refusal([&] { return read_trace(text, "t.json"); }), "no kernels of a GPU"));
  CHECK(holds(refusal([] { return read_any_trace("{\"traceEvents\": []}", "t.json"); }), "neither kernels"));
  Measurement bad = measured({text});
  bad.ranks[0].profiled->collectives[0].span.end = -1;
  CHECK(holds(refusal([&] { return parse_measurement(to_json_text(bad), "m.json"); }), "ends before it starts"));
}

TEST_CASE("traces that cannot be compared are refused, and the error says what to do") {
  const auto read = [](const std::string& text) { return refusal([&] { return read_trace(text, "t.json"); }); };
  CHECK(holds(read(""), "is not JSON"));
  CHECK(holds(read("{\"traceEvents\": ["), "is not JSON"));
  CHECK(holds(read("[]"), "is a list"));
  CHECK(holds(read("{}"), "traceEvents: is missing"));
  CHECK(holds(read("\x1f\x8b\x08"), "gunzip"));
  CHECK(holds(read("{\"traceEvents\": []}"), "is empty"));
  CHECK(holds(read("{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"cpu_op\", \"ts\": 1, \"dur\": 2}]}"), "no kernels"));
  CHECK(holds(read("{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"kernel\", \"ts\": 1, \"dur\": -2}]}"), "[0].dur"));
  CHECK(holds(read("{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"kernel\", \"ts\": 1e300, \"dur\": 2}]}"), "[0].ts"));
  CHECK(holds(read("{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"kernel\", \"dur\": 2}]}"), "[0].ts"));
  CHECK(holds(read(R"({"traceEvents": [{"ph": "X", "cat": "kernel", "pid": 0, "ts": 1, "dur": 2},
                                      {"ph": "X", "cat": "kernel", "pid": 1, "ts": 1, "dur": 2}]})"),
              "several GPUs"));
  CHECK(holds(refusal([] { return compared(trace({kernels(0)}, true, "16")); }), "16 ranks were traced"));
  Prediction brief = prediction();
  brief.issued.clear();
  CHECK(holds(refusal([&] {
                return compare_recordings(brief, {std::nullopt, read_trace(trace({kernels(0)}), "t.json")});
              }),
              "does not say when each operation runs"));
}

// --- snapshots ---

namespace {

// A pickle, written by hand: dictionaries, lists, texts, integers.
std::string text(const std::string& s) { return "X"s + static_cast<char>(s.size()) + "\0\0\0"s + s; }
std::string number(std::int64_t n) {
  std::string bytes = "\x8a\x08"s;
  for (int k = 0; k < 8; ++k) bytes += static_cast<char>(static_cast<std::uint64_t>(n) >> (8 * k));
  return bytes;
}
std::string list(const std::vector<std::string>& items) {
  std::string all = "](";
  for (const std::string& item : items) all += item;
  return all + "e";
}
std::string dictionary(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [key, value] : items) all += text(key) + value;
  return all + "u";
}
std::string frame(const std::string& file, const std::string& function, int line = 33) {
  return dictionary({{"name", text(function)}, {"filename", text(file)}, {"line", number(line)}});
}
std::string block(std::int64_t address, std::int64_t size, std::int64_t requested, bool live = true,
                  const std::string& frames = list({})) {
  return dictionary({{"address", number(address)},
                     {"size", number(size)},
                     {"requested_size", number(requested)},
                     {"state", text(live ? "active_allocated" : "inactive")},
                     {"frames", frames}});
}
std::string entry(const std::string& action, std::int64_t address, std::int64_t size,
                  const std::string& frames = list({})) {
  return dictionary({{"action", text(action)},
                     {"addr", number(address)},
                     {"size", number(size)},
                     {"stream", number(0)},
                     {"time_us", number(17)},
                     {"frames", frames}});
}
std::string snapshot(const std::vector<std::string>& blocks, const std::vector<std::string>& trace_entries,
                     std::int64_t total = 4096) {
  const std::string segment = dictionary({{"device", number(0)},
                                          {"address", number(1 << 20)},
                                          {"total_size", number(total)},
                                          {"segment_type", text("small")},
                                          {"segment_pool_id", "K\0K\0\x86"s},
                                          {"blocks", list(blocks)}});
  return "\x80\x02"s + dictionary({{"segments", list({segment})}, {"device_traces", list({list(trace_entries)})}}) +
         ".";
}
constexpr std::int64_t kBase = 1 << 20;
const std::string kModel =
    list({frame("/site-packages/torch/nn/modules/module.py", "_apply"), frame("/me/train.py", "main")});
const std::string kForward =
    list({frame("/site-packages/torch/nn/functional.py", "silu"), frame("/me/train.py", "forward")});

}  // namespace

TEST_CASE("a snapshot's peak is found in its history, with what it is made of and who made it") {
  // 600 bytes of shards stay; 300 + 100 of activations are the peak; 350 come after it.
  const std::string bytes =
      snapshot({block(kBase, 1024, 600, true, kModel), block(kBase + 1024, 512, 350, true, kForward),
                block(kBase + 1536, 2560, 0, false)},
               {entry("segment_alloc", kBase, 4096), entry("alloc", kBase, 600, kModel),
                entry("alloc", kBase + 1024, 300, kForward), entry("alloc", kBase + 1536, 100, kForward),
                entry("free_requested", kBase + 1536, 100), entry("free_completed", kBase + 1536, 100),
                entry("free_requested", kBase + 1024, 300), entry("free_completed", kBase + 1024, 300),
                entry("alloc", kBase + 1024, 350, kForward), entry("snapshot", 0, 0)});
  const RecordedMemory m = read_snapshot(bytes, "s.pickle");
  CHECK(m.history);
  CHECK(m.stacks);
  CHECK(m.allocated_first == 0);
  CHECK(m.peak_allocated == 1000);
  CHECK(m.peak_reserved == 4096);
  CHECK(m.at_peak[static_cast<std::size_t>(RecordedPart::parameter_shards)] == 600);
  CHECK(m.at_peak[static_cast<std::size_t>(RecordedPart::activations)] == 400);
  CHECK(m.peak_at == "forward (train.py:33)");
  const ValidationReport r = compare_recordings(prediction(), {m, std::nullopt});
  CHECK(r.within);
  CHECK(r.peak.error() == 0);
  for (const CompareRow& row : r.memory) CHECK_MESSAGE(row.error() == 0, row.what);
}

TEST_CASE("a history that begins late starts from what the dump still holds") {
  const RecordedMemory m =
      read_snapshot(snapshot({block(kBase, 1024, 600), block(kBase + 1024, 3072, 0, false)},
                             {entry("alloc", kBase + 1024, 300, kForward), entry("free_requested", kBase + 1024, 300),
                              entry("free_requested", kBase + 2048, 700)}),
                    "s.pickle");
  CHECK(m.allocated_first == 1300);
  CHECK(m.peak_allocated == 1600);
  CHECK(m.at_peak[static_cast<std::size_t>(RecordedPart::other)] == 1300);
}

TEST_CASE("more activations than predicted are the finding, and the peak is outside of the tolerance") {
  const RecordedMemory m = read_snapshot(
      snapshot({block(kBase, 1024, 600, true, kModel), block(kBase + 1024, 1024, 900, true, kForward)}, {}),
      "s.pickle");
  CHECK_FALSE(m.history);
  const ValidationReport r = compare_recordings(prediction(), {m, std::nullopt});
  CHECK_FALSE(r.within);
  CHECK(mentions(r.findings, "activations, gradients, temporaries differ most: 900 B against 400 B predicted"));
  CHECK(mentions(r.doubts, "has no history"));
}

TEST_CASE("allocations of autograd's threads, which have no stack, count as activations; without any stack, as other") {
  const auto peak = [](const std::string& stack) {
    return read_snapshot(snapshot({block(kBase, 1024, 600, true, stack), block(kBase + 1024, 1024, 400)},
                                  {entry("alloc", kBase, 600, stack), entry("alloc", kBase + 1024, 400)}),
                         "s.pickle")
        .at_peak;
  };
  CHECK(peak(kModel)[static_cast<std::size_t>(RecordedPart::activations)] == 400);
  CHECK(peak(list({}))[static_cast<std::size_t>(RecordedPart::other)] == 1000);
}

TEST_CASE("stacks tell FSDP's buffers, the optimizer's states and workspaces of libraries apart") {
  const auto part = [](const std::vector<std::string>& frames) {
    const RecordedMemory m = read_snapshot(snapshot({block(kBase, 512, 10, true, list(frames))}, {}), "s.pickle");
    for (std::size_t k = 0; k < m.at_peak.size(); ++k)
      if (m.at_peak[k] == 10) return std::string(name(static_cast<RecordedPart>(k)));
    return "nothing"s;
  };
  const std::string fsdp = "/torch/distributed/fsdp/_fully_shard/";
  CHECK(part({frame("/torch/_ops.py", "__call__"), frame(fsdp + "_fsdp_collectives.py", "foreach_all_gather")}) ==
        "all-gather buffers");
  CHECK(part({frame(fsdp + "_fsdp_param.py", "alloc_all_gather_outputs"),
              frame(fsdp + "_fsdp_collectives.py", "foreach_all_gather_copy_out")}) == "unsharded parameters");
  CHECK(part({frame(fsdp + "_fsdp_collectives.py", "foreach_reduce")}) == "sharded gradients and reduce buffers");
  CHECK(part({frame("/torch/optim/adam.py", "_init_group")}) == "optimizer states");
  CHECK(part({frame("/torch/optim/adam.py", "_multi_tensor_adam")}) == "activations, gradients, temporaries");
  CHECK(part({frame("??", "at::cuda::(anonymous namespace)::getNewWorkspace()")}) == "nothing");
  CHECK(part({frame("/me/data.py", "next_batch")}) == "other");
}

TEST_CASE("snapshots that cannot be true are refused, and the error says where") {
  const auto read = [](const std::string& bytes) { return refusal([&] { return read_snapshot(bytes, "s.pickle"); }); };
  const std::int64_t huge = std::int64_t{1} << 49;
  CHECK(holds(read("\x80\x02}."s), "segments: is missing"));
  CHECK(holds(read("\x80\x02]."s), "is not a dictionary"));
  CHECK(holds(read("\x80\x02"s + dictionary({{"segments", list({})}}) + "."), "nothing was allocated"));
  CHECK(holds(read(snapshot({block(kBase, 512, 10), block(kBase, 512, 10)}, {})), "stands there twice"));
  CHECK(holds(read(snapshot({block(kBase, -512, 10)}, {})), "segments[0].blocks[0].size"));
  CHECK(holds(read(snapshot({block(kBase, 512, INT64_MAX)}, {})), "segments[0].blocks[0].requested_size"));
  CHECK(holds(read(snapshot({block(1, huge, huge), block(2, huge, huge), block(3, huge, huge)}, {})), "more bytes"));
  CHECK(holds(read(snapshot({}, {entry("alloc", kBase, 5)})), "neither freed later nor there at the end"));
  CHECK(holds(read(snapshot({block(kBase, 512, 10)}, {entry("free_requested", kBase, 10)})), "still there"));
  CHECK(holds(read(snapshot({}, {entry("segment_alloc", kBase, 5000)})), "gives back more"));
  CHECK(holds(read(snapshot({}, {"N"})), "device_traces[0][0]: is not a dictionary"));
  CHECK(holds(read(snapshot({}, {}).substr(0, 60)), "too early"));
}
