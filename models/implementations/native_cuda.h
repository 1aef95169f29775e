// Constants of native-cuda's kernels that both the kernels (executor/cuda/toolkit/kernels/) and the facts about them
// (native_cuda.cpp) use.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fsdp {

// cuBLASLt's workspace, the whole scratch of a matmul: 32 MiB, what cuBLAS's documentation
// recommends for sm_90; the same on every GPU, so that a plan does not depend on it.
inline constexpr std::int64_t kMatmulWorkspaceBytes = std::int64_t{32} << 20;

// Sums over rows, column by column, are made in parts of at least 256 rows, at most 64 parts: as many partial sums of
// each column, in the accumulate type, before they are added up in order.
[[nodiscard]] constexpr std::int64_t column_sum_parts(std::int64_t rows) {
  return std::clamp<std::int64_t>((rows + 255) / 256, 1, 64);
}

// Backward of the embedding sorts the tokens by id: tiles of so many keys each, then runs merged two by two. The sorted
// tokens are added up in pieces of so many; each piece may leave the sums of its first and of its last row to its
// neighbours.
inline constexpr std::int64_t kSortedTile = 2048, kSummedTokens = 64;
[[nodiscard]] constexpr std::int64_t embedding_merges(std::int64_t tokens) {
  std::int64_t merges = 0;
  for (std::int64_t run = kSortedTile; run < tokens; run *= 2) ++merges;
  return merges;
}
[[nodiscard]] constexpr std::int64_t embedding_pieces(std::int64_t tokens) {
  return (tokens + kSummedTokens - 1) / kSummedTokens;
}

}  // namespace fsdp
