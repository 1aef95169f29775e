// What happens to sharded gradients: norms and scaling for clipping, AdamW and SGD over all parts of a unit at once.
#pragma once

#include <cmath>
#include <vector>

#include "executor/arithmetic/adam_step.h"
#include "executor/arithmetic/clip_factor.h"
#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/cuda/toolkit/kernels/reduce.cuh"
#include "executor/kernels/call.h"
#include "executor/kernels/kernel_set.h"
#include "planner/layout/gradients.h"

namespace fsdp::cuda {

inline constexpr std::int64_t kNormBlocks = 256;
inline constexpr std::int64_t kNormScratchBytes = kNormBlocks * 8;  // a partial norm of each block, fp64

// ---- parts of several buffers, or of one. Grid: y parts.
inline constexpr int kParts = 64;
struct Piece {
  std::byte* data = nullptr;
  std::int64_t elements = 0;
};
struct PieceTable {
  Piece piece[kParts];
};
struct UpdateTable {
  TrainedPart part[kParts];
};

struct SquareOf {
  __device__ double operator()(double x) const { return x * x; }
};
struct MagnitudeOf {
  __device__ double operator()(double x) const { return x < 0 ? -x : x; }
};
struct PowerOf {
  double p;
  __device__ double operator()(double x) const { return std::pow(x < 0 ? -x : x, p); }
};

// partial[block] = (what it is already, if `adds`, and) all of f(x) that fall to the block, in a fixed order.
template <class T, int kCount, class F, class Op>
__global__ void norm_parts_kernel(PieceTable table, int pieces, F f, double* partial, bool adds) {
  double sum = 0;
  for (int p = 0; p < pieces; ++p) {
    const auto* x = reinterpret_cast<const T*>(table.piece[p].data);
    for_elements<kCount>(table.piece[p].elements, [&](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const Pack<T, c> pack = load_pack<c>(x + i);
      for (int k = 0; k < c; ++k) sum = Op{}(sum, f(static_cast<double>(load(pack.at[k]))));
    });
  }
  sum = block_reduce<Op>(sum, 0.0);
  if (threadIdx.x == 0) partial[blockIdx.x] = adds ? Op{}(partial[blockIdx.x], sum) : sum;
}

template <class Op>
__global__ void norm_finish_kernel(const double* partial, double* norm) {
  const double x = block_reduce<Op>(partial[threadIdx.x], 0.0);
  if (threadIdx.x == 0) *norm = x;
}

// `sum`: of the powers, or the largest.
template <class T, int kCount>
__global__ void clip_kernel(PieceTable table, const double* sum, double p, double limit) {
  const double root = p == 0 ? *sum : p == 2 ? std::sqrt(*sum) : std::pow(*sum, 1 / p);  // 0 stands for infinity
  const auto factor = static_cast<Math<T>>(clip_factor(root, limit));
  auto* x = reinterpret_cast<T*>(table.piece[blockIdx.y].data);
  for_elements<kCount>(table.piece[blockIdx.y].elements, [=](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    Pack<T, c> pack = load_pack<c>(x + i);
    for (int k = 0; k < c; ++k) store(pack.at[k], load(pack.at[k]) * factor);
    store_pack(x + i, pack);
  });
}

// Calls f(table, parts of it, most elements of one, whether all of them begin aligned to 16 bytes, whether it is the
// first).
template <class F>
void with_pieces(DType type, std::span<const BufferView> values, const F& f) {
  for (std::size_t begin = 0; begin < values.size(); begin += kParts) {
    const auto some = values.subspan(begin, std::min<std::size_t>(kParts, values.size() - begin));
    PieceTable table;
    std::int64_t most = 0;
    bool packs = true;
    for (std::size_t i = 0; i < some.size(); ++i) {
      table.piece[i] = {some[i].data, some[i].bytes / size_of(type)};
      most = std::max(most, table.piece[i].elements);
      packs = packs && aligned_to_16(some[i].data);
    }
    f(table, static_cast<int>(some.size()), most, packs, begin == 0);
  }
}

// `p`: 2, another power, or infinity (the largest magnitude; NaN propagates). `scratch`: kNormScratchBytes on the
// device.
template <class Launch>
void launch_local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm, std::byte* scratch,
                       const Launch& launch) {
  check_extent("clip_local_norm", "norm", 0, norm, 1, 8);
  auto *partial = reinterpret_cast<double*>(scratch), *to = reinterpret_cast<double*>(norm.data);
  if (values.empty()) return launch.zero(to, 8);
  const auto all = [&](auto f, auto op) {
    using F = decltype(f);
    using Op = decltype(op);
    with_type(type, [&](auto element) {
      using T = decltype(element);
      with_pieces(type, values, [&](const PieceTable& table, int pieces, std::int64_t, bool packs, bool first) {
        with_packs<kPack<T>>(packs, [&](auto count) {
          constexpr int c = decltype(count)::value;
          launch({static_cast<unsigned>(kNormBlocks)}, {kThreads}, 0, norm_parts_kernel<T, c, F, Op>, table, pieces, f,
                 partial, !first);
        });
      });
    });
    launch({1}, {static_cast<unsigned>(kNormBlocks)}, 0, norm_finish_kernel<Op>, static_cast<const double*>(partial),
           to);
  };
  if (std::isinf(p)) all(MagnitudeOf{}, Largest{});
  else if (p == 2) all(SquareOf{}, Sum{});
  else all(PowerOf{p}, Sum{});
}

