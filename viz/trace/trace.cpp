// One process of a trace: the tracks of one timeline.
#include "viz/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/critical_path.h"
#include "simulator/analysis/times.h"
#include "viz/trace/events.h"
#include "viz/trace/scene.h"

namespace fsdp {
namespace {

// Numbers of tracks, from above to below: Perfetto sorts by them. Not 0, nor a process's own number: Perfetto takes
// both for the process's main thread and draws them as one track, without what overlaps.
constexpr int kCriticalTrack = 100'001, kHostTrack = 100'002, kExposedTrack = 100'003, kFirstStream = 100'010,
              kFirstCommunicator = 100'030;

std::string communicator_name(int communicator) {
  constexpr std::array<std::string_view, kCommunicators> kNames = {
      "", "shard", "replicate", "world", "shard, reduce", "reshard", "tensor", "own shard", "own replicate"};
  const auto c = static_cast<std::size_t>(communicator);
  return c < kNames.size() ? std::string(kNames[c]) + " communicator" : fmt::format("communicator {}", communicator);
}

struct DrawnSlice {
  std::int64_t start = 0, end = 0;  // nanoseconds
};

class TraceProcess {
 public:
  TraceProcess(TraceEvents& events, std::int64_t& arrows, const TraceScene& scene, int process,
               const Timeline& timeline)
      : events_(events),
        arrows_(arrows),
        scene_(scene),
        process_(process),
        timeline_(timeline),
        count_(std::min(scene.step.ops.size(), timeline.spans.size())),
        drawn_(count_) {}

  void draw(const std::string& name, const MemoryTimeline& memory, bool predicted) {
    events_.name_process(process_, name);
    if (whole()) add_chain();
    if (timeline_.issued.size() >= count_) add_host();
    add_streams();
    add_communicators();
    if (whole()) add_exposed();
    add_memory(memory, predicted);
    add_gap();
  }

 private:
  [[nodiscard]] const Operation& op(std::size_t i) const { return scene_.step.ops[i]; }
  [[nodiscard]] bool whole() const { return count_ > 0 && count_ == scene_.step.ops.size(); }
  [[nodiscard]] bool on_a_stream(std::size_t i) const { return !op(i).host_only && scene_.draws(i); }
  TraceTrack track(int number, const std::string& name) {
    if (named_.insert(number).second) events_.name_track({process_, number}, name);
    return {process_, number};
  }
  TraceTrack stream_of(std::size_t i) {
    const int s = static_cast<int>(op(i).stream);
    return track(kFirstStream + s, std::string(name(op(i).stream)) + " stream");
  }

  // Of each stream's operations, in the order in which they start. Operations of one stream never overlap; starts are
  // clamped to the end before, so that rounding cannot make them seem to.
  void place_slices() {
    for (std::size_t i = 0; i < count_; ++i)
      if (on_a_stream(i)) by_stream_[static_cast<std::size_t>(op(i).stream)].push_back(i);
    for (std::vector<std::size_t>& order : by_stream_) {
      std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
        return timeline_.spans[a].start < timeline_.spans[b].start;
      });
      std::int64_t busy_until = 0;
      for (const std::size_t i : order) {
        const std::int64_t start = std::max(scene_.at(timeline_.spans[i].start), busy_until);
        busy_until = std::max(start, scene_.at(timeline_.spans[i].end));
        drawn_[i] = {start, busy_until};
      }
    }
  }

  // From order[from] on, as far as `same` holds: one slice around them.
  template <class Same>
  std::size_t run_of(const std::vector<std::size_t>& order, std::size_t from, const Same& same) const {
    std::size_t to = from + 1;
    while (to < order.size() && same(order[from], order[to])) ++to;
    return to;
  }

