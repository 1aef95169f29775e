#include "simulator/analysis/critical_path.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "models/units.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"

namespace fsdp {

namespace {

// previous[i]: the operation before i on its stream, and on its communicator; -1: none.
struct Previous {
  std::vector<std::int32_t> on_stream, on_communicator;
};

Previous previous_of(const Step& step) {
  Previous p{std::vector<std::int32_t>(step.ops.size(), -1), std::vector<std::int32_t>(step.ops.size(), -1)};
  std::array<std::int32_t, kStreams> stream;
  std::array<std::int32_t, kCommunicators> comm;
  stream.fill(-1);
  comm.fill(-1);
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (!runs_on_a_stream(op)) continue;
    std::int32_t& last = stream[static_cast<std::size_t>(op.stream)];
    p.on_stream[i] = std::exchange(last, static_cast<std::int32_t>(i));
    if (op.comm == Communicator::none) continue;
    std::int32_t& last_collective = comm[static_cast<std::size_t>(op.comm)];
    p.on_communicator[i] = std::exchange(last_collective, static_cast<std::int32_t>(i));
  }
  return p;
}

// By operation: what the host waited for longest, at any host_wait before it issued the operation; -1: nothing of this
// step.
std::vector<std::int32_t> held_back_by(const Step& step, const Timeline& timeline) {
  std::vector<std::int32_t> latest(step.ops.size(), -1);
  const auto end_of = [&](std::int32_t i) { return timeline.spans[static_cast<std::size_t>(i)].end; };
  std::int32_t so_far = -1;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (step.ops[i].action == Action::host_wait)
      for (const std::int32_t w : step.waits_of(step.ops[i]))
        if (w >= 0 && (so_far < 0 || end_of(w) > end_of(so_far))) so_far = w;
    latest[i] = so_far;
  }
  return latest;
}

}  // namespace

std::vector<std::int32_t> critical_chain(const Step& step, const Timeline& timeline) {
  std::vector<std::int32_t> chain;
  const auto end_of = [&](std::int32_t i) { return timeline.spans[static_cast<std::size_t>(i)].end; };
  const Previous previous = previous_of(step);
  const std::vector<std::int32_t> held_back = held_back_by(step, timeline);
  std::int32_t at = -1;
  for (std::size_t i = 0; i < step.ops.size(); ++i)
    if (runs_on_a_stream(step.ops[i]) && (at < 0 || end_of(static_cast<std::int32_t>(i)) >= end_of(at)))
      at = static_cast<std::int32_t>(i);
  while (at >= 0) {
    chain.push_back(at);
    const auto i = static_cast<std::size_t>(at);
    std::int32_t latest = previous.on_stream[i];
    const auto consider = [&](std::int32_t other) {
      if (other >= 0 && other < at && runs_on_a_stream(step.ops[static_cast<std::size_t>(other)]) &&
          (latest < 0 || end_of(other) > end_of(latest)))
        latest = other;
    };
    consider(previous.on_communicator[i]);
    consider(held_back[i]);
    for (const std::int32_t w : step.waits_of(step.ops[i])) consider(w);
    at = latest;
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

std::vector<std::string> critical_path(const Step& step, const Timeline& timeline, const ModelGraph& model,
                                       std::size_t rows) {
  std::map<std::optional<ActionKey>, double> seconds;  // empty: waiting
  double reached = 0;
  for (const std::int32_t i : critical_chain(step, timeline)) {
    const Span& s = timeline.spans[static_cast<std::size_t>(i)];
    if (s.start > reached) seconds[std::nullopt] += s.start - reached;
    seconds[action_key(step.ops[static_cast<std::size_t>(i)], model)] += s.end - s.start;
    reached = std::max(reached, s.end);
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [what, time] : seconds) sorted.emplace_back(time, what ? text(*what) : "waiting");
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return std::tie(b.first, a.second) < std::tie(a.first, b.second); });
  if (sorted.size() > rows) sorted.resize(rows);
  std::vector<std::string> words;
  for (const auto& [time, what] : sorted) words.push_back(what + ": " + human(Seconds(time)));
  return words;
}

}  // namespace fsdp
