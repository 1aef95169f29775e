// What the host thread of a rank puts on its GPU's streams, and how it waits for them.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "executor/cuda/toolkit/device/check.h"
#include "executor/cuda/toolkit/device/device.h"
#include "models/index.h"
#include "models/input/error.h"

namespace fsdp::cuda {

namespace {
constexpr std::int32_t kMostOperations = 1 << 26;  // of one step; a sane bound for the tables
}  // namespace

void CudaDevice::begin_step() {
  synchronize();
  for (OnStream& s : streams_) {
    s.issued.clear();
    s.finished = 0;
    if (s.tasks) s.tasks->forget();
  }
  issued_.clear();
  std::fill(place_.begin(), place_.end(), -1);
  std::fill(last_collective_.begin(), last_collective_.end(), -1);
  records_.clear();
  status_.issued.store(-1);
  ++status_.begun;
  // Times of a step count from here: cudaEventElapsedTime answers in float, whose steps grow with what it counts.
  check(cudaEventRecord(step_begin_, on(Stream::compute).raw), s_.rank, "recording an event");
  check(cudaEventSynchronize(step_begin_), s_.rank, "waiting for an event");
  step_begin_seconds_ = now();
}

std::size_t CudaDevice::index_of(std::int32_t op) const {
  if (op < 0 || at(op) >= place_.size() || place_[at(op)] < 0)
    throw MachineError(fmt::format("the host waits for operation {}, which has not been issued", op));
  return at(place_[at(op)]);
}

std::size_t CudaDevice::begin_operation(std::int32_t op, Stream stream, std::span<const std::int32_t> waits,
                                        std::int32_t previous) {
  s_.control->throw_if_failed();
  if (op < 0 || op > kMostOperations) throw MachineError(fmt::format("{} is no operation's index", op));
  if (at(op) < place_.size() && place_[at(op)] >= 0)
    throw MachineError(fmt::format("operation {} is issued twice in one step", op));
  OnStream& s = on(stream);
  const auto wait_for = [&](std::int32_t w) {
    const Issued& other = issued_[at(place_[at(w)])];
    if (other.stream != stream)
      check(cudaStreamWaitEvent(s.raw, events_[at(place_[at(w)])].end, 0), s_.rank, "putting a wait on a stream");
  };
  for (const std::int32_t w : waits) {
    if (w < 0 || at(w) >= place_.size() || place_[at(w)] < 0)
      throw MachineError(fmt::format("operation {} waits for operation {}, which has not been issued", op, w));
    wait_for(w);
  }
  if (previous >= 0) wait_for(previous);
  const std::size_t index = issued_.size();
  if (at(op) >= place_.size()) place_.resize(at(op) + 1, -1);
  if (index >= events_.size()) {
    events_.emplace_back();
    check(cudaEventCreate(&events_.back().start), s_.rank, "making an event");
    check(cudaEventCreate(&events_.back().end), s_.rank, "making an event");
  }
  check(cudaEventRecord(events_[index].start, s.raw), s_.rank, "recording an event");
  issued_.push_back({op, stream});
  place_[at(op)] = static_cast<std::int32_t>(index);
  status_.issued.store(op);
  return index;
}

void CudaDevice::end_operation(std::size_t index) {
  OnStream& s = on(issued_[index].stream);
  check(cudaEventRecord(events_[index].end, s.raw), s_.rank, "recording an event");
  s.issued.push_back(index);
  s_.control->tick();
}

void CudaDevice::launch(std::int32_t op, Stream stream, std::span<const std::int32_t> waits, KernelBody body) {
  const std::size_t index = begin_operation(op, stream, waits);
  OnStream& s = on(stream);
  if (!s.tasks)
    s.tasks = std::make_unique<HostTasks>(s_.rank, stream, flags_ + static_cast<std::size_t>(stream) * kFlagsApart,
                                          s_.control, status_);
  s.tasks->enqueue(op, std::move(body), s.raw);
  issued_[index].host = true;
  end_operation(index);
}

void CudaDevice::launch_kernel(std::int32_t op, Stream stream, std::span<const std::int32_t> waits, KernelCall call) {
  const std::size_t index = begin_operation(op, stream, waits);
  enqueue_kernel(call, on(stream).raw, context_);
  check(cudaPeekAtLastError(), s_.rank, fmt::format("launching the kernel of operation {}", op));
  end_operation(index);
}

host::GroupPlace CudaDevice::place(std::size_t link) const {
  const GpuGroup& group = *links_[link].group;
  return {group.member(), group.size()};
}

void CudaDevice::issue_collective(std::size_t link, std::span<const std::int32_t> waits, host::CollectiveCall call) {
  GpuGroup& group = *links_[link].group;
  const std::size_t index = begin_operation(call.op, call.stream, waits, last_collective_[link]);
  last_collective_[link] = call.op;
  if (call.own != nullptr) {
    const bool gathers = call.action == host::CollectiveAction::all_gather;
    const std::int64_t width = size_of(call.type), first = gathers ? call.slot_begin(group.member()) : 0,
                       count = gathers ? call.slot(group.member()) : call.elements;
    if (count > 0)
      check(cudaMemcpyAsync(call.output + first * width, call.own, static_cast<std::size_t>(count * width),
                            cudaMemcpyDefault, on(call.stream).raw),
            s_.rank, "copying this rank's part");
  }
  status_.host.store(host::RankStatus::waiting);
  meeting_.store(&group);
  group.enqueue(call, on(call.stream).raw);
  meeting_.store(nullptr);
  status_.host.store(host::RankStatus::busy);
  issued_[index].collective = true;
  issued_[index].sent_bytes = bytes_from_others(call, group.member(), group.size());
  end_operation(index);
}

// Looks at each stream's oldest operation that had not finished. A failure of the GPU's is put down to the oldest of
// all.
void CudaDevice::poll() {
  std::size_t oldest = issued_.size();
  cudaError_t error = cudaSuccess;
  for (OnStream& s : streams_) {
    for (; s.finished < s.issued.size(); ++s.finished) {
      error = cudaEventQuery(events_[s.issued[s.finished]].end);
      if (error != cudaSuccess) break;
      s_.control->tick();
    }
    if (s.finished < s.issued.size()) oldest = std::min(oldest, s.issued[s.finished]);
    if (error != cudaSuccess && error != cudaErrorNotReady) break;
    error = cudaSuccess;
  }
  const std::int32_t op = oldest < issued_.size() ? issued_[oldest].op : -1;
  if (error != cudaSuccess) {
    try {
      check(error, s_.rank, fmt::format("operation {}, or one that runs beside it", op));
    } catch (const MachineError& e) {
      throw RankFailure(s_.rank, op, e.what());
    }
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {            // for doing(): the oldest waits for nothing but itself
    if (oldest < issued_.size() && issued_[oldest].host) break;  // its thread says what it does
    const bool here = oldest < issued_.size() && static_cast<std::size_t>(issued_[oldest].stream) == i;
    status_.streams[i].op.store(op);
    status_.streams[i].state.store(!here                        ? host::RankStatus::idle
                                   : issued_[oldest].collective ? host::RankStatus::collective
                                                                : host::RankStatus::kernel);
  }
}

template <class Done>
void CudaDevice::wait(Done done) {
  status_.host.store(host::RankStatus::waiting);
  const auto begin = Clock::now();
  auto looked = begin;
  while (true) {
    s_.control->throw_if_failed();
    poll();
    if (done()) break;
    const auto since = Clock::now() - begin;
    if (since < std::chrono::microseconds(200)) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(since < std::chrono::milliseconds(5) ? 10 : 50));
    if (Clock::now() - looked > std::chrono::milliseconds(5)) {
      looked = Clock::now();
      for (GpuLink& l : links_) l.group->poll();
    }
  }
  status_.host.store(host::RankStatus::busy);
}

bool CudaDevice::has_finished(std::int32_t op) const {
  const std::size_t index = index_of(op);
  const OnStream& s = streams_[static_cast<std::size_t>(issued_[index].stream)];
  const auto place =
      static_cast<std::size_t>(std::lower_bound(s.issued.begin(), s.issued.end(), index) - s.issued.begin());
  return s.finished > place;
}

bool CudaDevice::finished(std::int32_t op) {
  if (has_finished(op)) return true;
  s_.control->throw_if_failed();
  poll();
  return has_finished(op);
}

void CudaDevice::wait_host(std::int32_t op) {
  wait([&] { return has_finished(op); });
}

void CudaDevice::synchronize() {
  wait([&] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const OnStream& s) { return s.finished == s.issued.size(); });
  });
}

std::vector<OperationRecord> CudaDevice::records() const {
  if (records_.empty()) {
    for (const OnStream& s : streams_) {
      const std::size_t first = records_.size();
      for (std::size_t k = 0; k < s.finished; ++k) {
        const Issued& i = issued_[s.issued[k]];
        float start = 0,
              end = 0;  // milliseconds; both from one event, so that what happened before is not said to be after
        check(cudaEventElapsedTime(&start, step_begin_, events_[s.issued[k]].start), s_.rank, "reading a time");
        check(cudaEventElapsedTime(&end, step_begin_, events_[s.issued[k]].end), s_.rank, "reading a time");
        const auto seconds = [&](float ms) { return step_begin_seconds_ + static_cast<double>(ms) * 1e-3; };
        OperationRecord r{i.op, i.stream, seconds(start), seconds(end), 0, i.sent_bytes};
        if (i.host) r.heap_bytes = s.tasks->heap_bytes(i.op);
        records_.push_back(r);
      }
      std::stable_sort(records_.begin() + static_cast<std::ptrdiff_t>(first), records_.end(),
                       [](const auto& a, const auto& b) { return a.start < b.start; });
    }
  }
  return records_;
}

}  // namespace fsdp::cuda
