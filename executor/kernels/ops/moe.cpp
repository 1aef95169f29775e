// Mixtures of experts. Routing, dispatching, each expert's matmul and combining; slots and drops as struct Experts has
// them.
//
//   route:    p = softmax(l) over the experts; of the k largest w_j = p_j, or renormalised p_j / sum of the chosen p =
//             softmax over the
//             chosen alone. Backward: renormalised dl_j = w_j (dw_j - sum_i w_i dw_i) for the chosen, 0 for the others;
//               else
//             dl_e = p_e ([e chosen] dw_e - sum_i p_i dw_i) for all, with p made again from the logits.
//   dispatch: d[s] = x[token of s];  dx[t] = sum over its slots of dd[s]
//   linear:   y[e] = x[e] W[e]^T, one matmul per expert over all its slots
//   combine:  o[t] = sum_j w[t, j] y[s_j];  dy[s_j] = w[t, j] do[t],  dw[t, j] = <do[t], y[s_j]>;  a dropped choice has
//     neither
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/arithmetic/exp.h"
#include "executor/kernels/extents.h"
#include "executor/kernels/matmul/matmul.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

// What comes from another op is checked where it is used as an address.
const std::int64_t* checked_slots(const Call& call, const std::int64_t* ids, const ExpertSizes& z) {
  for (std::int64_t c = 0; c < z.choices; ++c)
    if (ids[c] >= z.slots || ids[c] < -z.experts)
      call.fail("slot " + std::to_string(ids[c]) + " of " + std::to_string(z.slots));
  return ids;
}

// NaN counts as largest, so that there always is a next one.
template <class M>
M rank_of(M x) {
  return std::isnan(x) ? std::numeric_limits<M>::infinity() : x;
}

// The largest logit after `before` in the order of falling logits, equal ones by expert.
template <class T>
std::int64_t next_expert(const T* logits, std::int64_t experts, std::int64_t before) {
  std::int64_t best = -1;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto x = rank_of(load(logits[e]));
    if (before >= 0) {
      const auto last = rank_of(load(logits[before]));
      if (x > last || (x == last && e <= before)) continue;
    }
    if (best < 0 || x > rank_of(load(logits[best]))) best = e;
  }
  return best;
}

template <class T>
Math<T> largest(const T* x, std::int64_t n) {
  Math<T> most = load(x[0]);
  for (std::int64_t i = 1; i < n; ++i) most = std::max(most, load(x[i]));
  return most;
}

template <class T>
Math<T> exponential_sum(const T* x, std::int64_t n, Math<T> most) {
  Math<T> sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += exp_of(load(x[i]) - most);
  return sum;
}

}  // namespace

template <class T>
void moe_route_forward(const Call& call) {
  const ExpertSizes z(call);
  const T* logits = call.input<T>(0, extent(z.tokens, z.experts));
  T* weights = call.output<T>(0, z.choices);
  std::int64_t* slots = call.output<std::int64_t>(1, z.choices);
  std::int64_t* taken = call.scratch<std::int64_t>(z.experts);
  std::fill_n(taken, z.experts, 0);
  for (std::int64_t t = 0; t < z.tokens; ++t) {
    const T* l = logits + t * z.experts;
    const Math<T> most = largest(l, z.experts);
    Math<T> sum = call.shape.renormalised ? Math<T>(0) : exponential_sum(l, z.experts, most);
    std::int64_t e = -1;
    for (std::int64_t j = 0; j < z.k; ++j) {
      e = next_expert(l, z.experts, e);
      slots[t * z.k + j] = taken[e] < z.capacity ? e * z.capacity + taken[e]++ : dropped(e);
      if (call.shape.renormalised) sum += exp_of(load(l[e]) - most);
    }
    for (std::int64_t j = 0; j < z.k; ++j)
      store(weights[t * z.k + j], exp_of(load(l[expert_of(slots[t * z.k + j], z.capacity)]) - most) / sum);
  }
}

