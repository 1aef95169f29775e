#include "simulator/pytorch/snapshot.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/limits.h"
#include "models/input/pickle.h"
#include "simulator/pytorch/stacks.h"

namespace fsdp {
namespace {

constexpr std::string_view kRemedy = "give the file that torch.cuda.memory._dump_snapshot wrote";
constexpr std::int64_t kMaxDevices = 1024;
constexpr std::size_t kWithoutStack = kRecordedParts;

struct Block {
  std::int64_t bytes = 0;
  std::optional<PickleValue> frames;
  bool traced = false;  // its allocation is in the history
};
using Blocks = std::unordered_map<std::int64_t, Block>;  // by address

enum class Event : std::uint8_t { allocated, released, taken, given_back, out_of_memory, other };
Event event_named(std::string_view action) {
  if (action == "alloc") return Event::allocated;
  if (action == "free_requested") return Event::released;
  if (action == "segment_alloc" || action == "segment_map") return Event::taken;
  if (action == "segment_free" || action == "segment_unmap") return Event::given_back;
  return action == "oom" ? Event::out_of_memory : Event::other;
}

struct Entry {
  Event event{};
  std::int64_t address = 0, bytes = 0;
  std::optional<PickleValue> frames = {};
};

class SnapshotReader {
 public:
  explicit SnapshotReader(const PickleDocument& document) : document_(document), root_(document.root()) {}

  RecordedMemory read() {
    choose_device();
    read_segments();
    read_trace();
    if (entries_.empty()) return at_the_dump();
    go_back();
    replay();
    return std::move(memory_);
  }

 private:
  [[noreturn]] void refuse(const std::string& field, const std::string& problem) const {
    throw InputError({document_.where(), field}, problem, std::string(kRemedy));
  }
  // Calls `read` with each item; errors say which.
  template <class Read>
  void each(const PickleValue& list, const std::string& field, const Read& read) const {
    for (std::size_t i = 0; i < list.size(); ++i) {
      try {
        read(list.item(i));
      } catch (const InputError& e) {
        throw e.at({e.file(), field + "[" + std::to_string(i) + "]" + (e.field().empty() ? "" : "." + e.field())});
      }
    }
  }
  // Sums stay far from overflowing: no device has more.
  void add(std::int64_t& sum, std::int64_t bytes, const char* field) const {
    sum += bytes;
    if (sum > kMaxGpuBytes) refuse(field, "adds up to more bytes than a device has");
    if (sum < 0) refuse(field, "gives back more bytes than were taken");
  }
  static std::int64_t bytes_of(const PickleValue& value, const char* key) {
    return value.at(key).integer(0, kMaxGpuBytes);
  }

  void choose_device() {
    std::unordered_map<std::int64_t, std::int64_t> reserved;
    std::int64_t most = -1;
    each(root_.at("segments"), "segments", [&](const PickleValue& segment) {
      const std::int64_t device = segment.at("device").integer(0, kMaxDevices);
      add(reserved[device], bytes_of(segment, "total_size"), "total_size");
    });
    for (const auto& [device, bytes] : reserved)
      if (bytes > most || (bytes == most && device < memory_.device)) most = bytes, memory_.device = device;
    if (reserved.empty()) refuse("segments", "is empty: nothing was allocated on a GPU");
  }

  void read_segments() {
    each(root_.at("segments"), "segments", [&](const PickleValue& segment) {
      if (segment.at("device").integer(0, kMaxDevices) != memory_.device) return;
      add(reserved_, bytes_of(segment, "total_size"), "total_size");
      std::int64_t next = segment.at("address").integer(0, kMaxInteger - kMaxGpuBytes);  // where blocks leave it out
      each(segment.at("blocks"), "blocks", [&](const PickleValue& block) {
        const auto stated = block.find("address");
        const std::int64_t address = stated ? stated->integer(0, kMaxInteger - kMaxGpuBytes) : next;
        const std::int64_t size = bytes_of(block, "size");
        next = address + size;
        if (next > kMaxInteger - kMaxGpuBytes) refuse("address", "lies beyond the memory of a device");
        if (block.at("state").text() != "active_allocated") return;
        const auto requested = block.find("requested_size");
        const std::int64_t bytes = requested ? requested->integer(0, kMaxGpuBytes) : size;
        if (!live_.emplace(address, Block{bytes, block.find("frames"), false}).second)
          refuse("address", "stands there twice");
        add(allocated_, bytes, "requested_size");
      });
    });
  }

  void read_trace() {
    const auto traces = root_.find("device_traces");
    if (!traces || traces->size() <= static_cast<std::size_t>(memory_.device)) return;
    const std::string field = "device_traces[" + std::to_string(memory_.device) + "]";
    each(traces->item(static_cast<std::size_t>(memory_.device)), field, [&](const PickleValue& entry) {
      const Event event = event_named(entry.at("action").text());
      if (event == Event::out_of_memory) ++memory_.out_of_memory;
      if (event == Event::out_of_memory || event == Event::other) return;
      Entry e{event, entry.at("addr").integer(0, kMaxInteger), bytes_of(entry, "size"), entry.find("frames")};
      entries_.push_back(std::move(e));
      memory_.history = memory_.history || event == Event::allocated || event == Event::released;
    });
  }

  RecordedMemory at_the_dump() {
    memory_.peak_reserved = reserved_;
    for (const auto& [address, block] : live_) count(block, +1);
    memory_.allocated_first = now_;
    keep_peak();
    finish_parts();
    return std::move(memory_);
  }

