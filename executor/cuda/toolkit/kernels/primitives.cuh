// What kernels need of the machine beyond CUDA C++, for nvcc. Where kernels run on the processor instead (tests), the
// emulator has these functions, defines FSDP_CUDA_PRIMITIVES and leaves nothing here.
//
// Fragments of mma and ldmatrix are those of the PTX ISA for m16n8k16 in 16 bits; lane l is (g, t) = (l / 4, l % 4),
// the lower of two elements in the lower half of a register:
//   A, 16 x 16:  a[0] = A[g][2t, 2t+1]   a[1] = A[g+8][2t, 2t+1]   a[2] = A[g][2t+8, 2t+9]   a[3] = A[g+8][2t+8, 2t+9]
//   B, 16 x 8:   b[0] = B[2t, 2t+1][g]   b[1] = B[2t+8, 2t+9][g]
//   D, 16 x 8:   d[0], d[1] = D[g][2t, 2t+1]   d[2], d[3] = D[g+8][2t, 2t+1]
#pragma once

#ifndef FSDP_CUDA_PRIMITIVES
#define FSDP_CUDA_PRIMITIVES

#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "executor/arithmetic/element.h"

namespace fsdp::cuda {

// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char fsdp_dynamic_shared[];
  return reinterpret_cast<T*>(fsdp_dynamic_shared);
}

// Says what is wrong and ends the kernel; every later call of the runtime fails.
__device__ __forceinline__ void device_fail(const char* what) {
  printf("fsdp-plan: %s, in thread %u of block (%u, %u, %u)\n", what, threadIdx.x, blockIdx.x, blockIdx.y, blockIdx.z);
  __trap();
}

// d += a b, by a whole warp. T: BFloat16 or Float16.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Matrices of 8 rows of 16 bytes in shared memory; lanes 8 i ... 8 i + 7 bring the addresses of the rows of matrix i,
// aligned to 16 bytes. Lane l gets elements (l / 4, 2 (l % 4) + {0, 1}) of each, transposed: (2 (l % 4) + {0, 1}, l /
// 4).
__device__ __forceinline__ void ldmatrix_x2(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_transposed(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, both aligned to 16; not `present`: zeros, and `from` is not read (it must
// still be a valid address or null). Visible to this thread after a wait that covers its group, to others after a
// barrier behind that.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool present = true) {
  const std::uint32_t bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of the groups that this thread committed last are on their way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fsdp::cuda

#endif
