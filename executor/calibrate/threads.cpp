// Every number comes from the instruments' records of operations that wait for each other as those of a step do:
//
//   wake               matmuls, then an empty kernel on another stream, which has slept meanwhile, and for which the
//                      next matmuls wait:
//                      from the matmuls' end to its start
//   wake_beside        an empty kernel on another stream, after one of a row of matmuls that goes on: from that
//                      matmul's end
//   collective_beside  the same with a small collective, from when the last rank was ready to its end, less what it
//     takes alone
//   skew               matmuls, then a small collective that the next matmuls wait for: the last rank's time for the
//                      matmuls less what
//                      they take (their share of the ranks' mean in a very long row, where a queue for the cores is of
//                        no account), for a short
//                      row of matmuls and a long one: a line; and for the very long one, less that mean: where the
//                        line ends
#include "executor/calibrate/threads.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "executor/calibrate/ops.h"
#include "executor/calibrate/timer.h"
#include "models/index.h"

namespace fsdp {
namespace {

constexpr std::int64_t kArenaBytes = std::int64_t{1} << 30, kMatmul = 160, kElements = 1024;
constexpr int kRounds = 7;
constexpr int kTurns = 24, kRow = 48, kEvery = 8, kMeetings = 12, kShort = 4, kLong = 32, kVeryLong = 256;

using Records = std::vector<OperationRecord>;  // by operation
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One rank's part of an experiment: issues everything once.
using Script = std::function<void(Device&, const Issue& matmul, BufferView small)>;

// Runs the script kRounds times (at most for `seconds`) on all ranks; what the records of all ranks say each time, the
// median of it.
double measure(Backend& backend, DType type, double seconds, const Script& script,
               const std::function<double(const std::vector<Records>&)>& evaluate) {
  std::vector<std::vector<Records>> rounds(kRounds, std::vector<Records>(static_cast<std::size_t>(backend.ranks())));
  std::mutex mutex;
  backend.run([&](Device& device) {
    device.reserve_arena(kArenaBytes);
    BenchMemory memory(device, backend.implementation());
    const BufferView small = memory.take(kElements, type);
    const Issue matmul = kernel_setup(linear_case(kMatmul, type), Part::forward, type)(memory);
    const double until = now() + seconds;
    for (int round = -1; round < kRounds; ++round) {  // the first is to warm up
      device.begin_step();
      script(device, matmul, small);
      device.synchronize();
      Records by_operation;
      for (const OperationRecord& r : device.records()) {
        if (by_operation.size() <= at(r.op)) by_operation.resize(at(r.op) + 1);
        by_operation[at(r.op)] = r;
      }
      const bool late = now() > until && round >= 0;
      if (round >= 0) {
        const std::lock_guard lock(mutex);
        rounds[static_cast<std::size_t>(round)][static_cast<std::size_t>(device.rank())] = std::move(by_operation);
      }
      const std::vector<std::string> all = device.exchange(late ? "late" : "");  // all stop together
      if (std::find(all.begin(), all.end(), "late") != all.end()) break;
    }
  });
  std::vector<double> results;
  for (const auto& round : rounds)
    if (!round.front().empty()) results.push_back(evaluate(round));
  return median(results);
}

double after_sleep(Backend& backend, DType type, double seconds) {
  constexpr std::int32_t each = kShort + 1;  // operations of one turn
  const auto script = [](Device& device, const Issue& matmul, BufferView) {
    std::int32_t op = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn > 0) {  // an empty kernel is what the matmuls wait with
        const std::int32_t woken[] = {op - 1};
        device.launch(op++, Stream::compute, woken, [] {});
      }
      for (int i = 0; i < kShort; ++i) matmul(device, op, i);
      const std::int32_t ready[] = {op - 1};
      device.launch(op++, Stream::copy_in, ready, [] {});
    }
  };
  return measure(backend, type, seconds, script, [](const std::vector<Records>& ranks) {
    std::vector<double> gaps;
    for (const Records& r : ranks)
      for (std::int32_t turn = 0; turn < kTurns; ++turn) {
        const std::int32_t woken = turn * (each + 1) + kShort;
        gaps.push_back(std::max(0.0, r[at(woken)].start - r[at(woken - 1)].end));
      }
    return mean(gaps);
  });
}

// A row of matmuls with something on another stream after every kEvery-th: calls matmul(op, i), which counts `op` on,
// and beside(op, after) with the operation that it is to wait for.
template <class Matmul, class Beside>
void for_row(const Matmul& matmul, const Beside& beside) {
  std::int32_t op = 0;
  for (int i = 0; i < kRow; ++i) {
    matmul(op, i);
    if (i % kEvery != kEvery / 2) continue;
    beside(op, op - 1);
    ++op;
  }
}

void row_beside(Device& device, const Issue& matmul,
                const std::function<void(std::int32_t op, std::int32_t after)>& beside) {
  for_row([&](std::int32_t& op, int i) { matmul(device, op, i); }, beside);
}

// Those matmuls, and what stands beside them.
std::vector<std::array<std::int32_t, 2>> row_pairs() {
  std::vector<std::array<std::int32_t, 2>> pairs;
  for_row([](std::int32_t& op, int) { ++op; },
          [&](std::int32_t op, std::int32_t after) {
            pairs.push_back({after, op});
          });
  return pairs;
}

