#include "simulator/pytorch/trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/input/error.h"
#include "simulator/pytorch/trace_events.h"

namespace fsdp {
namespace {

constexpr double kMicrosecond = 1e-6;
constexpr std::size_t kKernelNames = 50, kNameBytes = 160;  // of a step; of one name, which may be a whole template

bool is_launch(const TraceEvent& e) { return e.category.ends_with("_runtime") || e.category == "cuda_driver"; }

// Kernels of NCCL and RCCL name their collective; where one kernel serves all of them, "Collective name" does.
constexpr std::array<std::pair<std::string_view, CollectiveKind>, 3> kKernels = {
    {{"AllGather", CollectiveKind::all_gather},
     {"ReduceScatter", CollectiveKind::reduce_scatter},
     {"AllReduce", CollectiveKind::all_reduce}}};
constexpr std::array<std::pair<std::string_view, CollectiveKind>, 6> kCalls = {
    {{"allgather", CollectiveKind::all_gather},
     {"all_gather", CollectiveKind::all_gather},
     {"reduce_scatter", CollectiveKind::reduce_scatter},
     {"reducescatter", CollectiveKind::reduce_scatter},
     {"allreduce", CollectiveKind::all_reduce},
     {"all_reduce", CollectiveKind::all_reduce}}};

// Of NCCL or RCCL on a GPU, of gloo on processors.
bool is_collective(const TraceEvent& e) {
  if (e.category == "user_annotation") return !is_mark(e);
  return e.category == "kernel" && (e.name.starts_with("nccl") || e.name.starts_with("rccl") ||
                                    e.name.find("ncclDevKernel") != std::string::npos);
}

std::optional<CollectiveKind> kind_of(const TraceEvent& e) {
  for (const auto& [word, kind] : kKernels)
    if (e.name.find(word) != std::string::npos) return kind;
  const std::string& call = e.category == "user_annotation" ? e.name : e.collective;
  for (const auto& [word, kind] : kCalls)
    if (call.find(word) != std::string::npos) return kind;
  return std::nullopt;
}

// Operators, without what autograd's engine wraps around them and calls in Python (which may wait for collectives).
bool is_operator(const TraceEvent& e) {
  return e.category == "cpu_op" && e.name.find("::") != std::string::npos && !e.name.starts_with("autograd::") &&
         !e.name.starts_with("torch::autograd::") && !e.name.starts_with("c10d::");
}

// Of nested slices those that no other holds, thread by thread.
std::vector<const TraceEvent*> outermost(std::vector<const TraceEvent*> slices) {
  std::sort(slices.begin(), slices.end(), [](const TraceEvent* a, const TraceEvent* b) {
    if (a->track != b->track) return a->track < b->track;
    return a->start != b->start ? a->start < b->start : a->duration > b->duration;
  });
  std::vector<const TraceEvent*> found;
  for (const TraceEvent* s : slices) {
    const TraceEvent* before = found.empty() ? nullptr : found.back();
    if (before == nullptr || before->track != s->track || before->start + before->duration <= s->start)
      found.push_back(s);
  }
  return found;
}

std::int64_t bytes_of_element(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 12> kTypes = {{{"Float", 4},
                                                                                        {"BFloat16", 2},
                                                                                        {"Half", 2},
                                                                                        {"Double", 8},
                                                                                        {"Long", 8},
                                                                                        {"Int", 4},
                                                                                        {"Short", 2},
                                                                                        {"Byte", 1},
                                                                                        {"Char", 1},
                                                                                        {"Bool", 1},
                                                                                        {"Float8_e4m3fn", 1},
                                                                                        {"Float8_e5m2", 1}}};
  for (const auto& [name, bytes] : kTypes)
    if (dtype == name) return bytes;
  return -1;
}

std::int64_t bytes_of(const TraceEvent& e, CollectiveKind kind) {
  const std::int64_t elements = kind == CollectiveKind::all_gather ? e.elements_out : e.elements_in;
  const std::int64_t each = bytes_of_element(e.dtype);
  return elements < 0 || each < 0 ? -1 : elements * each;
}

class StepsOfTrace {
 public:
  StepsOfTrace(const TracedEvents& events, std::string_view where, Slices slices)
      : events_(events), where_(where), on_gpu_(slices == Slices::of_gpu) {
    std::vector<const TraceEvent*> operators;
    for (const TraceEvent& e : events.slices) {
      if (is_mark(e)) marks_.push_back(e.start);
      else if (is_launch(e)) {
        if (e.correlation >= 0) launched_[e.correlation] = e.start;
      } else if (e.category != "cpu_op") kernels_.push_back(&e);
      else if (is_operator(e)) operators.push_back(&e);
    }
    for (const TraceEvent* o : outermost(std::move(operators))) kernels_.push_back(o);
    std::sort(marks_.begin(), marks_.end());
    std::stable_sort(kernels_.begin(), kernels_.end(),
                     [](const TraceEvent* a, const TraceEvent* b) { return a->start < b->start; });
  }

