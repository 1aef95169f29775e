#include "executor/checkpoint/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "models/input/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::string text(const Box& b) {
  return fmt::format("[{}] + [{}]", fmt::join(b.offsets, ", "), fmt::join(b.sizes, ", "));
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.sizes.size(); ++d)
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) return false;
  return true;
}

// The dimension in which the boxes begin at most places: sorted along it, few of them are compared with one another.
std::size_t most_divided(const std::vector<Box>& boxes, std::size_t dims) {
  std::size_t best = 0, most = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    std::set<std::int64_t> begins;
    for (const Box& b : boxes) begins.insert(b.offsets[d]);
    if (begins.size() > most) {
      most = begins.size();
      best = d;
    }
  }
  return best;
}

void check_apart(const std::vector<Box>& boxes, std::size_t dims, const std::string& where) {
  if (dims == 0 || boxes.size() < 2) {
    if (boxes.size() > 1) throw InputError(where, "a tensor of one element is stored twice");
    return;
  }
  const std::size_t d = most_divided(boxes, dims);
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return boxes[a].offsets[d] < boxes[b].offsets[d]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Box& a = boxes[order[i]];
    for (std::size_t j = i + 1; j < order.size() && boxes[order[j]].offsets[d] < a.offsets[d] + a.sizes[d]; ++j)
      if (overlap(a, boxes[order[j]]))
        throw InputError(where, fmt::format("boxes {} and {} overlap", text(a), text(boxes[order[j]])));
  }
}

}  // namespace

std::int64_t Box::volume(std::string_view where) const {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n = checked_mul(n, s, where);
  return n;
}

Box whole(const std::vector<std::int64_t>& shape) { return {std::vector<std::int64_t>(shape.size(), 0), shape}; }

Box box_of(const Slab& slab, const std::vector<std::int64_t>& shape) {
  Box b = whole(shape);
  b.offsets.at(static_cast<std::size_t>(slab.dim)) = slab.begin;
  b.sizes.at(static_cast<std::size_t>(slab.dim)) = slab.rows;
  if (slab.across < 0) return b;
  b.offsets.at(static_cast<std::size_t>(slab.across)) = slab.across_begin;
  b.sizes.at(static_cast<std::size_t>(slab.across)) = slab.across_size;
  return b;
}

namespace {

// Of the part of the tensor that `row` holds: its dimensions before `dim` are one element each.
void add_range(std::int64_t first, std::int64_t count, std::size_t dim, const Box& row, std::vector<Box>& boxes) {
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < row.sizes.size(); ++d) inner *= row.sizes[d];
  const auto at_row = [&](std::int64_t begin, std::int64_t rows) {
    Box b = row;
    b.offsets[dim] = begin, b.sizes[dim] = rows;
    return b;
  };
  while (count > 0) {
    const std::int64_t begin = first / inner, skipped = first % inner;
    const bool whole = skipped == 0 && count >= inner;
    const std::int64_t taken = whole ? count / inner * inner : std::min(count, inner - skipped);
    if (whole) boxes.push_back(at_row(begin, count / inner));
    else add_range(skipped, taken, dim + 1, at_row(begin, 1), boxes);
    first += taken, count -= taken;
  }
}

}  // namespace

std::vector<Box> boxes_of_range(std::int64_t first, std::int64_t count, const std::vector<std::int64_t>& shape) {
  std::vector<Box> boxes;
  add_range(first, count, 0, whole(shape), boxes);
  return boxes;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both = a;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    const std::int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (end <= begin) return std::nullopt;
    both.offsets[d] = begin;
    both.sizes[d] = end - begin;
  }
  return both;
}

void for_each_run(const Box& part, const Box& source, const Box& target,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& run) {
  const std::size_t dims = part.sizes.size();
  if (part.volume() == 0) return;
  // Dimensions [inner, dims) are whole in both boxes; together with the one before they make up a run.
  std::size_t inner = dims;
  while (inner > 0 && part.sizes[inner - 1] == source.sizes[inner - 1] &&
         part.sizes[inner - 1] == target.sizes[inner - 1])
    --inner;
  std::int64_t count = 1;
  for (std::size_t d = inner == 0 ? 0 : inner - 1; d < dims; ++d) count *= part.sizes[d];
  const std::size_t outer = inner == 0 ? 0 : inner - 1;
  std::vector<std::int64_t> at(outer, 0);
  while (true) {
    std::int64_t from = 0, to = 0;
    for (std::size_t d = 0; d < dims; ++d) {
      const std::int64_t index = part.offsets[d] + (d < outer ? at[d] : 0);
      from = from * source.sizes[d] + index - source.offsets[d];
      to = to * target.sizes[d] + index - target.offsets[d];
    }
    run(from, to, count);
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == part.sizes[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

void check_cover(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes, const std::string& where) {
  std::int64_t covered = 0;
  for (const Box& b : boxes) {
    if (b.offsets.size() != shape.size() || b.sizes.size() != shape.size())
      throw InputError(where, fmt::format("box {} does not have the tensor's {} dimensions", text(b), shape.size()));
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (b.offsets[d] < 0 || b.sizes[d] < 1 || b.offsets[d] > shape[d] || b.sizes[d] > shape[d] - b.offsets[d])
        throw InputError(where, fmt::format("box {} is empty or not inside the tensor's shape [{}]", text(b),
                                            fmt::join(shape, ", ")));
    covered = checked_add(covered, b.volume(where), where);
  }
  check_apart(boxes, shape.size(), where);
  const std::int64_t all = whole(shape).volume(where);
  if (covered != all) throw InputError(where, fmt::format("its boxes hold {} of {} elements", covered, all));
}

}  // namespace fsdp
