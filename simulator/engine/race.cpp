// One vector clock over the streams per operation: clock[op][s] = how many operations of stream s have finished when
// `op` has.
#include "simulator/engine/race.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace fsdp {
namespace {

using Clock = std::array<std::int32_t, kStreams>;  // counts of finished operations per stream

void join(Clock& into, const Clock& from) {
  for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], from[s]);
}

struct Place {
  int step = 0;
  std::int32_t op = -1;
};  // where an access stands

// Latest access per stream, as "number of operations of that stream that must have finished" (0: none).
struct Accesses {
  Clock until{};
  Place last[kStreams];
};

struct BufferHistory {
  bool live = false;
  Accesses writes, all;  // since the allocation
  Accesses earlier;      // of buffers that had these bytes before
};

class Prover {
 public:
  Prover(const Program& program, std::size_t at_most)
      : program_(program), at_most_(at_most), history_(program.buffers.size()) {}

  std::vector<Race> prove() {
    const Step* steps[] = {&program_.init, &program_.first_step, &program_.steady_step, &program_.steady_step};
    for (int s = 0; s < 4 && races_.size() < at_most_; ++s) run(*steps[s], s);
    return std::move(races_);
  }

 private:
  void run(const Step& step, int number) {
    before_ = std::exchange(clocks_, std::vector<Clock>(step.ops.size(), Clock{}));
    first_on_compute_ = true;
    before_step_ = stream_clock_[0];
    for (const Clock& c : stream_clock_) join(before_step_, c);
    for (std::size_t i = 0; i < step.ops.size() && races_.size() < at_most_; ++i) {
      here_ = {number, static_cast<std::int32_t>(i)};
      const Operation& op = step.ops[i];
      for (std::int32_t b : step.allocs_of(op)) allocate(b);
      for (std::int32_t b : step.inner_of(op))
        if (b >= 0) allocate(b);  // what an operation does inside itself is not ordered finer than it is
      if (op.action == Action::read_loss && op.args.count > 0) join(host_, stream_clock_[stream_of(op)]);
      if (op.action == Action::host_wait)
        for (std::int32_t w : step.waits_of(op))
          if (w >= 0) join(host_, clocks_[static_cast<std::size_t>(w)]);
      if (op.host_only) work_on_host(step, op);
      else execute(step, op, i);
      for (std::int32_t b : step.inner_of(op))
        if (b < 0) release(~b);
      for (std::int32_t b : step.frees_of(op)) release(b);
    }
  }

  // What -1 - i waits for: operation i of the step before, which ends as this one does. Before the first steady step
  // that is the operation at the same distance from the end.
  [[nodiscard]] Clock before(const Step& step, std::int32_t wait) const {
    const std::size_t from_end = step.ops.size() - static_cast<std::size_t>(-1 - wait);
    return from_end <= before_.size() ? before_[before_.size() - from_end] : Clock{};
  }

  static std::size_t stream_of(const Operation& op) { return static_cast<std::size_t>(op.stream); }

  void execute(const Step& step, const Operation& op, std::size_t i) {
    const std::size_t s = stream_of(op);
    Clock start = stream_clock_[s];
    join(start, host_);
    for (std::int32_t w : step.waits_of(op))
      join(start, w >= 0 ? clocks_[static_cast<std::size_t>(w)] : before(step, w));
    if (op.stream == Stream::compute && first_on_compute_) {  // Program's promise between steps
      join(start, before_step_);
      first_on_compute_ = false;
    }
    check_reuse(s, start);
    for (const Arg& a : step.args_of(op))
      if (a.buffer >= 0) access(a, s, start);
    Clock end = start;
    end[s] = ++issued_[s];
    clocks_[i] = end;
    stream_clock_[s] = end;
    for (const Arg& a : step.args_of(op))
      if (a.buffer >= 0) note(a, s);
  }

  // What the host itself reads and writes it does at once: everything that it has not waited for may still be running.
  void work_on_host(const Step& step, const Operation& op) {
    for (const Arg& a : step.args_of(op))
      if (a.buffer >= 0) access(a, kStreams, host_);
  }

  void report(const Place& earlier, std::int32_t buffer, const char* rule) {
    if (races_.size() < at_most_) races_.push_back({here_.step, earlier.op, here_.op, buffer, rule});
  }

  // Everything in `accesses` must have finished by `start`, except on stream `self` (stream order).
  void require(const Accesses& accesses, std::size_t self, const Clock& start, std::int32_t buffer, const char* rule) {
    for (std::size_t s = 0; s < start.size(); ++s)
      if (s != self && accesses.until[s] > start[s]) return report(accesses.last[s], buffer, rule);
  }

  void access(const Arg& a, std::size_t s, const Clock& start) {
    BufferHistory& h = history_[static_cast<std::size_t>(a.buffer)];
    if (!h.live) return report({}, a.buffer, "a buffer is used outside of its lifetime");
    require(h.earlier, s, start, a.buffer, "bytes are used again before their former owner's operations have finished");
    require(a.access == Access::read ? h.writes : h.all, s, start, a.buffer,
            "two operations on different streams use a buffer, unordered");
  }

