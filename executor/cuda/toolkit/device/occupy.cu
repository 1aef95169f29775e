#include <cuda_runtime.h>

#include "executor/cuda/toolkit/device/occupy.h"

namespace fsdp::cuda {
namespace {

constexpr int kSlices = 256;  // of the time; the bytes of a slice are moved at its beginning

__device__ std::uint64_t now() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Each block moves its share of each slice's bytes, then waits for the end of the slice.
__global__ void occupy(std::uint64_t nanoseconds, const uint4* from, uint4* to, std::uint64_t words,
                       std::uint64_t words_per_slice) {
  const std::uint64_t begin = now();
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t moved = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::uint64_t slice = 0; slice < kSlices; ++slice) {
    for (const std::uint64_t end = (slice + 1) * words_per_slice; moved < end; moved += stride)
      to[moved % words] = from[moved % words];
    const std::uint64_t until = begin + nanoseconds * (slice + 1) / kSlices;
    while (now() < until) __nanosleep(200);
  }
}

}  // namespace

void enqueue_occupation(const Occupation& o, CUstream_st* stream) {
  const std::uint64_t words = o.from != nullptr && o.to != nullptr ? static_cast<std::uint64_t>(o.bytes) / 16 : 0;
  const std::uint64_t moved =
      words == 0 ? 0 : static_cast<std::uint64_t>(o.traffic_bytes) / 32 / kSlices;  // a word moved is read and written
  occupy<<<static_cast<unsigned>(o.blocks), static_cast<unsigned>(o.threads), 0, stream>>>(
      static_cast<std::uint64_t>(o.nanoseconds), reinterpret_cast<const uint4*>(o.from), reinterpret_cast<uint4*>(o.to),
      words == 0 ? 1 : words, moved);
}

}  // namespace fsdp::cuda
