// Sums over tokens, column by column: gradients of biases, norm weights and learned positions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "executor/arithmetic/element.h"

namespace fsdp {

// to[c] (+)= sum over rows of term(row, c), summed in the arithmetic type. term(row, c) is evaluated row by row over a
// few hundred columns at a time, whose sums live on the stack.
template <class T, class Term>
void column_sum(std::int64_t rows, std::int64_t columns, T* to, bool accumulate, const Term& term) {
  constexpr std::int64_t kChunk = 256;
  Math<T> sums[kChunk];
  for (std::int64_t begin = 0; begin < columns; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, columns - begin);
    std::fill_n(sums, count, Math<T>(0));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < count; ++c) sums[c] += term(r, begin + c);
    for (std::int64_t c = 0; c < count; ++c) put(to[begin + c], sums[c], accumulate);
  }
}

}  // namespace fsdp
