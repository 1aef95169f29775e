#include "executor/host/reduce.h"

#include <algorithm>
#include <array>

#include "executor/kernels/element.h"

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

// Between the ranks a block of partial results stays in the cache; of two ranks there are none.
template <class T, class Manner>
void reduce_as(const Manner& manner, std::span<const std::byte* const> inputs, std::int64_t count, T* output) {
  using Acc = Math<T>;
  constexpr std::int64_t kBlock = 1024;
  std::array<Acc, kBlock> block;
  Acc* const partial = block.data();
  const std::size_t last = inputs.size() - 1;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto input = [&](std::size_t m) { return reinterpret_cast<const T*>(inputs[m]) + begin; };
    const T *a = input(0), *b = input(std::min<std::size_t>(1, last));
    T* const out = output + begin;
    if (last == 0) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) store(out[i], manner.result(manner.part(load(a[i]))));
    } else if (last == 1) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i)
        store(out[i], manner.result(manner.combine(manner.part(load(a[i])), manner.part(load(b[i])))));
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) partial[i] = manner.combine(manner.part(load(a[i])), manner.part(load(b[i])));
      for (std::size_t m = 2; m < last; ++m) {
        const T* next = input(m);
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) partial[i] = manner.combine(partial[i], manner.part(load(next[i])));
      }
      const T* end = input(last);
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) store(out[i], manner.result(manner.combine(partial[i], manner.part(load(end[i])))));
    }
  }
}

}  // namespace

void reduce_in_order(DType type, Reduction reduction, std::span<const std::byte* const> inputs, std::int64_t count, std::byte* output) {
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
