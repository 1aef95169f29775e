// The functions of CUDA C++ and of executor/cuda/toolkit/kernels/primitives.cuh, by the fibers of cuda.h, which
// includes this.
#pragma once

#define FSDP_CUDA_PRIMITIVES  // primitives.cuh has nothing to add

inline void __syncthreads(const std::source_location& place = std::source_location::current()) {
  fsdp::emulation::Block::here().barrier(place);
}

namespace fsdp::emulation {

template <class T>
struct ShuffleOperand {
  T value, result;
  unsigned from;  // lane
};

template <class T>
T shuffle(const char* kind, unsigned mask, T value, unsigned from, const std::source_location& place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  ShuffleOperand<T> mine{value, value, from};
  Block& block = Block::here();
  const auto work = [&block](ShuffleOperand<T>* const* lanes) {
    for (unsigned l = 0; l < 32; ++l) {
      if (lanes[l] == nullptr) continue;
      if (lanes[lanes[l]->from] == nullptr)
        block.fail("a shuffle reads lane " + std::to_string(lanes[l]->from) + ", which is not in its mask");
      lanes[l]->result = lanes[lanes[l]->from]->value;
    }
  };
  block.warp(kind, mask, mine, work, place);
  return mine.result;
}

struct VoteOperand {
  bool predicate;
  unsigned ballot;
};

inline unsigned vote(const char* kind, unsigned mask, bool predicate, const std::source_location& place) {
  VoteOperand mine{predicate, 0};
  const auto work = [](VoteOperand* const* lanes) {
    unsigned ballot = 0;
    for (unsigned l = 0; l < 32; ++l)
      if (lanes[l] != nullptr && lanes[l]->predicate) ballot |= 1u << l;
    for (unsigned l = 0; l < 32; ++l)
      if (lanes[l] != nullptr) lanes[l]->ballot = ballot;
  };
  Block::here().warp(kind, mask, mine, work, place);
  return mine.ballot;
}

}  // namespace fsdp::emulation

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       const std::source_location& place = std::source_location::current()) {
  (void)fsdp::emulation::vote("__syncwarp", mask, false, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const std::source_location& place = std::source_location::current()) {
  return fsdp::emulation::vote("__ballot_sync", mask, predicate != 0, place);
}
inline int __any_sync(unsigned mask, int predicate,
                      const std::source_location& place = std::source_location::current()) {
  return fsdp::emulation::vote("__any_sync", mask, predicate != 0, place) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const std::source_location& place = std::source_location::current()) {
  return fsdp::emulation::vote("__all_sync", mask, predicate != 0, place) == mask ? 1 : 0;
}

// `width`: a power of two; lanes shuffle within groups of that many. Out of the group: the own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              const std::source_location& place = std::source_location::current()) {
  const unsigned lane = fsdp::emulation::Block::here().lane(), w = static_cast<unsigned>(width);
  return fsdp::emulation::shuffle("__shfl_sync", mask, value, lane / w * w + static_cast<unsigned>(from) % w, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  const std::source_location& place = std::source_location::current()) {
  const unsigned lane = fsdp::emulation::Block::here().lane(), w = static_cast<unsigned>(width),
                 from = lane ^ static_cast<unsigned>(bits);
  return fsdp::emulation::shuffle("__shfl_xor_sync", mask, value, from < (lane / w + 1) * w ? from : lane, place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 const std::source_location& place = std::source_location::current()) {
  const unsigned lane = fsdp::emulation::Block::here().lane(), w = static_cast<unsigned>(width);
  return fsdp::emulation::shuffle("__shfl_up_sync", mask, value, lane % w >= by ? lane - by : lane, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   const std::source_location& place = std::source_location::current()) {
  const unsigned lane = fsdp::emulation::Block::here().lane(), w = static_cast<unsigned>(width);
  return fsdp::emulation::shuffle("__shfl_down_sync", mask, value, lane % w + by < w ? lane + by : lane, place);
}

template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = before + value;
  return before;
}
template <class T>
T atomicMax(T* to, T value) {
  const T before = *to;
  *to = before < value ? value : before;
  return before;
}
inline void __threadfence() {}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }

namespace fsdp::cuda {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::Block::here().dynamic());
}

[[noreturn]] inline void device_fail(const char* what) { emulation::Block::here().fail(what); }

// ---- the matrix units. Fragments as the PTX ISA has them for m16n8k16 in 16 bits; lane l is (g, t) = (l / 4, l % 4),
// the lower of two elements in a register in its lower half:
//   A, 16 x 16:  a[0] = A[g][2t, 2t+1]   a[1] = A[g+8][2t, 2t+1]   a[2] = A[g][2t+8, 2t+9]   a[3] = A[g+8][2t+8, 2t+9]
//   B, 16 x 8:   b[0] = B[2t, 2t+1][g]   b[1] = B[2t+8, 2t+9][g]
//   D, 16 x 8:   d[0], d[1] = D[g][2t, 2t+1]   d[2], d[3] = D[g+8][2t, 2t+1]
struct MatrixOperand {
  float* d;
  const std::uint32_t *a, *b;
};

