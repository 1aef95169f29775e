#include "viz/snapshot.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "models/index.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/analysis/times.h"
#include "viz/snapshot/pickle.h"

namespace fsdp {
namespace {

// Entries of the trace; of longer ones the last, as PyTorch keeps them. A viewer draws fewer.
constexpr std::size_t kMostRecords = 500'000;
constexpr std::int64_t kNoFrames = -1;
constexpr std::int64_t kSmallSegment = std::int64_t{2} << 20;  // PyTorch's segments for requests up to 1 MiB

// 0 init, 1 the first step, and steady steps; the index of a Step, and its name.
std::size_t step_index(int step) { return static_cast<std::size_t>(std::min(step, 2)); }
std::string step_name(int step) {
  if (step < 2) return step == 0 ? "init" : "first step";
  return step == 2 ? "steady step" : "steady step " + std::to_string(step - 1);
}

struct LineOfCode {
  std::string file, name;
  std::int64_t line = 0;
};

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const SnapshotOf& of)
      : of_(of),
        parts_(parts_of_buffers(of.program, of.model)),
        steps_{&of.program.init, &of.program.first_step, &of.program.steady_step} {
    for (std::size_t s = 0; s < steps_.size(); ++s) units_[s] = units_of_operations(*steps_[s], of.plan, of.model);
  }

  std::string write() {
    p_.begin_dict();
    p_.text("segments");
    segments();
    p_.text("device_traces");
    p_.begin_list();
    trace();
    p_.end_list();
    p_.text("allocator_settings");
    p_.begin_dict();
    p_.text("expandable_segments"), p_.boolean(of_.history.expandable);
    p_.end_dict();
    p_.end_dict();
    return std::move(p_).finish();
  }

 private:
  void number(std::string_view key, std::int64_t value) { p_.text(key), p_.integer(value); }
  void text(std::string_view key, std::string_view value) { p_.text(key), p_.text(value); }

  void trace() {
    const std::vector<AllocatorRecord>& all = of_.history.records;
    p_.begin_list();
    for (std::size_t i = all.size() - std::min(all.size(), kMostRecords); i < all.size(); ++i) {
      const AllocatorRecord& r = all[i];
      p_.begin_dict();
      text("action", action(r.what));
      number("addr", r.address);
      number("size", r.bytes);
      number("stream", r.stream);
      // The viewer asks for a category "unknown" where there are others: it is "other" here.
      if (r.what == AllocatorRecord::What::allocated)
        text("category", r.buffer < 0 || part_of(r.buffer) == MemoryPart::other ? "unknown" : name(part_of(r.buffer)));
      frames(&r);
      p_.end_dict();
    }
    p_.end_list();
  }
  [[nodiscard]] const char* action(AllocatorRecord::What what) const {
    const bool expandable = of_.history.expandable;
    switch (what) {
      case AllocatorRecord::What::segment_taken: return expandable ? "segment_map" : "segment_alloc";
      case AllocatorRecord::What::segment_given_back: return expandable ? "segment_unmap" : "segment_free";
      case AllocatorRecord::What::allocated: return "alloc";
      case AllocatorRecord::What::released: return "free_requested";
      case AllocatorRecord::What::freed: break;
    }
    return "free_completed";
  }
  [[nodiscard]] MemoryPart part_of(std::int32_t buffer) const { return parts_[at(buffer)]; }

