// The fluid engine. State: per stream the operation that is next or running; time jumps from event to event (an
// operation ends, the host issues one that a stream is waiting for), and rates change only at events.
#include "simulator/engine/engine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::size_t kMultiprocessors = static_cast<std::size_t>(Resource::compute);
// Launches, waits and records that wait in a stream before the next one blocks the host: about 1000 (Stack Overflow
// 53970187, the same on NVIDIA's forum 68937), a power of two.
constexpr double kLaunchQueue = 1024;
constexpr double kAwake = 20e-6;  // a thread that has nothing to do looks for work this long before it sleeps

constexpr double kNever = std::numeric_limits<double>::infinity();

class Engine {
 public:
  Engine(const Step& step, const Demands& demands, const EngineOptions& options)
      : step_(step),
        demands_(demands),
        options_(options),
        finish_(step.ops.size(), kNever),
        finish_before_(step.ops.size(), kNever),
        issue_(step.ops.size()),
        spans_(step.ops.size()) {
    for (auto& q : queue_) q.reserve(step.ops.size());
    for (std::size_t i = 0; i < step.ops.size(); ++i)
      if (!step.ops[i].host_only)
        queue_[static_cast<std::size_t>(step.ops[i].stream)].push_back(static_cast<std::int32_t>(i));
    std::vector<char> waited_for(step.ops.size(), 0);
    for (const std::int32_t w : step.waits)
      if (w >= 0) waited_for[static_cast<std::size_t>(w)] = 1;
    entries_.assign(step.ops.size(), 0);
    for (std::size_t i = 0; i < step.ops.size(); ++i)
      if (!step.ops[i].host_only && demands[i].launches > 0)
        entries_[i] = demands[i].launches + step.ops[i].waits.count + waited_for[i];
    std::array<std::int32_t, kCommunicators> last;
    last.fill(-1);
    before_on_comm_.assign(step.ops.size(), -1);
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      const Operation& op = step.ops[i];
      if (op.comm == Communicator::none) continue;
      std::int32_t& l = last[static_cast<std::size_t>(op.comm)];
      before_on_comm_[i] = l;
      l = static_cast<std::int32_t>(i);
    }
  }

  Timeline run() {
    double ends = 0, period = 0;
    for (int s = 0; s < options_.steps; ++s) {
      const double before = ends;
      step_start_ = before;
      ends = one_step();
      period = ends - before;
    }
    Timeline t;
    t.duration = period;
    t.spans = std::move(spans_);
    for (Span& span : t.spans) {
      span.start -= step_start_;
      span.end -= step_start_;
    }
    t.issued = std::move(issue_);
    for (double& issued : t.issued) issued -= step_start_;
    return t;
  }

 private:
  struct Running {
    std::int32_t op = -1;
    const Demand* demand = nullptr;
    double left = 0;          // seconds of work left at its own speed
    bool two_rounds = false;  // a persistent kernel that found some of its multiprocessors taken
    double delay = 0;         // seconds until it does anything: its thread is woken, other ranks are waited for
    double queued = 0;        // of them, waiting for a core that other streams of the rank keep busy
  };

  struct Shared {  // what share_rates says of demands
    std::array<std::int32_t, kStreams> together{};
    std::array<double, kStreams> rates{};
  };

  // One steady step. Nothing of it starts before the step before has ended (Program's promise), but the host may be
  // ahead.
  double one_step() {
    finish_before_.swap(finish_);
    finish_.assign(step_.ops.size(), kNever);
    for (std::size_t s = 0; s < kStreams; ++s) go_to(s, 0);
    running_.fill({});
    waits_for_.fill(kNone);
    issued_ = 0;
    queued_.fill(0);
    host_reads_loss_ = host_blocked_ = false;
    issue();
    bool all_done = false;
    while (!all_done) {
      start_ready();
      const double next = next_event();
      advance(next);
      all_done = next == kNever;
    }
    for (std::size_t s = 0; s < kStreams; ++s)
      if (head_[s] != queue_[s].size())
        throw InternalError("broken program: operation " + std::to_string(queue_[s][head_[s]]) +
                            " waits for something that never happens");
    if (issued_ != step_.ops.size())
      throw InternalError("broken program: the host waits at operation " + std::to_string(issued_) +
                          " for something that never happens");
    return time_of_end();
  }

  void go_to(std::size_t stream, std::size_t head) {
    head_[stream] = head;
    next_[stream] = head < queue_[stream].size() ? queue_[stream][head] : kNone;
  }

  // Host time runs ahead of the streams until the host has to wait: for a read_loss that it issued, or at a host_wait.
  void issue() {
    for (; issued_ < step_.ops.size() && !host_reads_loss_; ++issued_) {
      const Operation& op = step_.ops[issued_];
      if (op.action == Action::host_wait && !pass(op)) return;
      if (demands_[issued_].host_waits && !drained(static_cast<std::size_t>(op.stream))) return;
      if (!has_room(issued_)) return;
      const double begun = host_;
      host_ += demands_[issued_].host.count();
      issue_[issued_] = host_;
      if (op.host_only) {
        finish_[issued_] = host_;
        spans_[issued_] = {op.action == Action::optimizer ? begun : host_, host_};
      }
      host_reads_loss_ = op.action == Action::read_loss;
    }
  }

  // May the host pass this host_wait? Then it is at least as late as the end of everything waited for.
  bool pass(const Operation& op) {
    double until = host_;
    for (std::int32_t w : step_.waits_of(op)) {
      const double end =
          w >= 0 ? finish_[static_cast<std::size_t>(w)] : finish_before_[static_cast<std::size_t>(-1 - w)];
      if (end == kNever) {
        if (w < 0) continue;  // of the step before the first one
        return false;
      }
      until = std::max(until, end);
    }
    host_ = until;
    return true;
  }

  // Has everything ended that the host has issued on this stream? Then the host is as late as the end of it.
  bool drained(std::size_t stream) {
    const std::size_t head = head_[stream];
    if (head < queue_[stream].size() && static_cast<std::size_t>(queue_[stream][head]) < issued_) return false;
    if (head > 0) host_ = std::max(host_, finish_[static_cast<std::size_t>(queue_[stream][head - 1])]);
    return true;
  }

  // Is there room for an operation's launches in its stream's queue? Where the host had to wait, it is as late as now.
  bool has_room(std::size_t i) {
    const double launches = entries_[i];
    double& queued = queued_[static_cast<std::size_t>(step_.ops[i].stream)];
    host_blocked_ = launches > 0 && queued > 0 && queued + launches > kLaunchQueue;
    if (host_blocked_) return false;
    queued += launches;
    return true;
  }

  // Is the next operation of a stream ready? If not, what it was found to wait for is looked at first the next time.
  bool ready(std::int32_t i, std::size_t stream) {
    const auto u = static_cast<std::size_t>(i);
    if (u >= issued_ || issue_[u] > now_) return false;
    std::int32_t& for_one = waits_for_[stream];
    const auto ended = [&](std::int32_t w) {
      if (w < 0 || finish_[static_cast<std::size_t>(w)] <= now_) return true;
      for_one = w;
      return false;
    };
    if (!ended(for_one)) return false;
    for (const std::int32_t w : step_.waits_of(step_.ops[u]))  // what belongs to the step before has ended
      if (!ended(w)) return false;
    if (!ended(before_on_comm_[u])) return false;
    for_one = kNone;
    return true;
  }

  // Of the multiprocessors, what running collectives hold and what running persistent kernels do.
  [[nodiscard]] double held_by_collectives() const {
    double held = 0;
    for (const Running& r : running_)
      if (r.op >= 0 && r.demand->holds_compute) held += r.demand->use[kMultiprocessors];
    return held;
  }
  [[nodiscard]] double resident() const {
    double most = 0;
    for (const Running& r : running_)
      if (r.op >= 0) most = std::max(most, r.demand->resident);
    return most;
  }

  // Does a persistent kernel find some of its multiprocessors taken?
  [[nodiscard]] bool lacks_places(const Demand& d) const {
    return d.resident > 0 && d.resident > 1 - held_by_collectives();
  }

  // Collectives first: what waits for multiprocessors gets them before what comes after.
  void start_ready() {
    std::array<bool, kStreams> is_ready{};
    bool any = false;
    for (std::size_t s = 0; s < kStreams; ++s)
      if (next_[s] != kNone && running_[s].op < 0 && ready(next_[s], s)) is_ready[s] = any = true;
    if (!any) return;
    for (const bool holders : {true, false})
      for (std::size_t s = 0; s < kStreams; ++s)
        if (is_ready[s] && demands_[static_cast<std::size_t>(next_[s])].holds_compute == holders) start(s);
  }
  void start(std::size_t s) {
    const std::int32_t i = next_[s];
    const Demand& d = demands_[static_cast<std::size_t>(i)];
    if (options_.share && d.holds_compute && resident() > 1 - held_by_collectives() - d.use[kMultiprocessors]) return;
    const bool two_rounds = options_.share && lacks_places(d);
    const double rounds = two_rounds ? 1 + d.second_round : 1, woken = wake(d, s), delay = woken + wait_for_ranks(d);
    running_[s] = {i, &d, d.alone.count() * rounds, two_rounds, delay, std::max(0.0, woken - d.wake.count())};
    spans_[static_cast<std::size_t>(i)].start = now_ + woken;
    changed_ = true;
  }

  // A stream that has just finished an operation is awake.
  [[nodiscard]] double wake(const Demand& d, std::size_t stream) const {
    if (d.wake.count() == 0 && d.wake_beside.count() == 0) return 0;
    if (free_since_[stream] >= now_ - kAwake) return 0;
    for (std::size_t s = 0; s < kStreams; ++s)
      if (s != stream && works(running_[s])) return d.wake_beside.count();
    return d.wake.count();
  }
  [[nodiscard]] double wait_for_ranks(const Demand& d) const {
    return std::min(d.skew_most.count(), d.skew.count() + d.skew_share * std::max(0.0, now_ - met_));
  }
  [[nodiscard]] static bool works(const Running& r) { return r.op >= 0 && r.delay <= 0; }

  // A free core has no queue.
  void leave_queue() {
    if (std::any_of(running_.begin(), running_.end(), works)) return;
    for (Running& r : running_) {
      if (r.op < 0 || r.queued <= 0) continue;
      r.delay -= r.queued;
      spans_[static_cast<std::size_t>(r.op)].start -= r.queued;
      r.queued = 0;
    }
  }

  void update_rates() {
    if (!changed_) return;
    changed_ = false;
    leave_queue();
    set_rates();
    for (std::size_t s = 0; s < kStreams; ++s) {
      Running& r = running_[s];
      if (!r.two_rounds) continue;
      if (lacks_places(*r.demand)) {
        rate_[s] = 1;  // in the second round most of the machine is idle
        continue;
      }
      // The rest finds its places, and does beside the first round what that still takes.
      const double second = r.demand->second_round, first = r.left - second * r.demand->alone.count();
      r.left -= second * std::max(0.0, first);
      r.two_rounds = false;
    }
  }

  // Before second rounds. A step has few sets of demands that run together, and the same ones again and again.
  void set_rates() {
    std::array<const Demand*, kStreams> demands{};
    std::array<std::int32_t, kStreams> together{};  // by stream, 1 + the index of the demand; 0: nothing
    std::size_t n = 0, slot = 0;
    for (std::size_t s = 0; s < kStreams; ++s) {
      if (!works(running_[s])) continue;
      const auto op = static_cast<std::size_t>(running_[s].op);
      demands[n++] = running_[s].demand;
      together[s] = 1 + static_cast<std::int32_t>(demands_.index_of(op));
      slot = slot * 31 + static_cast<std::size_t>(together[s]);
    }
    if (!options_.share || n <= 1) {
      for (std::size_t s = 0; s < kStreams; ++s) rate_[s] = together[s] > 0 ? 1 : 0;
      return;
    }
    Shared& known = shared_[slot % shared_.size()];
    if (known.together != together) {
      std::array<double, kStreams> rates{};
      share_rates({demands.data(), n}, {rates.data(), n});
      known.together = together;
      n = 0;
      for (std::size_t s = 0; s < kStreams; ++s) known.rates[s] = together[s] > 0 ? rates[n++] : 0;
    }
    rate_ = known.rates;
  }

  // The next end of an operation, or the next issue of one that an idle stream waits for.
  double next_event() {
    update_rates();
    double next = kNever;
    for (std::size_t s = 0; s < kStreams; ++s) {
      if (running_[s].op >= 0) {
        next = std::min(next, now_ + (running_[s].delay > 0 ? running_[s].delay : running_[s].left / rate_[s]));
      } else if (next_[s] != kNone) {
        const auto i = static_cast<std::size_t>(next_[s]);
        if (i < issued_ && issue_[i] > now_) next = std::min(next, issue_[i]);
      }
    }
    return next;
  }

  void advance(double next) {
    if (next == kNever) return;
    const double passed = next - now_;
    now_ = next;
    for (std::size_t s = 0; s < kStreams; ++s) {
      Running& r = running_[s];
      if (r.op < 0) continue;
      const double tiny = 1e-12 * (now_ + 1e-6);
      if (r.delay > 0) {
        r.delay = r.delay - passed > tiny ? r.delay - passed : 0;
        r.queued = std::max(0.0, r.queued - passed);
        changed_ = changed_ || r.delay == 0;
        continue;
      }
      const double left = r.left - passed * rate_[s];
      if (left > tiny) {
        r.left = left;
        continue;
      }
      const auto i = static_cast<std::size_t>(r.op);
      finish_[i] = now_;
      spans_[i].end = now_;
      free_since_[s] = now_;
      if (is_collective(step_.ops[i].action)) met_ = now_;
      queued_[s] -= entries_[i];
      if (host_blocked_) host_ = std::max(host_, now_);
      r = {};
      go_to(s, head_[s] + 1);
      changed_ = true;
      if (step_.ops[i].action == Action::read_loss) {
        host_reads_loss_ = false;
        host_ = std::max(host_, now_) + demands_[i].host_after.count();
      }
    }
    issue();
  }

  [[nodiscard]] double time_of_end() const {
    double end = step_start_;
    for (const Span& s : spans_) end = std::max(end, s.end);
    return end;
  }

  const Step& step_;
  const Demands& demands_;
  const EngineOptions options_;
  std::array<std::vector<std::int32_t>, kStreams> queue_;
  std::array<std::size_t, kStreams> head_{};   // of each stream, the operation that is next or runs: its place ...
  std::array<std::int32_t, kStreams> next_{};  // ... and its index, kNone: there is none
  std::array<Running, kStreams> running_{};
  std::array<std::int32_t, kStreams> waits_for_{};      // by each stream's next operation; kNone: not known
  std::array<double, kStreams> rate_{}, free_since_{};  // free_since_: when the stream last finished something
  std::array<Shared, 64> shared_{};
  std::vector<std::int32_t> before_on_comm_;
  std::vector<double> finish_, finish_before_, issue_;  // finish_before_: of the step before
  std::vector<Span> spans_;
  std::size_t issued_ = 0;
  double now_ = 0, host_ = 0, step_start_ = 0, met_ = 0;  // met_: when a collective last ended
  std::vector<double> entries_;            // by operation: launches, waits, an event that others wait for
  std::array<double, kStreams> queued_{};  // of them, in each stream's queue
  bool changed_ = false, host_reads_loss_ = false;
  bool host_blocked_ = false;  // by a full queue
};

}  // namespace

Timeline simulate(const Step& step, const Demands& demands, const EngineOptions& options) {
  if (demands.size() != step.ops.size())
    throw InternalError("broken demands: " + std::to_string(demands.size()) + " demands for " +
                        std::to_string(step.ops.size()) + " operations");
  for (std::size_t i = 0; i < demands.size(); ++i)  // NaN would never end
    if (!(demands[i].alone.count() >= 0 && demands[i].alone.count() < 1e12 && demands[i].host.count() >= 0 &&
          demands[i].host.count() < 1e12))
      throw InternalError("broken demands: operation " + std::to_string(i) + " (" +
                          std::string(name(step.ops[i].action)) + ") has no finite duration");
  return Engine(step, demands, options).run();
}

}  // namespace fsdp
