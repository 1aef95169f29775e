#include "executor/ranks/reduce.h"

#include <algorithm>
#include <array>

#include "executor/arithmetic/element.h"

namespace fsdp::host {
namespace {

// What a reduction does to a rank's element, to two partial results and to the last of them.
template <class Acc>
struct Sum {
  Acc factor = 1;
  [[nodiscard]] Acc part(Acc x) const { return x; }
  [[nodiscard]] Acc combine(Acc a, Acc b) const { return a + b; }
  [[nodiscard]] Acc result(Acc x) const { return x; }
};
template <class Acc>
struct Average : Sum<Acc> {
  [[nodiscard]] Acc result(Acc x) const { return x / this->factor; }
};
template <class Acc>
struct ScaledSum : Sum<Acc> {
  [[nodiscard]] Acc part(Acc x) const { return x * this->factor; }
};
template <class Acc>
struct Maximum : Sum<Acc> {
  [[nodiscard]] Acc combine(Acc a, Acc b) const { return a > b || a != a ? a : b; }  // what is not a number stays
};

constexpr std::int64_t kBlock = 1024;  // elements
constexpr std::size_t kAtOnce = 4;     // inputs that one loop reads

// to[i] = what comes of before[i] (if there is a before) and the inputs; to is the partial result, or with `last` the
// final one.
template <std::size_t inputs, bool first, bool last, class T, class Manner>
void pass(const Manner& manner, const std::array<const T*, kAtOnce>& in, const Math<T>* before, std::int64_t n,
          std::conditional_t<last, T, Math<T>>* to) {
  const T *a = in[0], *b = in[1], *c = in[2], *d = in[3];
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    Math<T> x = manner.part(load(a[i]));
    if constexpr (!first) x = manner.combine(before[i], x);
    if constexpr (inputs > 1) x = manner.combine(x, manner.part(load(b[i])));
    if constexpr (inputs > 2) x = manner.combine(x, manner.part(load(c[i])));
    if constexpr (inputs > 3) x = manner.combine(x, manner.part(load(d[i])));
    if constexpr (last) store(to[i], manner.result(x));
    else to[i] = x;
  }
}

template <bool first, class T, class Manner>
void last_pass(std::size_t inputs, const Manner& manner, const std::array<const T*, kAtOnce>& in, const Math<T>* before,
               std::int64_t n, T* to) {
  switch (inputs) {
    case 1: return pass<1, first, true, T>(manner, in, before, n, to);
    case 2: return pass<2, first, true, T>(manner, in, before, n, to);
    case 3: return pass<3, first, true, T>(manner, in, before, n, to);
    default: return pass<4, first, true, T>(manner, in, before, n, to);
  }
}

// Block by block; what is between two passes over a block stays in the cache.
template <class T, class Manner>
void reduce_as(const Manner& manner, std::span<const std::byte* const> inputs, std::int64_t count, T* output) {
  std::array<Math<T>, kBlock> partial;
  const std::int64_t step = inputs.size() > kAtOnce ? kBlock : count;  // one pass needs no blocks
  for (std::int64_t begin = 0; begin < count; begin += step) {
    const std::int64_t n = std::min(step, count - begin);
    for (std::size_t m = 0; m < inputs.size(); m += kAtOnce) {
      std::array<const T*, kAtOnce> in{};
      const std::size_t many = std::min(kAtOnce, inputs.size() - m);
      for (std::size_t k = 0; k < many; ++k) in[k] = reinterpret_cast<const T*>(inputs[m + k]) + begin;
      const bool last = m + many == inputs.size();
      if (last && m == 0) last_pass<true>(many, manner, in, partial.data(), n, output + begin);
      else if (last) last_pass<false>(many, manner, in, partial.data(), n, output + begin);
      else if (m == 0) pass<kAtOnce, true, false, T>(manner, in, partial.data(), n, partial.data());
      else pass<kAtOnce, false, false, T>(manner, in, partial.data(), n, partial.data());
    }
  }
}

}  // namespace

void reduce_in_order(DType type, Reduction reduction, std::span<const std::byte* const> inputs, std::int64_t count,
                     std::byte* output) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    using Acc = Math<T>;
    const auto run = [&](const auto& manner) { reduce_as(manner, inputs, count, reinterpret_cast<T*>(output)); };
    switch (reduction.kind) {
      case ReductionKind::sum: return run(Sum<Acc>{});
      case ReductionKind::average: return run(Average<Acc>{{static_cast<Acc>(inputs.size())}});
      case ReductionKind::scaled_sum: return run(ScaledSum<Acc>{{static_cast<Acc>(reduction.multiply)}});
      case ReductionKind::maximum: return run(Maximum<Acc>{});
    }
  });
}

}  // namespace fsdp::host
