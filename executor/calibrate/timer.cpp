#include "executor/calibrate/timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "executor/arithmetic/element.h"
#include "executor/training/machine.h"
#include "models/host.h"

namespace fsdp {

namespace {

constexpr double kBatchSeconds = 4e-3,
                 kTurnsSeconds = 40e-3;  // where ranks take turns on cores: many of the system's time slices

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The mean over the ranks (or another reduction), the same on all of them.
double agree(Device& device, BufferView cell, double value, Reduction reduction = Reduction::average) {
  device.write(cell, std::as_bytes(std::span(&value, 1)));
  device.begin_step();
  device.all_reduce(0, Stream::compute, Communicator::world, {}, cell, 1, DType::f64, reduction);
  device.synchronize();
  std::vector<std::byte> copy;
  double result = 0;
  std::memcpy(&result, device.bytes_of(cell, copy).data(), sizeof result);
  return result;
}

// Seconds per round of one batch, all ranks starting together; from the first issue, since issuing takes a core's time
// too. The same on every rank.
double batch(Device& device, BufferView cell, std::int64_t ranks, const Issue& issue, int rounds) {
  const std::int64_t cores = usable_cores();
  static_cast<void>(agree(device, cell, 0));
  device.begin_step();
  const double begin = seconds_now(), used = own_processor_seconds();
  std::int32_t op = 0;
  for (int i = 0; i < rounds; ++i) issue(device, op, i);
  device.synchronize();
  const double own = seconds_now() - begin, taken = own_processor_seconds() - used, elapsed = agree(device, cell, own);
  if (ranks <= cores) return elapsed / rounds;
  return std::max(elapsed, agree(device, cell, taken, Reduction::maximum) / static_cast<double>(cores)) /
         rounds;  // maximum: till the last rank's end
}

}  // namespace

BufferView BenchMemory::raw(std::int64_t bytes) {
  const BufferView view = device_.allocate(Stream::compute, used_, bytes);
  used_ += (bytes + 63) / 64 * 64 + 64;
  return view;
}

BufferView BenchMemory::take(std::int64_t elements, DType type) {
  const BufferView view = raw(elements * size_of(type));
  with_type(type, [&](auto element) {
    using T = decltype(element);
    std::vector<T> values(static_cast<std::size_t>(elements));
    // As random as activations are: a GPU's power, and with it its clock, depends on the bits.
    constexpr std::int64_t kPeriod = 2048;
    for (std::int64_t i = 0; i < std::min(elements, kPeriod); ++i)
      store(values[static_cast<std::size_t>(i)],
            static_cast<Math<T>>(static_cast<double>(i * 7919 % kPeriod - kPeriod / 2) / 65536));
    for (std::int64_t i = kPeriod; i < elements; i += kPeriod)
      std::copy_n(values.begin(), std::min(kPeriod, elements - i), values.begin() + i);
    device_.write(view, std::as_bytes(std::span(values)));
  });
  return view;
}

BufferView BenchMemory::take_ids(std::int64_t elements, std::int64_t below) {
  const BufferView view = raw(elements * size_of(DType::i64));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < elements; ++i) ids[static_cast<std::size_t>(i)] = i * 7919 % below;
  device_.write(view, std::as_bytes(std::span(ids)));
  return view;
}

int buffer_sets(std::int64_t bytes, Reuse reuse) {
  const std::int64_t footprint = reuse == Reuse::warm ? 8 << 20 : 64 << 20, most = reuse == Reuse::warm ? 16 : 256;
  return static_cast<int>(std::clamp<std::int64_t>(footprint / std::max<std::int64_t>(bytes, 1), 1, most));
}

double Timer::time(const Setup& setup) const {
  double result = 0;
  std::mutex mutex;
  backend.run([&](Device& device) {
    device.reserve_arena(arena_bytes);
    BenchMemory memory(device, backend.implementation());
    const BufferView cell = memory.take(1, DType::f64);
    const Issue issue = setup(memory);
    const auto seconds = [&](int rounds) { return batch(device, cell, backend.ranks(), issue, rounds); };
    static_cast<void>(seconds(1));  // first touch, first call of the library
    const double rough = seconds(2);
    const bool turns = backend.ranks() > usable_cores();
    const double batch_seconds =
        turns ? std::min(kTurnsSeconds, seconds_per_benchmark) : std::min(kBatchSeconds, seconds_per_benchmark / 3);
    const int rounds = static_cast<int>(std::clamp(batch_seconds / std::max(rough, 1e-7), 1.0, 512.0));
    const double until = seconds_now() + seconds_per_benchmark;
    std::vector<double> samples;
    if (2 * rough > seconds_per_benchmark) samples.push_back(rough);  // it has had its time
    const auto more = [&] {
      return agree(device, cell, seconds_now() < until && samples.size() < 64 ? 1.0 : 0.0) > 0.5;
    };
    while (samples.empty() || more()) samples.push_back(seconds(rounds));
    std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
    const std::lock_guard lock(mutex);
    result = samples[samples.size() / 2];  // the same on every rank
  });
  return result;
}

std::vector<std::vector<OperationRecord>> Timer::one_round(const Setup& setup) const {
  std::vector<std::vector<OperationRecord>> records(static_cast<std::size_t>(backend.ranks()));
  backend.run([&](Device& device) {  // every rank writes its own
    device.reserve_arena(arena_bytes);
    BenchMemory memory(device, backend.implementation());
    const Issue issue = setup(memory);
    device.begin_step();
    std::int32_t op = 0;
    issue(device, op, 0);
    device.synchronize();
    records[static_cast<std::size_t>(device.rank())] = device.records();
  });
  return records;
}

}  // namespace fsdp
