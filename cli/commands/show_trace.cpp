// fsdp-plan show trace: one step of a trace of torch.profiler.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands/show.h"
#include "cli/files.h"
#include "cli/terminal/terminal.h"
#include "simulator/pytorch/trace.h"

namespace fsdp::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t kKernelRows = 10;

std::string time(double seconds) { return human(Seconds(seconds)); }

Rows parts_of(const TracedStep& step) {
  Rows rows = {{step.on_gpu ? "compute stream busy" : "operators", time(step.busy)}};
  for (int k = 0; k < kCollectiveKinds; ++k)
    if (const double exposed = step.exposed[static_cast<std::size_t>(k)]; exposed > 0)
      rows.push_back({fmt::format("exposed {}", words(static_cast<CollectiveKind>(k))), time(exposed)});
  rows.push_back({"idle", time(step.idle)});
  return rows;
}

Rows collectives_of(const TracedStep& step) {
  std::map<std::pair<CollectiveKind, std::int64_t>, KernelTime> groups;
  for (const Collective& c : step.collectives) {
    KernelTime& group = groups[{c.kind, c.bytes}];
    ++group.count;
    group.seconds += c.span.end - c.span.start;
  }
  Rows rows;
  for (const auto& [key, group] : groups)
    rows.push_back({std::string(words(key.first)), key.second < 0 ? "-" : human(Bytes(key.second)),
                    std::to_string(group.count), time(group.seconds)});
  return rows;
}

Rows kernels_of(const TracedStep& step) {
  constexpr std::size_t kShown = 60;
  Rows rows;
  for (std::size_t k = 0; k < std::min(kKernelRows, step.kernels.size()); ++k)
    rows.push_back({printable(step.kernels[k].name.substr(0, kShown)), std::to_string(step.kernels[k].count),
                    time(step.kernels[k].seconds)});
  return rows;
}

std::string trace_text(const RecordedTrace& trace) {
  const TracedStep& step = trace.step;
  const std::string rank = trace.rank && trace.ranks ? fmt::format(", rank {} of {}", *trace.rank, *trace.ranks) : "";
  std::string out = fmt::format("{} on {}{}: {} long\n",
                                trace.marked ? fmt::format("the median of {} steps", trace.steps)
                                             : std::string("the whole trace (no marks of profiler.step())"),
                                step.on_gpu ? "a GPU" : "processors", rank, time(step.duration));
  out += "\n" + fitting_table({"where the step goes", ">time"}, parts_of(step));
  if (!step.collectives.empty())
    out += "\n" + fitting_table({"collective", ">bytes", ">count", ">time"}, collectives_of(step));
  if (!step.kernels.empty())
    out += "\n" + fitting_table({step.on_gpu ? "kernel" : "operator", ">count", ">time"}, kernels_of(step));
  return out;
}

struct TraceFlags {
  std::string file;
  bool json = false;
};

int show_trace(const TraceFlags& f) {
  const RecordedTrace trace = read_any_trace(read_file(f.file), f.file);
  print(stdout, f.json ? to_json_text(trace) : trace_text(trace));
  return kDone;
}

}  // namespace

void add_show_trace(const Command& show) {
  auto flags = std::make_shared<TraceFlags>();
  const Command command = show.add("trace", "a step that torch.profiler recorded: what ran, what was exposed");
  command.required("file", flags->file, "what torch.profiler's export_chrome_trace wrote", "TRACE");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan show trace trace.json", "fsdp-plan show trace trace.json --json"});
  command.runs([flags] { return show_trace(*flags); });
}

}  // namespace fsdp::cli