  void note(const Arg& a, std::size_t s) {
    BufferHistory& h = history_[static_cast<std::size_t>(a.buffer)];
    mark(h.all, s);
    if (a.access != Access::read) mark(h.writes, s);
  }

  void mark(Accesses& accesses, std::size_t s) const {
    accesses.until[s] = issued_[s];
    accesses.last[s] = here_;
  }

  static void merge(Accesses& into, const Accesses& from) {
    for (std::size_t s = 0; s < into.until.size(); ++s) {
      if (from.until[s] <= into.until[s]) continue;
      into.until[s] = from.until[s];
      into.last[s] = from.last[s];
    }
  }

  void allocate(std::int32_t id) {
    BufferHistory& h = history_[static_cast<std::size_t>(id)];
    if (h.live) report({}, id, "a live buffer is allocated again");
    h = {};
    h.live = true;
    const Buffer& b = program_.buffers[static_cast<std::size_t>(id)];
    if (b.offset >= 0 && b.bytes > 0) take_bytes(id, b, h);
  }

  // A free hands the block back to its pool; the pool's stream may reuse it in its next operation.
  void release(std::int32_t id) {
    BufferHistory& h = history_[static_cast<std::size_t>(id)];
    if (!h.live) return report({}, id, "a dead buffer is freed");
    h.live = false;
    const Buffer& b = program_.buffers[static_cast<std::size_t>(id)];
    const auto pool = static_cast<std::size_t>(b.pool);
    merge(freed_[pool], unrecorded(h.all, b));
    freed_buffer_[pool] = id;
    if (b.offset >= 0 && b.bytes > 0) give_bytes(b, h.all);
  }

  // Accesses that the allocator does not wait for by itself before it hands the block out again: those on streams that
  // the block is not marked for. All of them were issued before the free, where the marks are made.
  static Accesses unrecorded(Accesses accesses, const Buffer& b) {
    for (std::size_t s = 0; s < accesses.until.size(); ++s)
      if (((b.recorded_streams >> s) & 1U) != 0) accesses.until[s] = 0;
    return accesses;
  }

  void check_reuse(std::size_t s, const Clock& start) {
    require(freed_[s], s, start, freed_buffer_[s],
            "a freed block may be reused by its pool's stream before its last use has finished");
    freed_[s] = {};
  }

  // Arena bytes, as disjoint segments: [begin, end) -> owner while live, and the accesses of former owners.
  struct Segment {
    std::int64_t end = 0;
    std::int32_t owner = -1;
    Accesses past;
  };

  using Arena = std::map<std::int64_t, Segment>;
  Arena& arena_of(const Buffer& b) { return arenas_[b.host ? 1 : 0]; }

  static void split(Arena& arena, std::int64_t at) {
    auto it = arena.upper_bound(at);
    if (it == arena.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Segment right = it->second;
    it->second.end = at;
    arena.emplace(at, right);
  }

  void take_bytes(std::int32_t id, const Buffer& b, BufferHistory& h) {
    Arena& arena = arena_of(b);
    const std::int64_t begin = b.offset, end = b.offset + b.bytes;
    split(arena, begin);
    split(arena, end);
    for (auto it = arena.lower_bound(begin); it != arena.end() && it->first < end; it = arena.erase(it)) {
      if (it->second.owner >= 0) report({}, id, "two live buffers share bytes of the arena");
      merge(h.earlier, it->second.past);
    }
    arena.emplace(begin, Segment{end, id, h.earlier});
  }

  void give_bytes(const Buffer& b, const Accesses& all) {
    Arena& arena = arena_of(b);
    const std::int64_t begin = b.offset, end = b.offset + b.bytes;
    split(arena, begin);
    split(arena, end);
    for (auto it = arena.lower_bound(begin); it != arena.end() && it->first < end; ++it) {
      it->second.owner = -1;
      merge(it->second.past, all);
    }
  }

  const Program& program_;
  const std::size_t at_most_;
  std::vector<BufferHistory> history_;
  std::vector<Clock> clocks_;  // of this step's operations, when they have finished
  std::vector<Clock> before_;  // the same of the step before
  std::array<Clock, kStreams> stream_clock_{};
  Clock issued_{}, host_{}, before_step_{};
  bool first_on_compute_ = true;
  std::array<Accesses, kStreams> freed_;  // by pool: accesses of blocks freed since the stream's last operation
  std::array<std::int32_t, kStreams> freed_buffer_{};
  std::array<Arena, 2> arenas_;  // of the device, of the host
  Place here_;
  std::vector<Race> races_;
};

}  // namespace

std::vector<Race> find_races(const Program& program, std::size_t at_most) { return Prover(program, at_most).prove(); }

}  // namespace fsdp
