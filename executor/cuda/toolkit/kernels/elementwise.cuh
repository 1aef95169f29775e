// SwiGLU, GELU, sums; conversions and scalings of whole buffers.
#pragma once

#include "executor/arithmetic/activations.h"
#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/kernels/extents.h"

namespace fsdp::cuda {

// y (+)= f(a, b), element by element. `b` may be null: f then gets zeros.
template <class T, int kCount, class F>
__global__ void map_kernel(const T* a, const T* b, T* y, std::int64_t n, bool accumulate, F f) {
  for_elements<kCount>(n, [=](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    const Pack<T, c> pa = load_pack<c>(a + i), pb = b != nullptr ? load_pack<c>(b + i) : Pack<T, c>{};
    Pack<T, c> py = accumulate ? load_pack<c>(y + i) : Pack<T, c>{};
    for (int k = 0; k < c; ++k) put(py.at[k], f(load(pa.at[k]), load(pb.at[k])), accumulate);
    store_pack(y + i, py);
  });
}

template <class T, class F, class Launch>
void launch_map(const T* a, const T* b, T* y, std::int64_t n, bool accumulate, F f, const Launch& launch) {
  if (n == 0) return;
  with_packs<kPack<T>>(aligned_to_16(a, b, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({blocks_for(n / c + 1)}, {kThreads}, 0, map_kernel<T, c, F>, a, b, y, n, accumulate, f);
  });
}

struct SumOfTwo {
  template <class M>
  FSDP_DEVICE M operator()(M a, M b) const {
    return a + b;
  }
};
template <template <class> class Gelu>
struct GeluValue {
  template <class M>
  FSDP_DEVICE M operator()(M x, M) const {
    return Gelu<M>::value(x);
  }
};
template <template <class> class Gelu>
struct GeluGradient {
  template <class M>
  FSDP_DEVICE M operator()(M dy, M x) const {
    return dy * Gelu<M>::slope(x);
  }
};

struct ByFactor {
  double factor;
  template <class M>
  FSDP_DEVICE M operator()(M x, M) const {
    return static_cast<M>(factor) * x;
  }
};

template <class T, class Launch>
void launch_scale_forward(const Call& call, const Launch& launch) {
  const std::int64_t n = extent(call.tokens, call.shape.width);
  const T *x = call.input<T>(0, n), *none = nullptr;
  launch_map<T>(x, none, call.output<T>(0, n), n, false, ByFactor{call.shape.factor}, launch);
}

template <class T, class Launch>
void launch_scale_backward(const Call& call, const Launch& launch) {
  const std::int64_t n = extent(call.tokens, call.shape.width);
  const T *dy = call.grad_output<T>(0, n), *none = nullptr;
  T* dx = call.grad_input<T>(0, n);
  if (dx != nullptr) launch_map<T>(dy, none, dx, n, call.adds_to_input(0), ByFactor{call.shape.factor}, launch);
}

template <class T, class Launch>
void launch_add_forward(const Call& call, const Launch& launch) {
  const std::int64_t n = extent(call.tokens, call.shape.width);
  launch_map<T>(call.input<T>(0, n), call.input<T>(1, n), call.output<T>(0, n), n, false, SumOfTwo{}, launch);
}

template <class T, class Launch>
void launch_gelu_forward(const Call& call, const Launch& launch) {
  const std::int64_t n = extent(call.tokens, call.shape.width);
  const T *x = call.input<T>(0, n), *none = nullptr;
  T* y = call.output<T>(0, n);
  if (call.shape.tanh) launch_map<T>(x, none, y, n, false, GeluValue<TanhGelu>{}, launch);
  else launch_map<T>(x, none, y, n, false, GeluValue<ErfGelu>{}, launch);
}

template <class T, class Launch>
void launch_gelu_backward(const Call& call, const Launch& launch) {
  const std::int64_t n = extent(call.tokens, call.shape.width);
  const T *dy = call.grad_output<T>(0, n), *x = call.input<T>(0, n);
  T* dx = call.grad_input<T>(0, n);
  if (dx == nullptr) return;
  if (call.shape.tanh) launch_map<T>(dy, x, dx, n, call.adds_to_input(0), GeluGradient<TanhGelu>{}, launch);
  else launch_map<T>(dy, x, dx, n, call.adds_to_input(0), GeluGradient<ErfGelu>{}, launch);
}

// Rows of gate and up `stride` apart, rows of y `width` apart.
template <class T, int kCount>
__global__ void swiglu_forward_kernel(const T* gate, const T* up, T* y, std::int64_t rows, std::int64_t width,
                                      std::int64_t stride) {
  for (std::int64_t r = blockIdx.y; r < rows; r += gridDim.y)
    for_elements<kCount>(width, [=](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const Pack<T, c> pg = load_pack<c>(gate + r * stride + i), pu = load_pack<c>(up + r * stride + i);
      Pack<T, c> py;
      for (int k = 0; k < c; ++k) {
        const Math<T> g = load(pg.at[k]);
        store(py.at[k], g * sigmoid(g) * load(pu.at[k]));
      }
      store_pack(y + r * width + i, py);
    });
}

// Gradients that nobody wants are null.
template <class T, int kCount>
__global__ void swiglu_backward_kernel(const T* gate, const T* up, const T* dy, T* dgate, bool gate_adds, T* dup,
                                       bool up_adds, std::int64_t rows, std::int64_t width, std::int64_t stride) {
  for (std::int64_t r = blockIdx.y; r < rows; r += gridDim.y)
    for_elements<kCount>(width, [=](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const std::int64_t at = r * stride + i;
      const Pack<T, c> pg = load_pack<c>(gate + at), pu = load_pack<c>(up + at), pd = load_pack<c>(dy + r * width + i);
      Pack<T, c> to_gate = dgate != nullptr && gate_adds ? load_pack<c>(dgate + at) : Pack<T, c>{};
      Pack<T, c> to_up = dup != nullptr && up_adds ? load_pack<c>(dup + at) : Pack<T, c>{};
      for (int k = 0; k < c; ++k) {
        const Math<T> g = load(pg.at[k]), d = load(pd.at[k]), s = sigmoid(g);
        put(to_gate.at[k], d * load(pu.at[k]) * silu_slope(g, s), gate_adds);
        put(to_up.at[k], d * g * s, up_adds);
      }
      if (dgate != nullptr) store_pack(dgate + at, to_gate);
      if (dup != nullptr) store_pack(dup + at, to_up);
    });
}

// One row of any length can have a tail; of several rows, all must begin aligned.
template <class T>
bool gated_packs(const GatedRows& z) {
  return z.rows == 1 || (z.width % kPack<T> == 0 && z.stride % kPack<T> == 0);
}

template <class T, class Launch>
void launch_swiglu_forward(const Call& call, const Launch& launch) {
  const GatedRows z(call);
  const T *gate = call.input<T>(0, z.read()), *up = z.packed ? gate + z.width : call.input<T>(1, z.read());
  T* y = call.output<T>(0, z.made());
  if (z.made() == 0) return;
  with_packs<kPack<T>>(gated_packs<T>(z) && aligned_to_16(gate, up, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({blocks_for(z.width / c + 1), rows_of_grid(z.rows)}, {kThreads}, 0, swiglu_forward_kernel<T, c>, gate, up, y,
           z.rows, z.width, z.stride);
  });
}

template <class T, class Launch>
void launch_swiglu_backward(const Call& call, const Launch& launch) {
  const GatedRows z(call);
  const T* dy = call.grad_output<T>(0, z.made());
  const T *gate = call.input<T>(0, z.read()), *up = z.packed ? gate + z.width : call.input<T>(1, z.read());
  T* dgate = call.grad_input<T>(0, z.read());
  T* dup = !z.packed ? call.grad_input<T>(1, z.read()) : dgate != nullptr ? dgate + z.width : nullptr;
  if (z.made() == 0 || (dgate == nullptr && dup == nullptr)) return;
  const bool gate_adds = call.adds_to_input(0), up_adds = call.adds_to_input(z.packed ? 0 : 1);
  with_packs<kPack<T>>(gated_packs<T>(z) && aligned_to_16(gate, up, dy, dgate, dup), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({blocks_for(z.width / c + 1), rows_of_grid(z.rows)}, {kThreads}, 0, swiglu_backward_kernel<T, c>, gate, up,
           dy, dgate, gate_adds, dup, up_adds, z.rows, z.width, z.stride);
  });
}

