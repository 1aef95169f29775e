// What a stream of a rank does: takes its operations in order, waits for their events, runs and records them.
#include <fmt/format.h>

#include "executor/host/device.h"
#include "executor/host/heap_meter.h"
#include "executor/host/poison.h"

namespace fsdp::host {

namespace {
std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
}  // namespace

void HostDevice::work(Worker& w, Stream stream) {
  const auto failed = [&](const char* what) {
    const std::lock_guard lock(mutex_);
    control_->fail(rank_, w.op, fmt::format("rank {}, operation {} on stream {}: {}", rank_, w.op, name(stream), what));
  };
  try {
    std::unique_lock lock(mutex_);
    w.records.reserve(256);
    take_tasks(w, stream, lock);
  } catch (const RankFailure& e) {
    control_->fail(e.rank(), e.op(), e.what());
  } catch (const std::exception& e) {
    failed(e.what());
  } catch (...) {
    failed("unknown exception");
  }
}

void HostDevice::take_tasks(Worker& w, Stream stream, std::unique_lock<std::mutex>& lock) {
  while (true) {
    control_->wait_until(w.changed, lock, [&] { return !w.queue.empty() || stopping_; });
    if (w.queue.empty()) return;
    Task task = std::move(w.queue.front());
    w.queue.pop_front();
    w.op = task.op;
    set(w, stream, Journal::waiting_for_event);
    for (const std::int32_t event : task.waits) {
      set(w, stream, Journal::waiting_for_event, event);
      if (done_[at(event)] == 0) control_->wait_until(w.changed, lock, [&] { return done_[at(event)] != 0; });
    }
    set(w, stream, task.group != nullptr ? Journal::collective : Journal::kernel);
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
  if (task.group != nullptr) record.sent_bytes = task.group->run(*control_, task.group->member(rank_), task.post);
  else if (task.body) task.body();
  record.heap_bytes = heap_meter_end();
  record.end = now();
  return record;
}

void HostDevice::finish(Worker& w, const OperationRecord& record) {
  w.records.push_back(record);
  set(w, record.stream, Journal::idle);
  w.group = nullptr;
  done_[at(record.op)] = 1;
  --outstanding_;
  control_->tick();
  for (Worker& other : workers_)
    if (other.waiting_for == record.op) other.changed.notify_one();
  if (host_waiting_for_ == record.op || outstanding_ == 0) host_changed_.notify_one();
}

void HostDevice::set(Worker& w, Stream stream, Journal::State state, std::int32_t event) {
  Journal::OnStream& entry = links_.journal->streams[static_cast<std::size_t>(stream)];
  w.state = state;
  w.waiting_for = event;
  entry.op.store(w.op);
  entry.event.store(event);
  entry.state.store(state);
}

// In a collective: and for which ranks it waits.
Doing HostDevice::doing() const {
  const std::lock_guard lock(mutex_);
  Doing result = host::doing(*links_.journal);
  for (const Worker& w : workers_)
    if (w.state == Journal::collective && w.op == result.op && w.group != nullptr)
      result.what += fmt::format(" for rank {}", fmt::join(w.group->absent(), ", "));
  return result;
}

}  // namespace fsdp::host
