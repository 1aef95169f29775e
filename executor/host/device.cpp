// What the host thread of a rank does: hands out memory, puts work on streams, waits for it.
#include "executor/host/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <system_error>

#include "executor/actions/kernel_call.h"
#include "executor/ranks/instruments/poison.h"
#include "models/index.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp::host {

namespace {
constexpr std::int32_t kEverything =
    std::numeric_limits<std::int32_t>::max();      // the host waits until all streams are idle
constexpr std::int32_t kMostOperations = 1 << 26;  // of one step; a sane bound for the tables
}  // namespace

HostDevice::HostDevice(std::int64_t rank, Links links, std::shared_ptr<RunControl> control, Clock::time_point epoch)
    : rank_(rank),
      links_(std::move(links)),
      control_(std::move(control)),
      epoch_(epoch),
      arena_(rank),
      host_arena_(rank),
      last_collective_(links_.groups.size(), -1) {}

namespace {

// What `later` would still poison of memory that is handed out again stays as it is: another stream may be writing it
// by the time this one gets there.
void leave_alone(std::vector<PoisonChange>& later, const PoisonChange& handed_out) {
  std::vector<PoisonChange> rest;
  for (const PoisonChange& p : later) {
    std::byte* const end = p.data + p.bytes;
    std::byte* const from = std::clamp(handed_out.data, p.data, end);
    std::byte* const to = std::clamp(handed_out.data + handed_out.bytes, p.data, end);
    if (!p.poisoned || from == to) {
      rest.push_back(p);
      continue;
    }
    if (from > p.data) rest.push_back({p.data, from - p.data, true});
    if (to < end) rest.push_back({to, end - to, true});
  }
  later.swap(rest);
}

}  // namespace

// When the stream gets there. It is there already when nothing is under way: the host itself may then write what it has
// just been handed.
void HostDevice::change_poison(Stream pool, PoisonChange change) {
  const std::lock_guard lock(mutex_);
  std::vector<PoisonChange>& later = workers_[static_cast<std::size_t>(pool)].poison;
  if (!change.poisoned) leave_alone(later, change);
  if (outstanding_ != 0 || !later.empty()) later.push_back(change);
  else if (change.poisoned) poison(change.data, static_cast<std::size_t>(change.bytes));
  else unpoison(change.data, static_cast<std::size_t>(change.bytes));
}

BufferView HostDevice::allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory where) {
  const BufferView view = (where == Memory::host ? host_arena_ : arena_).allocate(offset, bytes);
  if (!poison_works() || bytes == 0) return view;
  if (where == Memory::host)
    unpoison(view.data, static_cast<std::size_t>(bytes));  // the host itself may be the first to touch it
  else change_poison(pool, {view.data, bytes, false});
  return view;
}

void HostDevice::release(Stream pool, BufferView view) {
  const bool in_host_memory = host_arena_.holds(view);
  (in_host_memory ? host_arena_ : arena_).release(view);
  if (poison_works() && view.bytes != 0 && !in_host_memory) change_poison(pool, {view.data, view.bytes, true});
}

void HostDevice::begin_step() {
  synchronize();
  const std::lock_guard lock(mutex_);
  for (Worker& w : workers_) w.records.clear();
  issued_.clear();
  done_.clear();
  std::fill(last_collective_.begin(), last_collective_.end(), -1);
  last_issued_ = -1;
  links_.status->issued.store(-1);
  ++links_.status->begun;
}

void HostDevice::check_new(std::int32_t op, std::span<const std::int32_t> waits) const {
  if (op < 0 || op > kMostOperations) throw MachineError(fmt::format("{} is no operation's index", op));
  if (at(op) < issued_.size() && issued_[at(op)] != 0)
    throw MachineError(fmt::format("operation {} is issued twice in one step", op));
  for (const std::int32_t w : waits)
    if (w < 0 || at(w) >= issued_.size() || issued_[at(w)] == 0)
      throw MachineError(fmt::format("operation {} waits for operation {}, which has not been issued", op, w));
}

