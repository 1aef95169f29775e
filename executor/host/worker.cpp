// What a stream of a rank does: takes its operations in order, waits for their events, runs and records them.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "executor/host/device.h"
#include "executor/ranks/instruments/heap_meter.h"
#include "executor/ranks/instruments/poison.h"
#include "models/index.h"

namespace fsdp::host {

namespace {

void take_own(const CollectiveCall& call, std::int64_t member) {
  if (call.own == nullptr) return;
  const bool gathers = call.action == CollectiveAction::all_gather;
  const std::int64_t width = size_of(call.type), elements = gathers ? call.slot(member) : call.elements;
  std::copy_n(call.own, elements * width, call.output + (gathers ? call.slot_begin(member) * width : 0));
}

}  // namespace

void HostDevice::work(Worker& w, Stream stream) {
  try {
    std::unique_lock lock(mutex_);
    w.records.reserve(256);
    take_tasks(w, stream, lock);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    std::array<char, 96> where{};
    fmt::format_to_n(where.data(), where.size() - 1, "operation {} on stream {}", w.op, name(stream));
    control_->fail_with_exception(rank_, w.op, where.data());
  }
}

void HostDevice::take_tasks(Worker& w, Stream stream, std::unique_lock<std::mutex>& lock) {
  while (true) {
    control_->wait_until(w.changed, lock, [&] { return !w.queue.empty() || stopping_; });
    if (w.queue.empty()) return;
    Task task = std::move(w.queue.front());
    w.queue.pop_front();
    w.op = task.op;
    set(w, stream, RankStatus::waiting_for_event);
    for (const std::int32_t event : task.waits) {
      set(w, stream, RankStatus::waiting_for_event, event);
      if (done_[at(event)] == 0) control_->wait_until(w.changed, lock, [&] { return done_[at(event)] != 0; });
    }
    set(w, stream, task.group != nullptr ? RankStatus::collective : RankStatus::kernel);
    w.group = task.group;
    lock.unlock();
    const OperationRecord record = run_task(task, stream);
    task = {};  // what the closure held goes before anybody hears that it has finished
    lock.lock();
    finish(w, record);
  }
}

OperationRecord HostDevice::run_task(const Task& task, Stream stream) const {
  for (const PoisonChange& p : task.poison) {
    if (p.poisoned) poison(p.data, static_cast<std::size_t>(p.bytes));
    else unpoison(p.data, static_cast<std::size_t>(p.bytes));
  }
  OperationRecord record{task.op, stream, now(), 0, 0, 0};
  heap_meter_begin();
  if (task.group != nullptr) {
    const std::int64_t member = task.group->member(rank_);
    take_own(task.call, member);
    record.sent_bytes = task.group->run(*control_, member, task.call);
  }
  if (task.body) task.body();
  record.heap_bytes = heap_meter_end();
  record.end = now();
  return record;
}

void HostDevice::finish(Worker& w, const OperationRecord& record) {
  w.records.push_back(record);
  set(w, record.stream, RankStatus::idle);
  w.group = nullptr;
  done_[at(record.op)] = 1;
  --outstanding_;
  control_->tick();
  for (Worker& other : workers_)
    if (other.waiting_for == record.op) other.changed.notify_one();
  if (host_waiting_for_ == record.op || outstanding_ == 0) host_changed_.notify_one();
}

void HostDevice::set(Worker& w, Stream stream, RankStatus::State state, std::int32_t event) {
  RankStatus::OnStream& entry = links_.status->streams[static_cast<std::size_t>(stream)];
  w.state = state;
  w.waiting_for = event;
  entry.op.store(w.op);
  entry.event.store(event);
  entry.state.store(state);
}

// In a collective: for which ranks it waits, or, where this rank is one of those, that it moves bytes.
Doing HostDevice::doing() const {
  const std::lock_guard lock(mutex_);
  Doing result = host::doing(*links_.status);
  for (const Worker& w : workers_) {
    if (w.state != RankStatus::collective || w.group == nullptr) continue;
    const std::vector<std::int64_t> absent = w.group->absent();
    const bool moves = std::find(absent.begin(), absent.end(), rank_) != absent.end();
    if (moves && result.blame < kRuns)
      result = {kRuns, w.op, fmt::format("is inside collective operation {}", w.op), {}};
    else if (w.op == result.op && result.blame < kRuns) {
      result.what += fmt::format(" for rank {}", fmt::join(absent, ", "));
      result.waits_for = absent;
    }
  }
  return result;
}

}  // namespace fsdp::host