  void add_streams() {
    place_slices();
    number_arrows();
    const auto same_phase = [this](std::size_t a, std::size_t b) { return scene_.phases[a] == scene_.phases[b]; };
    const auto same_unit = [&](std::size_t a, std::size_t b) {
      return same_phase(a, b) && scene_.units[a] == scene_.units[b];
    };
    for (std::size_t s = 0; s < by_stream_.size(); ++s) {
      const std::vector<std::size_t>& order = by_stream_[s];
      std::size_t phase_end = 0, unit_end = 0;
      for (std::size_t k = 0; k < order.size(); ++k) {
        if (s == static_cast<std::size_t>(Stream::compute)) {
          const std::size_t i = order[k];
          if (k == phase_end) {
            phase_end = run_of(order, k, same_phase);
            around(order, k, phase_end, scene_.phases[i], "phase");
          }
          if (k == unit_end) {
            unit_end = run_of(order, k, same_unit);
            if (scene_.units[i] >= 0) around(order, k, unit_end, unit_name(i), "unit");
          }
        }
        add_operation(order[k]);
      }
    }
  }
  [[nodiscard]] std::string unit_name(std::size_t i) const {
    const auto u = static_cast<std::size_t>(scene_.units[i]);
    return u < scene_.of.plan.units.size()
               ? fmt::format("unit {} ({})", u, modules_text(scene_.of.plan, static_cast<std::int32_t>(u)))
               : fmt::format("unit {}", u);
  }
  void around(const std::vector<std::size_t>& order, std::size_t from, std::size_t to, const std::string& name,
              std::string_view category) {
    events_.slice(stream_of(order[from]), name, category, drawn_[order[from]].start, drawn_[order[to - 1]].end, "");
  }
  void add_operation(std::size_t i) {
    const TraceTrack on = stream_of(i);
    std::string arguments = fmt::format("\"op\":{},\"micro_batch\":{}", i, op(i).micro_batch);
    if (critical_.contains(i)) arguments += ",\"critical\":true";
    events_.slice(on, scene_.names[i], name(op(i).action), drawn_[i].start, drawn_[i].end, arguments);
    for (const std::int64_t id : out_[i]) events_.arrow_out(on, id, drawn_[i].start);
    for (const std::int64_t id : in_[i]) events_.arrow_in(on, id, drawn_[i].start);
  }

  // Arrows go over streams: on one stream the order says it.
  void number_arrows() {
    for (std::size_t i = 0; i < count_; ++i) {
      if (!on_a_stream(i)) continue;
      for (const std::int32_t w : scene_.step.waits_of(op(i))) {
        if (w < 0 || static_cast<std::size_t>(w) >= count_) continue;
        const auto from = static_cast<std::size_t>(w);
        if (!on_a_stream(from) || op(from).stream == op(i).stream) continue;
        out_[from].push_back(arrows_);
        in_[i].push_back(arrows_++);
      }
    }
  }

  // A communicator runs one collective at a time: what waits for it is not on it yet.
  void add_communicators() {
    std::map<int, std::vector<std::size_t>> by_communicator;
    for (const std::vector<std::size_t>& order : by_stream_)
      for (const std::size_t i : order)
        if (op(i).comm != Communicator::none) by_communicator[static_cast<int>(op(i).comm)].push_back(i);
    for (auto& [communicator, order] : by_communicator) {
      std::stable_sort(order.begin(), order.end(),
                       [this](std::size_t a, std::size_t b) { return drawn_[a].end < drawn_[b].end; });
      const TraceTrack on = track(kFirstCommunicator + communicator, communicator_name(communicator));
      std::int64_t busy_until = 0;
      for (const std::size_t i : order) {
        const std::int64_t start = std::max(drawn_[i].start, busy_until);
        busy_until = std::max(start, drawn_[i].end);
        events_.slice(on, scene_.names[i], name(op(i).action), start, busy_until, fmt::format("\"op\":{}", i));
      }
    }
  }