void HostDevice::enqueue(Stream stream, std::int32_t* previous, std::span<const std::int32_t> waits, Task task) {
  control_->throw_if_failed();
  const std::int32_t op = task.op;
  Worker& w = workers_[static_cast<std::size_t>(stream)];
  task.waits.reserve(waits.size() + 1);
  task.waits.assign(waits.begin(), waits.end());
  task.poison.swap(w.poison);
  // Another stream may be the first to use what was handed out of its pool: a collective over tensor ranks writes
  // memory of the compute stream.
  for (const Worker& other : workers_)
    for (const PoisonChange& p : other.poison)
      if (!p.poisoned) task.poison.push_back(p);
  std::unique_lock lock(mutex_);
  check_new(op, waits);
  if (previous != nullptr) {  // one communicator runs one collective at a time
    if (*previous >= 0) task.waits.push_back(*previous);
    *previous = op;
  }
  if (at(op) >= issued_.size()) {
    issued_.resize(at(op) + 1, 0);
    done_.resize(at(op) + 1, 0);
  }
  issued_[at(op)] = 1;
  last_issued_ = op;
  links_.status->issued.store(op);
  ++outstanding_;
  w.queue.push_back(std::move(task));
  if (!w.thread.joinable()) {
    control_->thread_starts();
    try {
      w.thread = std::thread([self = shared_from_this(), &w, stream] {
        self->work(w, stream);
        self->control_->thread_ends();
      });
    } catch (const std::system_error& e) {
      control_->thread_ends();
      throw MachineError(
          fmt::format("operation {}: this machine has no thread for stream {} ({})", op, name(stream), e.what()));
    }
  }
  const bool wake = w.state == RankStatus::idle;
  lock.unlock();
  if (wake) w.changed.notify_one();
}

void HostDevice::launch(std::int32_t op, Stream stream, std::span<const std::int32_t> waits, KernelBody body) {
  Task task;
  task.op = op;
  task.body = std::move(body);
  enqueue(stream, nullptr, waits, std::move(task));
}

void HostDevice::launch_kernel(std::int32_t op, Stream stream, std::span<const std::int32_t> waits, KernelCall call) {
  launch(op, stream, waits, make_kernel(call));
}

GroupPlace HostDevice::place(std::size_t link) const {
  const Group& group = *links_.groups[link].group;
  return {group.member(rank_), group.size()};
}

void HostDevice::issue_collective(std::size_t link, std::span<const std::int32_t> waits, CollectiveCall call) {
  const Stream stream = call.stream;
  Task task;
  task.op = call.op;
  task.group = links_.groups[link].group.get();
  task.call = std::move(call);
  enqueue(stream, &last_collective_[link], waits, std::move(task));
}

std::vector<std::string> HostDevice::exchange(const std::string& mine) {
  set(RankStatus::waiting);
  std::vector<std::string> all = links_.exchange(rank_, mine);
  set(RankStatus::busy);
  return all;
}

void HostDevice::check_issued(std::int32_t op) const {
  if (op < 0 || at(op) >= issued_.size() || issued_[at(op)] == 0)
    throw MachineError(fmt::format("the host waits for operation {}, which has not been issued", op));
}

bool HostDevice::finished(std::int32_t op) {
  control_->throw_if_failed();
  const std::lock_guard lock(mutex_);
  check_issued(op);
  return done_[at(op)] != 0;
}

void HostDevice::wait_for(std::int32_t op) {
  std::unique_lock lock(mutex_);
  if (op != kEverything) check_issued(op);
  host_waiting_for_ = op;
  set(RankStatus::waiting);
  control_->wait_until(host_changed_, lock, [&] { return op == kEverything ? outstanding_ == 0 : done_[at(op)] != 0; });
  host_waiting_for_ = -1;
  set(RankStatus::busy);
}

void HostDevice::wait_host(std::int32_t op) { wait_for(op); }
void HostDevice::synchronize() { wait_for(kEverything); }

std::vector<OperationRecord> HostDevice::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<OperationRecord> all;
  std::size_t n = 0;
  for (const Worker& w : workers_) n += w.records.size();
  all.reserve(n);
  for (const Worker& w : workers_) all.insert(all.end(), w.records.begin(), w.records.end());
  return all;
}

void HostDevice::run_body(const std::function<void(Device&)>& body) {
  try {
    body(*this);
    synchronize();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    std::array<char, 64> where{};
    fmt::format_to_n(where.data(), where.size() - 1, "after issuing operation {}", last_issued_);
    control_->fail_with_exception(rank_, last_issued_, where.data());
  }
  const std::lock_guard lock(mutex_);
  set(RankStatus::ended);
  stopping_ = true;
  for (Worker& w : workers_) w.changed.notify_all();
}

void HostDevice::join() {
  for (Worker& w : workers_)
    if (w.thread.joinable()) w.thread.join();
}

void HostDevice::abandon(std::shared_ptr<const void> needed) {
  const std::lock_guard lock(mutex_);
  needed_ = std::move(needed);
  for (Worker& w : workers_)
    if (w.thread.joinable()) w.thread.detach();
}

}  // namespace fsdp::host