  RecordedTrace read() {
    check();
    if (on_gpu_) find_compute_stream();
    RecordedTrace trace;
    trace.marked = !marks_.empty();
    trace.rank = events_.rank;
    trace.ranks = events_.ranks;
    std::vector<TracedStep> steps;
    const std::vector<double> begins = begins_of_steps();
    trace.steps = static_cast<std::int64_t>(begins.size()) - 1;
    for (std::size_t s = 0; s + 1 < begins.size(); ++s) steps.push_back(step(begins[s], begins[s + 1]));
    std::stable_sort(steps.begin(), steps.end(),
                     [](const TracedStep& a, const TracedStep& b) { return a.duration < b.duration; });
    trace.step = std::move(steps[(steps.size() - 1) / 2]);
    return trace;
  }

 private:
  void check() const {
    if (kernels_.empty())
      throw InputError({where_}, "holds no kernels of a GPU, and times of PyTorch on processors are not predicted",
                       "record on a GPU with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]");
    for (const TraceEvent* k : kernels_)
      if (k->process != kernels_.front()->process)
        throw InputError({where_}, on_gpu_ ? "holds kernels of several GPUs" : "holds operators of several processes",
                         "give the trace of one rank");
  }

  void find_compute_stream() {
    std::map<std::int64_t, double> seconds;
    for (const TraceEvent* k : kernels_)
      if (!is_collective(*k)) seconds[k->track] += k->duration;
    double most = -1;
    for (const auto& [stream, time] : seconds)
      if (time > most) most = time, compute_stream_ = stream;
  }

  // The host runs ahead of the GPU: a kernel belongs to the step in which it was launched.
  [[nodiscard]] std::size_t step_of(const TraceEvent& kernel) const {
    const auto launch = launched_.find(kernel.correlation);
    const double time = launch == launched_.end() ? kernel.start : launch->second;
    return static_cast<std::size_t>(std::upper_bound(marks_.begin(), marks_.end(), time) - marks_.begin());
  }

  // Where each step begins on the GPU, and where the last ends. Kernels that were launched before the first mark are in
  // no step; without marks all are in one.
  [[nodiscard]] std::vector<double> begins_of_steps() const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<double> first(marks_.size() + 1, kNever);
    double end = 0;
    for (const TraceEvent* k : kernels_) {
      double& begin = first[step_of(*k)];
      begin = std::min(begin, k->start);
    }
    if (!marks_.empty()) first.erase(first.begin());
    first.erase(std::remove(first.begin(), first.end(), kNever), first.end());
    if (first.empty())
      throw InputError({where_}, "no kernel was launched after a mark of profiler.step()",
                       "record whole steps: call profiler.step() at the end of each");
    std::sort(first.begin(), first.end());
    end = first.back();
    for (const TraceEvent* k : kernels_) end = std::max(end, k->start + k->duration);
    first.push_back(end);
    return first;
  }

  [[nodiscard]] TracedStep step(double begin, double end) const {
    TracedStep record;
    record.on_gpu = on_gpu_;
    record.duration = (end - begin) * kMicrosecond;
    std::map<std::string, KernelTime> by_name;
    const auto from = std::lower_bound(kernels_.begin(), kernels_.end(), begin,
                                       [](const TraceEvent* k, double time) { return k->start < time; });
    for (auto it = from; it != kernels_.end() && (*it)->start < end; ++it) {
      const TraceEvent& e = **it;
      const Span span{(e.start - begin) * kMicrosecond, (e.start + e.duration - begin) * kMicrosecond};
      if (is_collective(e)) {
        if (const auto kind = kind_of(e)) record.collectives.push_back({*kind, {}, bytes_of(e, *kind), span});
        continue;
      }
      if (!on_gpu_ || e.track == compute_stream_) record.compute.push_back(span);
      KernelTime& kernel = by_name[e.name.substr(0, kNameBytes)];
      ++kernel.count;
      kernel.seconds += span.end - span.start;
    }
    for (auto& [name, kernel] : by_name) record.kernels.push_back({name, kernel.count, kernel.seconds});
    std::stable_sort(record.kernels.begin(), record.kernels.end(),
                     [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
    if (record.kernels.size() > kKernelNames) record.kernels.resize(kKernelNames);
    finish(record);
    return record;
  }

  const TracedEvents& events_;
  std::string where_;
  bool on_gpu_;
  std::vector<double> marks_;
  std::vector<const TraceEvent*> kernels_;  // and copies of the GPU, by start
  std::unordered_map<std::int64_t, double> launched_;
  std::int64_t compute_stream_ = 0;
};

}  // namespace

RecordedTrace read_trace(std::string_view text, std::string_view where) {
  const TracedEvents events = read_trace_events(text, where);
  if (!events.any) throw InputError({std::string(where), "traceEvents"}, "is empty", "record a trace of some steps");
  return StepsOfTrace(events, where, Slices::of_gpu).read();
}

RecordedTrace read_any_trace(std::string_view text, std::string_view where) {
  const auto runs_on_gpu = [](const TraceEvent& e) { return !is_mark(e) && !is_launch(e); };
  const TracedEvents of_gpu = read_trace_events(text, where);
  if (std::any_of(of_gpu.slices.begin(), of_gpu.slices.end(), runs_on_gpu))
    return StepsOfTrace(of_gpu, where, Slices::of_gpu).read();
  const TracedEvents of_host = read_trace_events(text, where, Slices::of_host);
  if (of_host.slices.empty())
    throw InputError({std::string(where), "traceEvents"}, "holds neither kernels of a GPU nor operators",
                     "record whole steps with torch.profiler");
  return StepsOfTrace(of_host, where, Slices::of_host).read();
}

}  // namespace fsdp