  void add_host() {
    const TraceTrack on = track(kHostTrack, "host");
    std::int64_t busy_until = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (!scene_.draws(i)) continue;
      const std::int64_t issued = scene_.at(timeline_.issued[i]);
      const double takes = i < scene_.of.demands.size() ? scene_.of.demands[i].host.count() : 0;
      const std::int64_t start = std::max(scene_.at(timeline_.issued[i] - takes), busy_until);
      busy_until = std::max(start, issued);
      events_.slice(on, scene_.names[i], "host", start, busy_until, fmt::format("\"op\":{}", i));
    }
  }

  void add_chain() {
    const TraceTrack on = track(kCriticalTrack, "critical path");
    std::int64_t busy_until = 0;
    for (const std::int32_t c : critical_chain(scene_.step, timeline_)) {
      const auto i = static_cast<std::size_t>(c);
      critical_.insert(i);
      if (!scene_.draws(i)) continue;
      const std::int64_t start = std::max(scene_.at(timeline_.spans[i].start), busy_until);
      busy_until = std::max(start, scene_.at(timeline_.spans[i].end));
      events_.slice(on, scene_.names[i], "critical", start, busy_until, fmt::format("\"op\":{}", i));
    }
  }

  void add_exposed() {
    std::int64_t busy_until = 0;
    for (const ExposedSpan& e : exposed_spans(scene_.step, timeline_)) {
      const auto part = std::find_if(kBreakdownParts.begin(), kBreakdownParts.end(),
                                     [&e](const BreakdownPart& b) { return b.member == e.part; });
      if (!is_communication(*part)) continue;
      const TraceTrack on = track(kExposedTrack, "exposed");
      const std::int64_t start = std::max(scene_.at(e.span.start), busy_until);
      busy_until = std::max(start, scene_.at(e.span.end));
      events_.slice(on, part->label, "exposed", start, busy_until, "");
    }
  }

  // Memory moves at host order; it is drawn where the compute stream starts the next operation that the host issued.
  void add_memory(const MemoryTimeline& memory, bool predicted) {
    const std::size_t n = std::min(count_, memory.points.size());
    const bool parts = predicted && scene_.part_highest.size() >= n;
    std::int64_t highest = memory.start;
    const MemoryStack* stack = nullptr;  // at `highest`
    MemoryStack said;
    for (std::size_t i = 0; i < n; ++i) {
      if (memory.points[i].at >= highest) {
        highest = memory.points[i].at;
        if (parts) stack = &scene_.part_highest[i];
      }
      if (op(i).host_only || op(i).stream != Stream::compute || !scene_.draws(i)) continue;
      events_.counter(process_, "memory: allocated", drawn_[i].start, highest);
      if (stack != nullptr) add_parts(*stack, said, drawn_[i].start);
      highest = memory.points[i].after;
      if (parts) stack = &scene_.part_after[i];
    }
  }
  // Parts that are as they were are left out.
  void add_parts(const MemoryStack& stack, MemoryStack& said, std::int64_t at) {
    said.resize(stack.size(), 0);
    for (std::size_t k = 0; k < stack.size(); ++k) {
      if (stack[k] == said[k]) continue;
      events_.counter(process_, scene_.part_names[k], at, stack[k]);
      said[k] = stack[k];
    }
  }

  // A mark where operations are missing.
  void add_gap() {
    for (std::size_t i = 0; scene_.cut && i < count_; ++i) {
      if (scene_.draws(i)) continue;
      events_.mark(process_, "cut: only " + describe(*scene_.cut) + " are drawn", scene_.at(timeline_.spans[i].start));
      return;
    }
  }

  TraceEvents& events_;
  std::int64_t& arrows_;  // how many the trace has
  const TraceScene& scene_;
  int process_;
  const Timeline& timeline_;
  std::size_t count_;
  std::vector<DrawnSlice> drawn_;  // by operation
  std::array<std::vector<std::size_t>, kStreams> by_stream_;
  std::map<std::size_t, std::vector<std::int64_t>> out_, in_;  // arrows, by operation
  std::set<std::size_t> critical_;
  std::set<int> named_;
};

}  // namespace

std::string trace_json(const TraceOf& of) {
  const TraceScene scene(of);
  TraceEvents events;
  std::int64_t arrows = 1;
  int process = 1;
  if (of.prediction != nullptr)
    TraceProcess(events, arrows, scene, process++, of.prediction->timeline)
        .draw("predicted", of.prediction->memory.steady_step, true);
  if (of.measurement != nullptr)
    for (const RankMeasurement& rank : of.measurement->ranks)
      TraceProcess(events, arrows, scene, process++, rank.timeline)
          .draw("measured rank " + std::to_string(rank.rank), rank.steady_step, false);
  return std::move(events).document();
}

}  // namespace fsdp
