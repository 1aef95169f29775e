#include "executor/actions/extents.h"

#include <fmt/format.h>

#include "models/input/error.h"

namespace fsdp {

void expect_elements(BufferView view, std::int64_t elements, DType type, const char* what) {
  if (view.data == nullptr) throw InternalError(fmt::format("{}: no buffer was given", what));
  if (elements < 0 || view.bytes / size_of(type) != elements || view.bytes % size_of(type) != 0)
    throw InternalError(fmt::format("{}: a buffer of {} bytes where the model needs {} {} elements", what, view.bytes,
                                    elements, name(type)));
}

GradientPlaces gradient_places(const ShardingPlan& plan, const Buffer& gradient) {
  if (plan.dialect == Dialect::fsdp1) return GradientPlaces::as_shard;
  return gradient.host ? GradientPlaces::dense : GradientPlaces::trained;
}

}  // namespace fsdp