// fp64 -> fp64 stays fp64; anything else passes through the wider of the two arithmetic types.
template <class From, class To, int kCount>
__global__ void convert_kernel(const From* from, To* to, std::int64_t n, bool accumulate) {
  using Wide = std::conditional_t<std::is_same_v<From, double> || std::is_same_v<To, double>, double, float>;
  for_elements<kCount>(n, [=](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    const Pack<From, c> pf = load_pack<c>(from + i);
    Pack<To, c> pt = accumulate ? load_pack<c>(to + i) : Pack<To, c>{};
    for (int k = 0; k < c; ++k) {
      const Wide x = static_cast<Wide>(load(pf.at[k]));
      store(pt.at[k], static_cast<Math<To>>(accumulate ? static_cast<Wide>(load(pt.at[k])) + x : x));
    }
    store_pack(to + i, pt);
  });
}

template <class Launch>
void launch_convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t n, bool accumulate,
                    const Launch& launch) {
  check_extent("convert", "source", 0, from, n, size_of(from_type));
  check_extent("convert", "target", 0, to, n, size_of(to_type));
  if (n == 0) return;
  with_type(from_type, [&](auto source) {
    with_type(to_type, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      const auto* f = reinterpret_cast<const From*>(from.data);
      auto* t = reinterpret_cast<To*>(to.data);
      with_packs<std::min(kPack<From>, kPack<To>)>(aligned_to_16(f, t), [&](auto count) {
        constexpr int c = decltype(count)::value;
        launch({blocks_for(n / c + 1)}, {kThreads}, 0, convert_kernel<From, To, c>, f, t, n, accumulate);
      });
    });
  });
}

