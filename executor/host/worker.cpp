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
    w.state = State::waiting;
    for (const std::int32_t event : task.waits) {
      w.waiting_for = event;
      if (done_[at(event)] == 0) control_->wait_until(w.changed, lock, [&] { return done_[at(event)] != 0; });
    }
    w.waiting_for = -1;
    w.state = task.group != nullptr ? State::collective : State::kernel;
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
  w.state = State::idle;
  w.group = nullptr;
  done_[at(record.op)] = 1;
  --outstanding_;
  control_->tick();
  for (Worker& other : workers_)
    if (other.waiting_for == record.op) other.changed.notify_one();
  if (host_waiting_for_ == record.op || outstanding_ == 0) host_changed_.notify_one();
}

HostDevice::Doing HostDevice::doing() const {
  const std::lock_guard lock(mutex_);
  Doing result{0, last_issued_, "waits for others"};
  const auto consider = [&](int blame, std::int32_t op, std::string what) {
    if (blame > result.blame) result = {blame, op, std::move(what)};
  };
  for (int s = 0; s < kStreams; ++s) {
    const Worker& w = workers_[static_cast<std::size_t>(s)];
    const auto stream = name(static_cast<Stream>(s));
    if (w.state == State::kernel) consider(4, w.op, fmt::format("is inside operation {} on stream {}", w.op, stream));
    if (w.state == State::waiting)
      consider(1, w.op, fmt::format("operation {} on stream {} waits for operation {}", w.op, stream, w.waiting_for));
    if (w.state == State::collective)
      consider(2, w.op,
               fmt::format("waits in collective operation {} on stream {} for rank {}", w.op, stream,
                           fmt::join(w.group->absent(), ", ")));
  }
  if (host_ == Host::busy) consider(3, last_issued_, fmt::format("issues nothing after operation {}", last_issued_));
  return result;
}

}  // namespace fsdp::host
