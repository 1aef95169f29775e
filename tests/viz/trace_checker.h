// Holds a trace against the rules of its format and against what it was made from.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp::testing {

using TraceJson = nlohmann::json;

class TraceChecker {
 public:
  explicit TraceChecker(const std::string& text) : trace_(TraceJson::parse(text)) {
    for (const TraceJson& e : trace_.at("traceEvents")) {
      const std::string phase = e.at("ph");
      const Track track{e.at("pid"), e.at("tid")};
      if (phase == "X") slices_[track].push_back({ns(e, "ts"), ns(e, "ts") + ns(e, "dur"), &e});
      if (phase == "M" && e.at("name") == "process_name") processes_[e.at("args").at("name")] = track.first;
      if (phase == "M" && e.at("name") == "thread_name") tracks_[track] = e.at("args").at("name");
      if (phase == "s" || phase == "f") arrows_[e.at("id")].push_back({track, &e});
      if (phase == "C") counters_[{track.first, e.at("name")}].push_back({ns(e, "ts"), e.at("args").at("bytes")});
      if (e.contains("ts") && ns(e, "ts") < 0) wrong("begins before zero", e);
    }
  }

  // Slices of one track are inside of one another or apart; each track has a name.
  void check_nesting() {
    for (auto& [track, slices] : slices_) {
      if (!tracks_.contains(track)) problems.push_back("a track without a name");
      if (track.second == 0 || track.second == track.first)
        problems.push_back("Perfetto draws a track of this number into the process's main thread: " + tracks_[track]);
      std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
        return a.start != b.start ? a.start < b.start : a.end > b.end;
      });
      std::vector<std::int64_t> open;
      for (const Slice& s : slices) {
        if (s.end < s.start) wrong("ends before it begins", *s.event);
        while (!open.empty() && open.back() <= s.start) open.pop_back();
        if (!open.empty() && s.end > open.back()) wrong("reaches out of the slice around it", *s.event);
        open.push_back(s.end);
      }
    }
  }

  // Every arrow has one tail and one head, at the beginning of operations of one process, and stands for a wait of the
  // step; every wait between streams has an arrow.
  void check_arrows(const Step& step) {
    std::map<int, std::set<std::pair<int, int>>> drawn;  // by process: who is waited for, who waits
    for (const auto& [id, ends] : arrows_) {
      if (ends.size() != 2 || ends[0].event->at("ph") == ends[1].event->at("ph") ||
          ends[0].track.first != ends[1].track.first) {
        wrong("has no other end", *ends[0].event);
        continue;
      }
      const bool tail_first = ends[0].event->at("ph") == "s";
      const Arrow &tail = ends[tail_first ? 0 : 1], &head = ends[tail_first ? 1 : 0];
      if (ns(*tail.event, "ts") > ns(*head.event, "ts")) wrong("points back in time", *head.event);
      drawn[tail.track.first].insert({operation_at(tail), operation_at(head)});
    }
    std::set<std::pair<int, int>> expected;
    for (std::size_t i = 0; i < step.ops.size(); ++i)
      for (const std::int32_t w : step.waits_of(step.ops[i]))
        if (w >= 0 && !step.ops[i].host_only && !step.ops[static_cast<std::size_t>(w)].host_only &&
            step.ops[static_cast<std::size_t>(w)].stream != step.ops[i].stream)
          expected.insert({w, static_cast<int>(i)});
    arrows = expected.size();
    for (const auto& [name, process] : processes_)
      if (drawn[process] != expected) problems.push_back(name + ": the arrows are not the waits of the step");
  }

  // Counters go on in time; those by what memory is for sum to what is allocated.
  void check_counters(bool parts) {
    for (const auto& [name, process] : processes_) {
      std::map<std::int64_t, std::map<std::string, std::int64_t>> moments;
      for (const auto& [key, values] : counters_) {
        if (key.first != process) continue;
        if (!std::is_sorted(values.begin(), values.end(), [](auto& a, auto& b) { return a.first < b.first; }))
          problems.push_back(name + ": " + key.second + " goes back in time");
        for (const auto& [at, bytes] : values) moments[at][key.second] = bytes;
      }
      if (!parts || name != "predicted") continue;
      std::map<std::string, std::int64_t> now;
      for (const auto& [at, changed] : moments) {
        for (const auto& [counter, bytes] : changed) now[counter] = bytes;
        std::int64_t sum = 0;
        for (const auto& [counter, bytes] : now)
          if (counter != "memory: allocated") sum += bytes;
        if (sum != now["memory: allocated"])
          problems.push_back("at " + std::to_string(at) + " the parts of memory sum to " + std::to_string(sum));
      }
      moments_of_memory = moments.size();
    }
  }

  // Each operation that runs on a stream is drawn once, as long as it takes and not before the host issued it.
  void check_operations(const std::string& process, const Step& step, const Timeline& timeline) {
    const int pid = processes_.at(process);
    std::map<int, std::int64_t> issued;
    std::vector<int> drawn(step.ops.size(), 0);
    for (const auto& [track, slices] : slices_)
      if (track.first == pid && tracks_[track] == "host")
        for (const Slice& s : slices) issued[s.event->at("args").at("op")] = s.end;
    if (issued.size() != timeline.issued.size()) problems.push_back(process + ": not everything is issued by the host");
    for (const auto& [track, slices] : slices_) {
      if (track.first != pid || !tracks_[track].ends_with(" stream")) continue;
      for (const Slice& s : slices) {
        const TraceJson& arguments = s.event->at("args");
        if (!arguments.contains("op")) continue;
        const int op = arguments.at("op");
        const Span& span = timeline.spans[static_cast<std::size_t>(op)];
        ++drawn[static_cast<std::size_t>(op)];
        if (issued.contains(op) && s.start < issued[op] - 1) wrong("begins before the host has issued it", *s.event);
        if (std::abs(static_cast<double>(s.end - s.start) - (span.end - span.start) * 1e9) > 1.01)
          wrong("is not as long as its operation", *s.event);
      }
    }
    for (std::size_t i = 0; i < drawn.size(); ++i)
      if (drawn[i] != (step.ops[i].host_only ? 0 : 1))
        problems.push_back(process + ": operation " + std::to_string(i) + " is drawn " + std::to_string(drawn[i]) +
                           " times");
  }

  // Names of the slices of one track.
  [[nodiscard]] std::vector<std::string> names(const std::string& process, const std::string& track_name) {
    std::vector<std::string> out;
    for (const auto& [track, slices] : slices_)
      if (track.first == processes_.at(process) && tracks_[track] == track_name)
        for (const Slice& s : slices) out.push_back(s.event->at("name"));
    return out;
  }
  [[nodiscard]] std::set<std::string> tracks(const std::string& process) {
    std::set<std::string> out;
    for (const auto& [track, name] : tracks_)
      if (track.first == processes_.at(process)) out.insert(name);
    return out;
  }

  std::vector<std::string> problems;
  std::size_t arrows = 0, moments_of_memory = 0;

 private:
  using Track = std::pair<int, int>;  // process, thread
  struct Slice {
    std::int64_t start, end;
    const TraceJson* event;
  };
  struct Arrow {
    Track track;
    const TraceJson* event;
  };

  static std::int64_t ns(const TraceJson& e, const char* key) {
    return static_cast<std::int64_t>(std::llround(e.at(key).get<double>() * 1000));
  }
  void wrong(const std::string& what, const TraceJson& event) {
    if (problems.size() < 20) problems.push_back(what + ": " + event.dump());
  }
  // The innermost operation that begins where the arrow's end stands.
  int operation_at(const Arrow& end) {
    int found = -1;
    for (const Slice& s : slices_[end.track])
      if (s.start == ns(*end.event, "ts") && s.event->at("args").contains("op") && s.event < end.event)
        found = s.event->at("args").at("op");
    return found;
  }

  TraceJson trace_;
  std::map<Track, std::vector<Slice>> slices_;
  std::map<Track, std::string> tracks_;
  std::map<std::string, int> processes_;
  std::map<std::int64_t, std::vector<Arrow>> arrows_;
  std::map<std::pair<int, std::string>, std::vector<std::pair<std::int64_t, std::int64_t>>> counters_;
};

}  // namespace fsdp::testing
