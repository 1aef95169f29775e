#include "executor/data/order.h"

#include "executor/data/split_mix.h"
#include "models/input/error.h"

namespace fsdp {

std::int64_t window_of_sequence(std::uint64_t seed, std::int64_t sequence, std::int64_t windows) {
  if (sequence < 0 || windows < 1) throw MachineError("no window has a negative number, and no file has no window");
  const auto n = static_cast<std::uint64_t>(windows);
  const std::uint64_t epoch = static_cast<std::uint64_t>(sequence) / n;
  std::uint64_t place = static_cast<std::uint64_t>(sequence) % n;
  unsigned half = 1;
  while (half < 31 && std::uint64_t{1} << (2 * half) < n) ++half;
  if (std::uint64_t{1} << (2 * half) < n) throw MachineError("a file of more than 2^62 windows cannot be shuffled");
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  const std::uint64_t key = split_mix(split_mix(seed ^ 0x73687566666C65u) ^ epoch);
  do {
    std::uint64_t left = place >> half, right = place & mask;
    for (std::uint64_t turn = 0; turn < 4; ++turn) {
      const std::uint64_t next = left ^ (split_mix(split_mix(key ^ turn) ^ right) & mask);
      left = right;
      right = next;
    }
    place = left << half | right;
  } while (place >= n);
  return static_cast<std::int64_t>(place);
}

}  // namespace fsdp