template <class T, int kCount>
__global__ void scale_kernel(T* x, std::int64_t n, Math<T> factor) {
  for_elements<kCount>(n, [=](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    Pack<T, c> p = load_pack<c>(x + i);
    for (int k = 0; k < c; ++k) store(p.at[k], load(p.at[k]) * factor);
    store_pack(x + i, p);
  });
}

template <class Launch>
void launch_scale(DType type, BufferView values, std::int64_t n, double factor, const Launch& launch) {
  check_extent("scale", "values", 0, values, n, size_of(type));
  if (n == 0) return;
  with_type(type, [&](auto element) {
    using T = decltype(element);
    auto* x = reinterpret_cast<T*>(values.data);
    with_packs<kPack<T>>(aligned_to_16(x), [&](auto count) {
      constexpr int c = decltype(count)::value;
      launch({blocks_for(n / c + 1)}, {kThreads}, 0, scale_kernel<T, c>, x, n, static_cast<Math<T>>(factor));
    });
  });
}

// Ops of this theme.
template <class Launch>
void launch_elementwise(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    if (call.op.kind == OpKind::swiglu)
      return backward ? launch_swiglu_backward<T>(call, launch) : launch_swiglu_forward<T>(call, launch);
    if (call.op.kind == OpKind::gelu)
      return backward ? launch_gelu_backward<T>(call, launch) : launch_gelu_forward<T>(call, launch);
    if (call.op.kind == OpKind::scale)
      return backward ? launch_scale_backward<T>(call, launch) : launch_scale_forward<T>(call, launch);
    if (call.op.kind != OpKind::add || backward) call.fail("no elementwise kernel for it");
    launch_add_forward<T>(call, launch);  // its gradients are aliases of the output's
  });
}

}  // namespace fsdp::cuda
