// Extents of ops whose tensors have more structure than tokens x width, as kernels use them.
#pragma once

#include "executor/kernels/call.h"

namespace fsdp {

// SwiGLU. Gate and up as a row of all elements each, or packed: alternating in every row of tokens or slots.
struct GatedRows {
  explicit GatedRows(const Call& call)
      : packed(call.shape.packed), rows(fsdp::rows(call.shape.experts, call.work)), width(call.shape.width) {
    if (packed) stride = 2 * width;
    else stride = width = extent(rows, width), rows = 1;
  }
  [[nodiscard]] std::int64_t read() const { return extent(rows, stride); }  // elements of an input
  [[nodiscard]] std::int64_t made() const { return extent(rows, width); }
  const bool packed;
  std::int64_t rows, width, stride = 0;
};

struct NormRows {
  std::int64_t rows, width, elements;
  explicit NormRows(const Call& call)
      : rows(extent(call.tokens, call.shape.groups)),
        width(call.shape.width),
        elements(extent(rows, call.shape.width)) {}
};

// Mixtures of experts: slots and drops as struct Experts has them. A choice is a slot >= 0, or names the expert that
// had none left.
struct ExpertSizes {
  explicit ExpertSizes(const Call& call)
      : tokens(call.tokens),
        experts(call.shape.experts.count),
        k(call.shape.experts.top_k),
        capacity(call.shape.experts.capacity(call.tokens)),
        slots(extent(experts, capacity)),
        choices(extent(tokens, k)) {}
  const std::int64_t tokens, experts, k, capacity, slots, choices;
};
FSDP_DEVICE inline bool is_slot(std::int64_t id) { return id >= 0; }
FSDP_DEVICE inline std::int64_t dropped(std::int64_t expert) { return -1 - expert; }
FSDP_DEVICE inline std::int64_t expert_of(std::int64_t id, std::int64_t capacity) {
  return is_slot(id) ? id / capacity : -1 - id;
}

}  // namespace fsdp
