// Starts the kernels of moe.cuh.
#pragma once

#include "executor/cuda/toolkit/kernels/moe/moe.cuh"

namespace fsdp::cuda {

template <class T>
bool width_in_packs(std::int64_t width) {
  return width % kPack<T> == 0;
}

template <class T, class Launch>
void launch_moe_route_forward(const Call& call, const Launch& launch) {
  const ExpertSizes s(call);
  const Route z = route_of(call);
  const T* logits = call.input<T>(0, extent(s.tokens, s.experts));
  T* weights = call.output<T>(0, s.choices);
  auto* slots = call.output<std::int64_t>(1, s.choices);
  if (s.choices == 0) return;
  launch({static_cast<unsigned>((s.tokens + 3) / 4)}, {128}, 0, choose_kernel<T>, logits, weights, slots, z);
  launch({static_cast<unsigned>(s.experts)}, {kThreads}, 0, give_slots_kernel, slots, s.choices, s.capacity);
}

template <class T, class Launch>
void launch_moe_route_backward(const Call& call, const Launch& launch) {
  const ExpertSizes s(call);
  const bool renormalised = call.shape.renormalised;
  const T* dw = call.grad_output<T>(0, s.choices);
  const T* weights = renormalised ? call.output<T>(0, s.choices) : nullptr;
  const T* logits = renormalised ? nullptr : call.input<T>(0, extent(s.tokens, s.experts));
  const auto* slots = call.output<std::int64_t>(1, s.choices);
  T* dl = call.grad_input<T>(0, extent(s.tokens, s.experts));
  if (dl == nullptr || s.tokens == 0) return;
  launch({static_cast<unsigned>((s.tokens + 3) / 4)}, {128}, 0, route_backward_kernel<T>, logits, weights, slots, dw,
         dl, route_of(call), call.adds_to_input(0));
}

template <class T, class Launch>
void launch_moe_dispatch_forward(const Call& call, const Launch& launch) {
  const ExpertSizes s(call);
  const std::int64_t width = call.shape.width;
  const T* x = call.input<T>(0, extent(s.tokens, width));
  const auto* slots = call.input<std::int64_t>(1, s.choices);
  T* y = call.output<T>(0, extent(s.slots, width));
  launch.zero(y, s.slots * width * static_cast<std::int64_t>(sizeof(T)));
  if (s.choices == 0) return;
  with_packs<kPack<T>>(width_in_packs<T>(width) && aligned_to_16(x, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(s.choices)}, {threads_for_row(width, 256)}, 0, dispatch_forward_kernel<T, c>, x,
           slots, y, width, route_of(call));
  });
}

template <class T, class Launch>
void launch_gather_rows(const T* rows, const T* weights, const std::int64_t* slots, T* y, const Call& call,
                        bool accumulate, const Launch& launch) {
  const std::int64_t width = call.shape.width;
  if (call.tokens == 0) return;
  with_packs<kPack<T>>(width_in_packs<T>(width) && aligned_to_16(rows, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(call.tokens)}, {threads_for_row(width, 256)}, 0, gather_rows_kernel<T, c>, rows,
           weights, slots, y, width, route_of(call), accumulate);
  });
}

template <class T, class Launch>
void launch_moe_dispatch_backward(const Call& call, const Launch& launch) {
  const ExpertSizes s(call);
  const T* dy = call.grad_output<T>(0, extent(s.slots, call.shape.width));
  const auto* slots = call.input<std::int64_t>(1, s.choices);
  T* dx = call.grad_input<T>(0, extent(s.tokens, call.shape.width));
  if (dx != nullptr) launch_gather_rows<T>(dy, nullptr, slots, dx, call, call.adds_to_input(0), launch);
}

template <class T, class Launch>
void launch_moe_combine_forward(const Call& call, const Launch& launch) {
  const ExpertSizes s(call);
  const T* y = call.input<T>(0, extent(s.slots, call.shape.width));
  const T* weights = call.input<T>(1, s.choices);
  const auto* slots = call.input<std::int64_t>(2, s.choices);
  launch_gather_rows<T>(y, weights, slots, call.output<T>(0, extent(s.tokens, call.shape.width)), call, false, launch);
}

template <class T, class Launch>
void launch_moe_combine_backward(const Call& call, const Launch& launch) {
  const ExpertSizes s(call);
  const std::int64_t width = call.shape.width;
  const T* dout = call.grad_output<T>(0, extent(s.tokens, width));
  const auto* slots = call.input<std::int64_t>(2, s.choices);
  T *dy = call.grad_input<T>(0, extent(s.slots, width)), *dw = call.grad_input<T>(1, s.choices);
  const T* weights = dy != nullptr ? call.input<T>(1, s.choices) : nullptr;
  const T* y = dw != nullptr ? call.input<T>(0, extent(s.slots, width)) : nullptr;
  if (dy != nullptr && !call.adds_to_input(0)) launch.zero(dy, s.slots * width * static_cast<std::int64_t>(sizeof(T)));
  if (s.choices == 0 || (dy == nullptr && dw == nullptr)) return;
  with_packs<kPack<T>>(width_in_packs<T>(width) && aligned_to_16(dout, y, dy), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(s.choices)}, {threads_for_row(width, 256)}, 0, combine_backward_kernel<T, c>, dout, y,
           weights, slots, dy, call.adds_to_input(0), dw, call.adds_to_input(1), width, route_of(call));
  });
}

template <class Launch>
void launch_moe(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    if (call.op.kind == OpKind::moe_route)
      return backward ? launch_moe_route_backward<T>(call, launch) : launch_moe_route_forward<T>(call, launch);
    if (call.op.kind == OpKind::moe_dispatch)
      return backward ? launch_moe_dispatch_backward<T>(call, launch) : launch_moe_dispatch_forward<T>(call, launch);
    return backward ? launch_moe_combine_backward<T>(call, launch) : launch_moe_combine_forward<T>(call, launch);
  });
}

}  // namespace fsdp::cuda
