// What a tensor rank holds of a parameter, as a slab of the whole one: what state is read and written by.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/training_inputs.h"
#include "planner/tensor/parts.h"

namespace fsdp {

// Of the part of tensor rank `member` the rows that `local` says; `shape`: of the whole parameter.
[[nodiscard]] inline Slab whole_slab(const TensorPart& part, Slab local, const std::vector<std::int64_t>& shape,
                                     std::int64_t member) {
  if (!part.split()) return local;
  const std::int64_t size = shape[static_cast<std::size_t>(part.dim)] / part.ranks;
  if (part.dim == local.dim) local.begin += member * size;
  else local.across = part.dim, local.across_begin = member * size, local.across_size = size;
  return local;
}

// The whole of a parameter that is split.
[[nodiscard]] inline Parameter whole_of(const TensorPart& part, Parameter p) {
  if (part.split()) p.shape[static_cast<std::size_t>(part.dim)] *= part.ranks;
  return p;
}

}  // namespace fsdp