template <class Launch>
void launch_clip(DType type, std::span<const BufferView> values, double p, double limit, BufferView norm,
                 const Launch& launch) {
  check_extent("clip_scale", "norm", 0, norm, 1, 8);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    with_pieces(type, values, [&](const PieceTable& table, int pieces, std::int64_t most, bool packs, bool) {
      with_packs<kPack<T>>(packs, [&](auto count) {
        constexpr int c = decltype(count)::value;
        launch({blocks_for(most / c + 1), static_cast<unsigned>(pieces)}, {kThreads}, 0, clip_kernel<T, c>, table,
               reinterpret_cast<const double*>(norm.data), std::isinf(p) ? 0.0 : p, limit);
      });
    });
  });
}

// ---- optimizers. Grid: x elements, y parts.
template <class T, int kCount>
__global__ void adamw_kernel(UpdateTable table, AdamStep<Math<T>> adam, const T* gradient, T* value, T* mean,
                             T* square) {
  const TrainedPart& part = table.part[blockIdx.y];
  const T* g = gradient + part.gradient;
  T *p = value + part.shard, *m = mean + part.state, *v = square + part.state;
  for_elements<kCount>(part.elements, [&](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    const Pack<T, c> pg = load_pack<c>(g + i);
    Pack<T, c> pp = load_pack<c>(p + i), pm = load_pack<c>(m + i), pv = load_pack<c>(v + i);
    for (int k = 0; k < c; ++k) adam.apply(pg.at[k], pp.at[k], pm.at[k], pv.at[k]);
    store_pack(p + i, pp);
    store_pack(m + i, pm);
    store_pack(v + i, pv);
  });
}

template <class T, int kCount>
__global__ void sgd_kernel(UpdateTable table, SgdStep<Math<T>> sgd, const T* gradient, T* value) {
  const TrainedPart& part = table.part[blockIdx.y];
  const T* g = gradient + part.gradient;
  T* p = value + part.shard;
  for_elements<kCount>(part.elements, [&](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    const Pack<T, c> pg = load_pack<c>(g + i);
    Pack<T, c> pp = load_pack<c>(p + i);
    for (int k = 0; k < c; ++k) sgd.apply(pg.at[k], pp.at[k]);
    store_pack(p + i, pp);
  });
}

template <class T, int kCount>
__global__ void sgd_momentum_kernel(UpdateTable table, SgdStep<Math<T>> sgd, const T* gradient, T* value, T* momentum) {
  const TrainedPart& part = table.part[blockIdx.y];
  const T* g = gradient + part.gradient;
  T *p = value + part.shard, *b = momentum + part.state;
  for_elements<kCount>(part.elements, [&](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    const Pack<T, c> pg = load_pack<c>(g + i);
    Pack<T, c> pp = load_pack<c>(p + i), pb = load_pack<c>(b + i);
    for (int k = 0; k < c; ++k) sgd.apply(pg.at[k], pp.at[k], pb.at[k]);
    store_pack(p + i, pp);
    store_pack(b + i, pb);
  });
}

