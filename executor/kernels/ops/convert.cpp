// Conversions between element types and scalings of whole buffers.
#include "executor/arithmetic/convert.h"

#include "executor/kernels/call.h"
#include "executor/kernels/levels/host_kernels.h"

namespace fsdp {
namespace {

template <class T>
T* typed(const BufferView& view) {
  return reinterpret_cast<T*>(view.data);
}

}  // namespace

void HostKernels::convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
                          bool accumulate) const {
  check_extent("convert", "source", 0, from, elements, size_of(from_type));
  check_extent("convert", "target", 0, to, elements, size_of(to_type));
  with_type(from_type, [&](auto source) {
    with_type(to_type, [&](auto target) {
      convert_elements(typed<decltype(source)>(from), typed<decltype(target)>(to), elements, accumulate);
    });
  });
}

void HostKernels::scale(DType type, BufferView values, std::int64_t elements, double factor) const {
  check_extent("scale", "values", 0, values, elements, size_of(type));
  with_type(type, [&](auto element) {
    using T = decltype(element);
    auto* x = typed<T>(values);
    const auto f = static_cast<Math<T>>(factor);
    for (std::int64_t i = 0; i < elements; ++i) store(x[i], load(x[i]) * f);
  });
}

}  // namespace fsdp
