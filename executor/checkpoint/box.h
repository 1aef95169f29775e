// Boxes: what a rank holds of a tensor, [offsets, offsets + sizes) in every dimension. How checkpoints move between
// meshes: the boxes that were saved are intersected with those that are wanted, and what both have is copied in runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "executor/training_inputs.h"

namespace fsdp {

struct Box {
  std::vector<std::int64_t> offsets, sizes;  // one of each per dimension of the tensor
  [[nodiscard]] std::int64_t volume(
      std::string_view where = "box") const;  // elements; throws InputError(where) beyond 64 bits
  friend bool operator==(const Box&, const Box&) = default;
};

[[nodiscard]] Box whole(const std::vector<std::int64_t>& shape);
// The rows of a slab, all of the other dimensions.
[[nodiscard]] Box box_of(const Slab&, const std::vector<std::int64_t>& shape);
// The fewest boxes that are elements [first, first + count) of a row-major tensor, in their order (of two dimensions:
// the rest of a row, whole rows, the beginning of one).
[[nodiscard]] std::vector<Box> boxes_of_range(std::int64_t first, std::int64_t count,
                                              const std::vector<std::int64_t>& shape);
[[nodiscard]] std::optional<Box> intersection(const Box&, const Box&);

// Calls run(from, to, count) for the longest runs of elements of `part` (which lies in both boxes) that follow one
// another in both: elements [from, from + count) of `source`, stored row-major, are elements [to, to + count) of
// `target`. `from` ascends.
void for_each_run(const Box& part, const Box& source, const Box& target,
                  const std::function<void(std::int64_t from, std::int64_t to, std::int64_t count)>& run);

// Throws InputError(`where`, ...) unless the boxes lie in the tensor, none is empty, no two overlap, and together they
// are all of it.
void check_cover(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes, const std::string& where);

}  // namespace fsdp