double beside(Backend& backend, DType type, double seconds) {
  const auto script = [](Device& device, const Issue& matmul, BufferView) {
    row_beside(device, matmul, [&](std::int32_t op, std::int32_t after) {
      const std::int32_t waits[] = {after};
      device.launch(op, Stream::copy_in, waits, [] {});
    });
  };
  return measure(backend, type, seconds, script, [](const std::vector<Records>& ranks) {
    std::vector<double> gaps;
    for (const Records& r : ranks)
      for (const auto& [matmul, other] : row_pairs())
        gaps.push_back(std::max(0.0, r[at(other)].start - r[at(matmul)].end));
    return mean(gaps);
  });
}

void small_all_reduce(Device& device, std::int32_t op, std::span<const std::int32_t> waits, BufferView small,
                      DType type) {
  device.all_reduce(op, Stream::all_reduce, Communicator::world, waits, small, kElements, type, Reduction::average);
}

// From the last rank's readiness to the mean of the ranks' ends.
double from_last_ready(const std::vector<Records>& ranks, std::int32_t ready, std::int32_t collective) {
  double last = 0, end = 0;
  for (const Records& r : ranks) {
    last = std::max(last, r[at(ready)].end);
    end += r[at(collective)].end / static_cast<double>(ranks.size());
  }
  return std::max(0.0, end - last);
}

double collective_after(Backend& backend, DType type, double seconds, bool row_goes_on) {
  const auto script = [=](Device& device, const Issue& matmul, BufferView small) {
    if (row_goes_on) {
      row_beside(device, matmul, [&](std::int32_t op, std::int32_t after) {
        const std::int32_t waits[] = {after};
        small_all_reduce(device, op, waits, small, type);
      });
      return;
    }
    for (std::int32_t i = 0; i < 2 * kMeetings; i += 2) {
      const std::int32_t previous[] = {i - 1}, ready[] = {i};
      device.launch(i, Stream::compute, i == 0 ? std::span<const std::int32_t>{} : previous, [] {});
      small_all_reduce(device, i + 1, ready, small, type);
    }
  };
  return measure(backend, type, seconds, script, [=](const std::vector<Records>& ranks) {
    std::vector<double> times;
    if (row_goes_on)
      for (const auto& [matmul, collective] : row_pairs()) times.push_back(from_last_ready(ranks, matmul, collective));
    else
      for (std::int32_t i = 2; i < 2 * kMeetings; i += 2) times.push_back(from_last_ready(ranks, i, i + 1));
    return mean(times);
  });
}

// Seconds of matmuls between two meetings: the last rank's and the mean of the ranks'.
struct Meeting {
  double last = 0, mean = 0;
};
Meeting meeting(Backend& backend, DType type, double seconds, int matmuls) {
  const std::int32_t meetings = matmuls > kLong ? 4 : kMeetings;
  const auto script = [=](Device& device, const Issue& matmul, BufferView small) {
    std::int32_t op = 0;
    for (int m = 0; m < meetings; ++m) {
      const std::int32_t met[] = {op - 1};
      device.launch(op, Stream::compute, op == 0 ? std::span<const std::int32_t>{} : met, [] {});
      ++op;
      for (int i = 0; i < matmuls; ++i) matmul(device, op, i);
      const std::int32_t ready[] = {op - 1};
      small_all_reduce(device, op++, ready, small, type);
    }
  };
  const std::int32_t each = matmuls + 2;  // operations of one meeting
  std::vector<double> means;
  Meeting result;
  result.last = measure(backend, type, seconds, script, [&](const std::vector<Records>& ranks) {
    double last = 0, mean = 0;
    for (std::int32_t m = 1; m < meetings; ++m) {
      double most = 0, sum = 0;
      for (const Records& r : ranks) {
        const double own = r[at(m * each + matmuls)].end - r[at(m * each)].start;
        most = std::max(most, own);
        sum += own / static_cast<double>(ranks.size());
      }
      last += most / (meetings - 1);
      mean += sum / (meetings - 1);
    }
    means.push_back(mean);
    return last;
  });
  result.mean = median(means);
  return result;
}

}  // namespace

ThreadCosts time_threads(Backend& backend, DType type, double seconds_budget) {
  const double each = seconds_budget / 8;
  ThreadCosts c;
  c.wake = after_sleep(backend, type, each);
  c.wake_beside = std::max(c.wake, beside(backend, type, each));
  if (backend.ranks() < 2) return c;
  c.collective_beside = c.wake + std::max(0.0, collective_after(backend, type, each, true) -
                                                   collective_after(backend, type, each, false));
  const Meeting few = meeting(backend, type, each, kShort), many = meeting(backend, type, each, kLong);
  const Meeting most = meeting(backend, type, 2 * each, kVeryLong);
  const double matmul = most.mean / kVeryLong;
  const double few_late = std::max(0.0, few.last - kShort * matmul),
               many_late = std::max(0.0, many.last - kLong * matmul);
  c.skew_share = std::clamp((many_late - few_late) / ((kLong - kShort) * matmul), 0.0, 1.0);
  c.skew = std::max(0.0, few_late - c.skew_share * kShort * matmul);
  c.skew_most = std::max({few_late, many_late, most.last - most.mean});
  return c;
}

}  // namespace fsdp