template <class T>
void moe_route_backward(const Call& call) {
  const ExpertSizes z(call);
  const bool renormalised = call.shape.renormalised, add = call.adds_to_input(0);
  const T* dw = call.grad_output<T>(0, z.choices);
  const T* weights = renormalised ? call.output<T>(0, z.choices) : nullptr;
  const T* logits = renormalised ? nullptr : call.input<T>(0, extent(z.tokens, z.experts));
  const std::int64_t* slots = checked_slots(call, call.output<std::int64_t>(1, z.choices), z);
  T* dl = call.grad_input<T>(0, extent(z.tokens, z.experts));
  if (dl == nullptr) return;
  for (std::int64_t t = 0; t < z.tokens; ++t) {
    const std::int64_t c = t * z.k;
    T* row = dl + t * z.experts;
    const T* l = renormalised ? nullptr : logits + t * z.experts;
    const Math<T> most = renormalised ? Math<T>(0) : largest(l, z.experts);
    const Math<T> sum = renormalised ? Math<T>(1) : exponential_sum(l, z.experts, most);
    const auto expert = [&](std::int64_t j) { return expert_of(slots[c + j], z.capacity); };
    const auto weight = [&](std::int64_t j) -> Math<T> {
      return renormalised ? load(weights[c + j]) : exp_of(load(l[expert(j)]) - most) / sum;
    };
    Math<T> mean = 0;  // of the gradients, by weight
    for (std::int64_t j = 0; j < z.k; ++j) mean += weight(j) * load(dw[c + j]);
    for (std::int64_t e = 0; e < z.experts; ++e) {
      Math<T> g = renormalised ? Math<T>(0)
                               : -exp_of(load(l[e]) - most) / sum * mean;  // renormalised, the unchosen have no part
      for (std::int64_t j = 0; j < z.k; ++j)
        if (expert(j) == e) g += weight(j) * (load(dw[c + j]) - (renormalised ? mean : Math<T>(0)));
      put(row[e], g, add);
    }
  }
}

template <class T>
void moe_dispatch_forward(const Call& call) {
  const ExpertSizes z(call);
  const std::int64_t width = call.shape.width;
  const T* x = call.input<T>(0, extent(z.tokens, width));
  const std::int64_t* slots = checked_slots(call, call.input<std::int64_t>(1, z.choices), z);
  T* y = call.output<T>(0, extent(z.slots, width));
  std::fill_n(y, z.slots * width, T{});
  for (std::int64_t c = 0; c < z.choices; ++c)
    if (is_slot(slots[c])) std::copy_n(x + c / z.k * width, width, y + slots[c] * width);
}

template <class T>
void moe_dispatch_backward(const Call& call) {
  const ExpertSizes z(call);
  const std::int64_t width = call.shape.width;
  const T* dy = call.grad_output<T>(0, extent(z.slots, width));
  const std::int64_t* slots = checked_slots(call, call.input<std::int64_t>(1, z.choices), z);
  T* dx = call.grad_input<T>(0, extent(z.tokens, width));
  if (dx == nullptr) return;
  for (std::int64_t t = 0; t < z.tokens; ++t)
    for (std::int64_t i = 0; i < width; ++i) {
      Math<T> sum = 0;
      for (std::int64_t c = t * z.k; c < (t + 1) * z.k; ++c)
        if (is_slot(slots[c])) sum += load(dy[slots[c] * width + i]);
      put(dx[t * width + i], sum, call.adds_to_input(0));
    }
}

template <class T>
void expert_linear_forward(const Call& call) {
  const ExpertSizes z(call);
  const std::int64_t in = call.shape.in, out = call.shape.out;
  const T* x = call.input<T>(0, extent(z.slots, in));
  const T* weight = call.param<T>(0, extent(z.experts, out, in));
  T* y = call.output<T>(0, extent(z.slots, out));
  for (std::int64_t e = 0; e < z.experts; ++e)
    multiply<T>(Transpose::no, Transpose::yes, z.capacity, out, in, x + e * z.capacity * in, weight + e * out * in,
                y + e * z.capacity * out, false, call.scratch_view());
}

template <class T>
void expert_linear_backward(const Call& call) {
  const ExpertSizes z(call);
  const std::int64_t in = call.shape.in, out = call.shape.out, n = z.capacity;
  const T* dy = call.grad_output<T>(0, extent(z.slots, out));
  if (T* dx = call.grad_input<T>(0, extent(z.slots, in))) {
    const T* weight = call.param<T>(0, extent(z.experts, out, in));
    for (std::int64_t e = 0; e < z.experts; ++e)
      multiply<T>(Transpose::no, Transpose::no, n, in, out, dy + e * n * out, weight + e * out * in, dx + e * n * in,
                  call.adds_to_input(0), call.scratch_view());
  }
  if (T* dw = call.grad_param<T>(0, extent(z.experts, out, in))) {
    const T* x = call.input<T>(0, extent(z.slots, in));
    for (std::int64_t e = 0; e < z.experts; ++e)
      multiply<T>(Transpose::yes, Transpose::no, out, in, n, dy + e * n * out, x + e * n * in, dw + e * out * in,
                  call.adds_to_param(0), call.scratch_view());
  }
}