// Calls f(table, parts of it, most elements of one, whether all of its parts begin at multiples of `c` elements).
template <class F>
void with_trained(const UnitLayout& layout, std::int64_t rank, GradientPlaces places, std::int64_t c, const F& f) {
  std::vector<TrainedPart> parts;
  for_each_trained(layout, rank, places, [&](const TrainedPart& part) { parts.push_back(part); });
  for (std::size_t begin = 0; begin < parts.size(); begin += kParts) {
    UpdateTable table;
    std::int64_t most = 0;
    bool packs = true;
    const std::size_t count = std::min<std::size_t>(kParts, parts.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      const TrainedPart& p = table.part[i] = parts[begin + i];
      most = std::max(most, p.elements);
      packs = packs && p.gradient % c == 0 && p.shard % c == 0 && p.state % c == 0;
    }
    f(table, static_cast<unsigned>(count), most, packs);
  }
}

inline void check_update(const OptimizerUpdate& u) {
  if (u.shard_rank < 0 || u.shard_rank >= u.layout.shards)
    throw MachineError("optimizer: shard " + std::to_string(u.shard_rank) + " of " + std::to_string(u.layout.shards) +
                       " does not exist");
  if (u.step < 1) throw MachineError("optimizer: steps count from 1, not " + std::to_string(u.step));
  check_extent("optimizer", "gradient", 0, u.gradient, gradient_elements(u.layout, u.shard_rank, u.places),
               size_of(u.type));
  check_extent("optimizer", "shard", 0, u.shard, u.layout.shard_elements, size_of(u.type));
}

template <class Launch>
void launch_adamw(const OptimizerUpdate& u, const Launch& launch) {
  check_update(u);
  for (const BufferView& state : {u.state1, u.state2})
    check_extent("optimizer", "state", 0, state, u.layout.local_trained_elements(u.shard_rank), size_of(u.type));
  with_type(u.type, [&](auto element) {
    using T = decltype(element);
    const auto* g = reinterpret_cast<const T*>(u.gradient.data);
    auto *p = reinterpret_cast<T*>(u.shard.data), *m = reinterpret_cast<T*>(u.state1.data),
         *v = reinterpret_cast<T*>(u.state2.data);
    with_trained(u.layout, u.shard_rank, u.places, kPack<T>,
                 [&](const UpdateTable& table, unsigned parts, std::int64_t most, bool packs) {
                   with_packs<kPack<T>>(packs && aligned_to_16(g, p, m, v), [&](auto count) {
                     constexpr int c = decltype(count)::value;
                     launch({blocks_for(most / c + 1), parts}, {kThreads}, 0, adamw_kernel<T, c>, table,
                            AdamStep<Math<T>>(u.optimizer, u.step), g, p, m, v);
                   });
                 });
  });
}

template <class Launch>
void launch_sgd(const OptimizerUpdate& u, const Launch& launch) {
  check_update(u);
  const bool momentum = u.optimizer.momentum != 0;
  if (momentum)
    check_extent("optimizer", "momentum", 0, u.state1, u.layout.local_trained_elements(u.shard_rank), size_of(u.type));
  with_type(u.type, [&](auto element) {
    using T = decltype(element);
    const auto* g = reinterpret_cast<const T*>(u.gradient.data);
    auto *p = reinterpret_cast<T*>(u.shard.data), *b = reinterpret_cast<T*>(u.state1.data);
    const SgdStep<Math<T>> sgd(u.optimizer);
    with_trained(u.layout, u.shard_rank, u.places, kPack<T>,
                 [&](const UpdateTable& table, unsigned parts, std::int64_t most, bool packs) {
                   with_packs<kPack<T>>(packs && aligned_to_16(g, p, b), [&](auto count) {
                     constexpr int c = decltype(count)::value;
                     const unsigned blocks = blocks_for(most / c + 1);
                     if (momentum)
                       launch({blocks, parts}, {kThreads}, 0, sgd_momentum_kernel<T, c>, table, sgd, g, p, b);
                     else launch({blocks, parts}, {kThreads}, 0, sgd_kernel<T, c>, table, sgd, g, p);
                   });
                 });
  });
}

}  // namespace fsdp::cuda
