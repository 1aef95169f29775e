// Initial weights and synthetic tokens: pure functions of integers, the same on every machine, every partition and in
// Python:
//
//   M = 2**64 - 1
//   def mix(z):                                           # SplitMix64 (Steele, Lea, Flood 2014): one step from state z
//       z = (z + 0x9E3779B97F4A7C15) & M
//       z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M
//       z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M
//       return z ^ z >> 31
//   def fnv(name):                                        # FNV-1a, 64 bits
//       h = 0xCBF29CE484222325
//       for b in name.encode(): h = ((h ^ b) * 0x100000001B3) & M
//       return h
//   def weight(seed, name, i):                            # i: row-major index
//       h = mix(mix(seed ^ fnv(name)) ^ i)
//       s = (h & 65535) + (h >> 16 & 65535) + (h >> 32 & 65535) + (h >> 48)
//       return (s - 131070) * 5.285799584260604e-07
//   def token(seed, sequence, position, vocab): return mix(mix(mix(seed ^ 0x746F6B656E73) ^ sequence) ^ position) %
//     vocab
//
// The sum of four uniform 16-bit numbers is bell-shaped and ends at 3.46 deviations, like the truncated normal that
// many recipes start from; its mean is 131070 and its variance 4 (2^32 - 1) / 12, so the factor 0.02 / sqrt(that) gives
// deviation 0.02.
#include "executor/data/synthetic.h"

#include <string>
#include <string_view>

#include "executor/arithmetic/element.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr auto mix = split_mix;

std::uint64_t fnv(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

bool is_matrix(const Parameter& p) { return p.shape.size() > 1; }
double vector_value(const Parameter& p) { return p.name.ends_with("bias") ? 0.0 : 1.0; }

}  // namespace

InitialValues initial_values_of(std::uint64_t seed, const Parameter& p) {
  return {is_matrix(p), mix(seed ^ fnv(p.name)), vector_value(p)};
}

double initial_value(std::uint64_t seed, const Parameter& parameter, std::int64_t index) {
  const InitialValues initial = initial_values_of(seed, parameter);
  return initial.hashed ? hashed_weight(initial.key, index) : initial.value;
}

void fill_initial_values(std::uint64_t seed, const Parameter& parameter, std::int64_t begin, std::int64_t count,
                         DType type, std::byte* to) {
  const InitialValues initial = initial_values_of(seed, parameter);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    T* values = reinterpret_cast<T*>(to);
    for (std::int64_t i = 0; i < count; ++i)
      store(values[i], static_cast<Math<T>>(initial.hashed ? hashed_weight(initial.key, begin + i) : initial.value));
  });
}

std::int64_t synthetic_token(std::uint64_t seed, std::int64_t sequence, std::int64_t position, std::int64_t vocab) {
  if (vocab <= 0)
    throw MachineError("synthetic tokens need a vocabulary of at least one token, not " + std::to_string(vocab));
  return hashed_token(seed, sequence, position, vocab);
}

}  // namespace fsdp