  // Blocks beside one another that the device gave at once; of expandable segments what is mapped.
  void segments() {
    std::unordered_map<std::int64_t, const AllocatorRecord*> allocated_at;
    for (const AllocatorRecord& r : of_.history.records)
      if (r.what == AllocatorRecord::What::allocated) allocated_at[r.address] = &r;
    const std::vector<BlockView>& blocks = of_.history.blocks;
    p_.begin_list();
    for (std::size_t from = 0; from < blocks.size();) {
      if (blocks[from].state == BlockState::unmapped) {
        ++from;
        continue;
      }
      std::size_t to = from + 1;
      while (to < blocks.size() && !blocks[to].first && blocks[to].state != BlockState::unmapped &&
             blocks[to].address == blocks[to - 1].address + blocks[to - 1].bytes)
        ++to;
      segment({blocks.data() + from, to - from}, allocated_at);
      from = to;
    }
    p_.end_list();
  }
  void segment(std::span<const BlockView> blocks,
               const std::unordered_map<std::int64_t, const AllocatorRecord*>& allocated_at) {
    std::int64_t total = 0, allocated = 0, active = 0, requested = 0;
    for (const BlockView& b : blocks) {
      total += b.bytes;
      if (b.state == BlockState::allocated) allocated += b.bytes;
      if (b.state != BlockState::free) active += b.bytes, requested += b.requested;
    }
    p_.begin_dict();
    number("device", 0);
    number("address", blocks.front().address);
    number("total_size", total);
    number("allocated_size", allocated);
    number("active_size", active);
    number("requested_size", requested);
    number("stream", blocks.front().stream);
    text("segment_type", blocks.front().small || total < kSmallSegment ? "small" : "large");
    p_.text("segment_pool_id"), p_.begin_list(), p_.integer(0), p_.integer(0), p_.end_list();
    p_.text("is_expandable"), p_.boolean(of_.history.expandable);
    frames(nullptr);
    p_.text("blocks"), p_.begin_list();
    for (const BlockView& b : blocks) {
      p_.begin_dict();
      number("address", b.address);
      number("size", b.bytes);
      number("requested_size", b.state == BlockState::free ? 0 : b.requested);
      text("state", b.state == BlockState::allocated ? "active_allocated"
                    : b.state == BlockState::waiting ? "active_pending_free"
                                                     : "inactive");
      const auto record = allocated_at.find(b.address);
      frames(b.state == BlockState::free || record == allocated_at.end() ? nullptr : record->second);
      p_.end_dict();
    }
    p_.end_list();
    p_.end_dict();
  }

  // Of a record that is no buffer: what it is for. Each distinct list is written once.
  void frames(const AllocatorRecord* r) {
    p_.text("frames");
    const bool buffer = r != nullptr && r->buffer >= 0;
    const std::int64_t op = buffer && r->place.op ? *r->place.op : -1;
    const std::int64_t key = !buffer ? kNoFrames - (r != nullptr && r->what == AllocatorRecord::What::allocated)
                                     : (static_cast<std::int64_t>(r->buffer) * 8 + r->place.step) << 32 | (op + 1);
    if (p_.share(key)) return;
    p_.begin_list();
    if (buffer) {
      line({"buffer", buffer_text(r->buffer), r->buffer});
      if (op >= 0) {
        const std::size_t s = step_index(r->place.step);
        line({step_name(r->place.step),
              describe(steps_[s]->ops[at(static_cast<std::int32_t>(op))], of_.program, of_.plan, of_.model), op});
        if (const std::int32_t unit = units_[s][static_cast<std::size_t>(op)]; unit >= 0)
          line({"unit", modules_text(of_.plan, unit), unit});
      }
    } else if (key != kNoFrames) {
      line({"library", "workspace of the matrix library", 0});
    }
    p_.end_list();
    p_.keep(key);
  }
  [[nodiscard]] std::string buffer_text(std::int32_t id) const {
    const Buffer& b = of_.program.buffers[at(id)];
    std::string words(name(b.kind));
    if (b.param >= 0) words += " of " + of_.model.parameters[at(b.param)].name;
    return words;
  }
  void line(const LineOfCode& l) {
    p_.begin_dict();
    text("filename", l.file);
    text("name", l.name);
    number("line", l.line);
    p_.end_dict();
  }

  const SnapshotOf& of_;
  std::vector<MemoryPart> parts_;
  std::array<const Step*, 3> steps_;
  std::array<std::vector<std::int32_t>, 3> units_;
  PickleWriter p_;
};

}  // namespace

std::string memory_snapshot(const SnapshotOf& of) { return SnapshotWriter(of).write(); }

}  // namespace fsdp
