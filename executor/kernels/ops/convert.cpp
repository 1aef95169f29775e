// Conversions between element types, sums, norms and scalings of whole buffers.
#include "executor/arithmetic/convert.h"

#include "executor/kernels/call.h"
#include "executor/kernels/levels/table.h"

namespace fsdp {
namespace {

template <class T>
T* typed(const BufferView& view) {
  return reinterpret_cast<T*>(view.data);
}

}  // namespace

void kernels::add_into(DType type, BufferView from, BufferView into, std::int64_t elements) {
  check_extent("add_into", "source", 0, from, elements, size_of(type));
  check_extent("add_into", "target", 0, into, elements, size_of(type));
  with_type(type, [&](auto element) {
    using T = decltype(element);
    convert_elements(typed<T>(from), typed<T>(into), elements, true);
  });
}

void kernels::convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
                      bool accumulate) {
  check_extent("convert", "source", 0, from, elements, size_of(from_type));
  check_extent("convert", "target", 0, to, elements, size_of(to_type));
  with_type(from_type, [&](auto source) {
    with_type(to_type, [&](auto target) {
      convert_elements(typed<decltype(source)>(from), typed<decltype(target)>(to), elements, accumulate);
    });
  });
}

double kernels::sum_of_squares(DType type, BufferView values, std::int64_t elements) {
  check_extent("sum_of_squares", "values", 0, values, elements, size_of(type));
  return with_type(type, [&](auto element) {
    const auto* x = typed<decltype(element)>(values);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < elements; ++i)
      sum += static_cast<double>(load(x[i])) * static_cast<double>(load(x[i]));
    return sum;
  });
}

void kernels::scale(DType type, BufferView values, std::int64_t elements, double factor) {
  check_extent("scale", "values", 0, values, elements, size_of(type));
  with_type(type, [&](auto element) {
    using T = decltype(element);
    auto* x = typed<T>(values);
    const auto f = static_cast<Math<T>>(factor);
    for (std::int64_t i = 0; i < elements; ++i) store(x[i], load(x[i]) * f);
  });
}

}  // namespace fsdp