  // From the dump back to what was live when the history began.
  void go_back() {
    for (std::size_t i = entries_.size(); i-- > 0;) {
      const Entry& e = entries_[i];
      if (e.event == Event::taken) add(reserved_, -e.bytes, "device_traces");
      if (e.event == Event::given_back) add(reserved_, e.bytes, "device_traces");
      if (e.event == Event::released && !live_.emplace(e.address, Block{e.bytes, std::nullopt, false}).second)
        contradicts(i, "frees a block that is still there");
      if (e.event == Event::allocated && live_.erase(e.address) == 0)
        contradicts(i, "allocates a block that is neither freed later nor there at the end");
    }
  }
  [[noreturn]] void contradicts(std::size_t entry, const std::string& how) const {
    throw InputError({document_.where(), "device_traces"},
                     "entry " + std::to_string(entry) + " of those that allocate or free " + how,
                     "record the history with all actions (no skip_actions), and dump before it is switched off");
  }

  void replay() {
    for (const auto& [address, block] : live_) count(block, +1);
    memory_.allocated_first = now_;
    memory_.peak_reserved = reserved_;
    keep_peak();
    std::optional<PickleValue> at;
    for (const Entry& e : entries_) {
      if (e.event == Event::taken || e.event == Event::given_back)
        add(reserved_, e.event == Event::taken ? e.bytes : -e.bytes, "device_traces");
      memory_.peak_reserved = std::max(memory_.peak_reserved, reserved_);
      if (e.event == Event::allocated) {
        const Block& block = live_[e.address] = {e.bytes, e.frames, true};
        count(block, +1);
      } else if (e.event == Event::released) {
        const auto block = live_.find(e.address);
        count(block->second, -1);
        live_.erase(block);
      }
      if (now_ <= memory_.peak_allocated) continue;
      keep_peak();
      at = e.frames;
    }
    finish_parts();
    if (at) memory_.peak_at = place_of(*at);
  }

  void count(const Block& block, int sign) {
    const StackMeaning meaning = block.frames ? understood(*block.frames) : StackMeaning{};
    memory_.stacks = memory_.stacks || meaning.recorded;
    if (meaning.workspace) return;
    add(now_, sign * block.bytes, "device_traces");
    const bool of_a_thread = block.traced && !meaning.recorded;
    parts_[of_a_thread ? kWithoutStack : static_cast<std::size_t>(meaning.part)] += sign * block.bytes;
  }
  void keep_peak() {
    memory_.peak_allocated = now_;
    at_peak_ = parts_;
  }
  // Autograd's threads have no stack in Python: where other allocations have one, those without are of backward.
  void finish_parts() {
    std::copy_n(at_peak_.begin(), kRecordedParts, memory_.at_peak.begin());
    const RecordedPart part = memory_.stacks ? RecordedPart::activations : RecordedPart::other;
    memory_.at_peak[static_cast<std::size_t>(part)] += at_peak_[kWithoutStack];
  }
  // Stacks are shared by many entries.
  const StackMeaning& understood(const PickleValue& frames) {
    const auto [place, first] = meanings_.try_emplace(frames.identity());
    if (first) place->second = meaning_of(frames);
    return place->second;
  }

  const PickleDocument& document_;
  PickleValue root_;
  RecordedMemory memory_;
  Blocks live_;
  std::vector<Entry> entries_;
  std::int64_t allocated_ = 0, reserved_ = 0, now_ = 0;
  std::array<std::int64_t, kRecordedParts + 1> parts_{}, at_peak_{};  // the last: kWithoutStack
  std::unordered_map<std::uint32_t, StackMeaning> meanings_;
};

}  // namespace

std::string_view name(RecordedPart part) {
  switch (part) {
    case RecordedPart::parameter_shards: return "parameter shards";
    case RecordedPart::optimizer_states: return "optimizer states";
    case RecordedPart::reduce: return "sharded gradients and reduce buffers";
    case RecordedPart::gather: return "all-gather buffers";
    case RecordedPart::unsharded: return "unsharded parameters";
    case RecordedPart::activations: return "activations, gradients, temporaries";
    case RecordedPart::other: break;
  }
  return "other";
}

RecordedPart recorded_part(BufferKind kind) {
  switch (kind) {
    case BufferKind::parameter_shard: return RecordedPart::parameter_shards;
    case BufferKind::optimizer_state: return RecordedPart::optimizer_states;
    case BufferKind::sharded_gradient:
    case BufferKind::reduce_input:
    case BufferKind::reduce_output: return RecordedPart::reduce;
    case BufferKind::cast_shard:
    case BufferKind::gather: return RecordedPart::gather;
    case BufferKind::unsharded_parameter:
    case BufferKind::kept_shard: return RecordedPart::unsharded;
    case BufferKind::gradient:
    case BufferKind::gradient_accumulator:
    case BufferKind::activation:
    case BufferKind::saved:
    case BufferKind::activation_gradient:
    case BufferKind::scratch: return RecordedPart::activations;
    case BufferKind::batch:
    case BufferKind::scalar:
    case BufferKind::workspace: break;
  }
  return RecordedPart::other;
}

RecordedMemory read_snapshot(std::string_view bytes, std::string_view where) {
  const PickleDocument document(bytes, std::string(where));
  return SnapshotReader(document).read();
}

}  // namespace fsdp