template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                 const std::source_location& place = std::source_location::current()) {
  MatrixOperand mine{d, a, b};
  const auto work = [](MatrixOperand* const* lanes) {
    const auto element = [](std::uint32_t pair, int which) {
      return load(T{static_cast<std::uint16_t>(pair >> (16 * which))});
    };
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, t = l % 4;
      for (int i = 0; i < 2; ++i) {
        for (int r = 0; r < 4; ++r) A[g + (r % 2) * 8][2 * t + (r / 2) * 8 + i] = element(lanes[l]->a[r], i);
        for (int r = 0; r < 2; ++r) B[2 * t + r * 8 + i][g] = element(lanes[l]->b[r], i);
      }
    }
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        const int row = l / 4 + (i / 2) * 8, column = 2 * (l % 4) + i % 2;
        float sum = lanes[l]->d[i];
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
        lanes[l]->d[i] = sum;
      }
  };
  emulation::Block::here().warp("mma", emulation::kWholeWarp, mine, work, place);
}

struct LoadOperand {
  std::uint32_t* r;
  const void* row;
};

// kCount matrices of 8 rows of 16 bytes; lanes 8 i ... 8 i + 7 bring the addresses of the rows of matrix i. Lane l gets
// elements (l / 4, 2 (l % 4) + {0, 1}) of each, transposed: (2 (l % 4) + {0, 1}, l / 4).
template <int kCount>
void ldmatrix(std::uint32_t* r, const void* row, bool transposed, const std::source_location& place) {
  LoadOperand mine{r, row};
  emulation::Block& block = emulation::Block::here();
  const auto work = [&block, transposed](LoadOperand* const* lanes) {
    for (int m = 0; m < kCount; ++m) {
      std::uint16_t matrix[8][8];
      for (int i = 0; i < 8; ++i) {
        const void* from = lanes[m * 8 + i]->row;
        if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
          block.fail("ldmatrix of a row that is not aligned to 16 bytes");
        std::memcpy(matrix[i], from, 16);
      }
      for (int l = 0; l < 32; ++l) {
        std::uint32_t pair = 0;
        for (int i = 0; i < 2; ++i) {
          const int row_of_pair = transposed ? 2 * (l % 4) + i : l / 4, column = transposed ? l / 4 : 2 * (l % 4) + i;
          pair |= static_cast<std::uint32_t>(matrix[row_of_pair][column]) << (16 * i);
        }
        lanes[l]->r[m] = pair;
      }
    }
  };
  block.warp("ldmatrix", emulation::kWholeWarp, mine, work, place);
}

inline void ldmatrix_x2(std::uint32_t (&r)[2], const void* row,
                        const std::source_location& place = std::source_location::current()) {
  ldmatrix<2>(r, row, false, place);
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row,
                        const std::source_location& place = std::source_location::current()) {
  ldmatrix<4>(r, row, false, place);
}
inline void ldmatrix_x2_transposed(std::uint32_t (&r)[2], const void* row,
                                   const std::source_location& place = std::source_location::current()) {
  ldmatrix<2>(r, row, true, place);
}
inline void ldmatrix_x4_transposed(std::uint32_t (&r)[4], const void* row,
                                   const std::source_location& place = std::source_location::current()) {
  ldmatrix<4>(r, row, true, place);
}

// ---- cp.async. The target holds NaN from the copy's issue until a wait that covers it.
inline void copy_async_16(void* to, const void* from, bool present = true) {
  emulation::Block& block = emulation::Block::here();
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || (present && reinterpret_cast<std::uintptr_t>(from) % 16 != 0))
    block.fail("cp.async of 16 bytes at an address that is not aligned to them");
  std::memset(to, 0xff, 16);
  block.me().copies.push_back({to, from, present});
}
inline void copy_async_commit() {
  emulation::Fiber& me = emulation::Block::here().me();
  me.committed.push_back(std::move(me.copies));
  me.copies.clear();
}
// Until at most kPending of the groups that this thread committed last are on their way.
template <int kPending>
void copy_async_wait() {
  auto& committed = emulation::Block::here().me().committed;
  while (committed.size() > static_cast<std::size_t>(kPending)) {
    for (const emulation::Copy& c : committed.front()) {
      if (c.present) std::memcpy(c.to, c.from, 16);
      else std::memset(c.to, 0, 16);
    }
    committed.pop_front();
  }
}

}  // namespace fsdp::cuda
