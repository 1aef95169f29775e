// Reductions over the lanes of a warp and the threads of a block, in a fixed order: the same bits every time.
#pragma once

#include "executor/cuda/toolkit/kernels/primitives.cuh"

namespace fsdp::cuda {

struct Sum {
  template <class M>
  __device__ M operator()(M a, M b) const {
    return a + b;
  }
};
struct Largest {  // not a number wins
  template <class M>
  __device__ M operator()(M a, M b) const {
    return a != a || a >= b ? a : b;
  }
};

// Over all 32 lanes; every lane gets the result, the same bits in each (Op must be commutative).
template <class Op, class M>
__device__ M warp_reduce(M x, Op op = {}) {
  for (int distance = 16; distance > 0; distance /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// Over a one-dimensional block of whole warps, at most 1024 threads; every thread gets the result. `zero`: what changes
// nothing. All threads must call it; it may be called again at once.
template <class Op, class M>
__device__ M block_reduce(M x, M zero, Op op = {}) {
  __shared__ M of_warp[32];
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  x = warp_reduce<Op>(x, op);
  if (warps == 1) return x;
  if (lane == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_reduce<Op>(lane < warps ? of_warp[lane] : zero, op);
  __syncthreads();  // the next call writes where this one has read
  return x;
}

template <class M>
__device__ M block_sum(M x) {
  return block_reduce<Sum>(x, M(0));
}

}  // namespace fsdp::cuda
