// The arithmetic of reductions between virtual ranks, one element at a time: over the ranks in their order, in double
// for f64 and in float otherwise, an average divided once at the end. The bits are those of ranks/reduce.cpp, as
// tests check; both files are compiled without fused multiply-add.
#pragma once

#include <cstdint>

#include "executor/arithmetic/device.h"
#include "executor/arithmetic/element.h"

namespace fsdp::cuda {

inline constexpr int kMostInputs = 256;  // ranks of one process; their addresses travel as the kernel's argument

enum class Combine : std::uint8_t { sum, average, scaled_sum, maximum };  // ReductionKind, for both sides

struct Inputs {
  const void* of[kMostInputs];
};

// Element i of the reduction over inputs.of[0 .. n). `factor`: what scaled_sum multiplies each part by.
template <class T>
FSDP_DEVICE inline T reduce_element(Combine combine, double factor, const Inputs& inputs, int n, std::int64_t i) {
  using Acc = Math<T>;
  const auto part = [&](int m) {
    const Acc x = load(static_cast<const T*>(inputs.of[m])[i]);
    return combine == Combine::scaled_sum ? x * static_cast<Acc>(factor) : x;
  };
  Acc total = part(0);
  for (int m = 1; m < n; ++m) {
    const Acc x = part(m);
    if (combine == Combine::maximum) total = total > x || total != total ? total : x;  // NaN propagates
    else total = total + x;
  }
  if (combine == Combine::average) total = total / static_cast<Acc>(n);
  T result;
  store(result, total);
  return result;
}

}  // namespace fsdp::cuda