template <class T>
void moe_combine_forward(const Call& call) {
  const ExpertSizes z(call);
  const std::int64_t width = call.shape.width;
  const T* y = call.input<T>(0, extent(z.slots, width));
  const T* weights = call.input<T>(1, z.choices);
  const std::int64_t* slots = checked_slots(call, call.input<std::int64_t>(2, z.choices), z);
  T* out = call.output<T>(0, extent(z.tokens, width));
  for (std::int64_t t = 0; t < z.tokens; ++t)
    for (std::int64_t i = 0; i < width; ++i) {
      Math<T> sum = 0;
      for (std::int64_t c = t * z.k; c < (t + 1) * z.k; ++c)
        if (is_slot(slots[c])) sum += load(weights[c]) * load(y[slots[c] * width + i]);
      store(out[t * width + i], sum);
    }
}

template <class T>
void moe_combine_backward(const Call& call) {
  const ExpertSizes z(call);
  const std::int64_t width = call.shape.width;
  const T* dout = call.grad_output<T>(0, extent(z.tokens, width));
  const std::int64_t* slots = checked_slots(call, call.input<std::int64_t>(2, z.choices), z);
  if (T* dy = call.grad_input<T>(0, extent(z.slots, width))) {
    const T* weights = call.input<T>(1, z.choices);
    const bool add = call.adds_to_input(0);
    if (!add) std::fill_n(dy, z.slots * width, T{});
    for (std::int64_t c = 0; c < z.choices; ++c)
      for (std::int64_t i = 0; i < width && is_slot(slots[c]); ++i)  // each slot has one choice at most
        put(dy[slots[c] * width + i], load(weights[c]) * load(dout[c / z.k * width + i]), add);
  }
  if (T* dw = call.grad_input<T>(1, z.choices)) {
    const T* y = call.input<T>(0, extent(z.slots, width));
    for (std::int64_t c = 0; c < z.choices; ++c) {
      Math<T> sum = 0;
      for (std::int64_t i = 0; i < width && is_slot(slots[c]); ++i)
        sum += load(dout[c / z.k * width + i]) * load(y[slots[c] * width + i]);
      put(dw[c], sum, call.adds_to_input(1));
    }
  }
}

template void moe_route_forward<double>(const Call&);
template void moe_route_forward<float>(const Call&);
template void moe_route_forward<BFloat16>(const Call&);
template void moe_route_forward<Float16>(const Call&);
template void moe_route_backward<double>(const Call&);
template void moe_route_backward<float>(const Call&);
template void moe_route_backward<BFloat16>(const Call&);
template void moe_route_backward<Float16>(const Call&);
template void moe_dispatch_forward<double>(const Call&);
template void moe_dispatch_forward<float>(const Call&);
template void moe_dispatch_forward<BFloat16>(const Call&);
template void moe_dispatch_forward<Float16>(const Call&);
template void moe_dispatch_backward<double>(const Call&);
template void moe_dispatch_backward<float>(const Call&);
template void moe_dispatch_backward<BFloat16>(const Call&);
template void moe_dispatch_backward<Float16>(const Call&);
template void expert_linear_forward<double>(const Call&);
template void expert_linear_forward<float>(const Call&);
template void expert_linear_forward<BFloat16>(const Call&);
template void expert_linear_forward<Float16>(const Call&);
template void expert_linear_backward<double>(const Call&);
template void expert_linear_backward<float>(const Call&);
template void expert_linear_backward<BFloat16>(const Call&);
template void expert_linear_backward<Float16>(const Call&);
template void moe_combine_forward<double>(const Call&);
template void moe_combine_forward<float>(const Call&);
template void moe_combine_forward<BFloat16>(const Call&);
template void moe_combine_forward<Float16>(const Call&);
template void moe_combine_backward<double>(const Call&);
template void moe_combine_backward<float>(const Call&);
template void moe_combine_backward<BFloat16>(const Call&);
template void moe_combine_backward<Float16>(const Call&);

}  // namespace fsdp
