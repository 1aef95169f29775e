// The kernel of a modelled collective: blocks of threads that hold their multiprocessors and move bytes for a given
// time.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace fsdp::cuda {

struct Occupation {
  int blocks = 1, threads = 512;  // of the collective's kernel
  std::int64_t nanoseconds = 0;   // of the GPU's own clock, from when a block starts
  // Copied again and again, 16 bytes at a time. May be null with bytes 0.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;          // of the buffers, per pass
  std::int64_t traffic_bytes = 0;  // read and written in all, evenly over the time
};

// Enqueues it. The driver's error is left for cudaPeekAtLastError.
void enqueue_occupation(const Occupation&, CUstream_st*);

}  // namespace fsdp::cuda
