// Where every element goes in the collectives of a group: PyTorch's test_fully_shard_comm.py gathers and reduces a
// group of these shapes over 128 ranks that are threads; here over 128 ranks that are buffers, and the collectives are
// loops.
#include "planner/layout.h"

#include <doctest/doctest.h>

#include <numeric>

#include "executor/arithmetic/element.h"
#include "executor/kernels/host_kernel_set.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Shape = std::vector<std::int64_t>;
const std::vector<Shape> kShapes = {{17, 257}, {17}, {64, 312}, {64}, {64, 64}, {512, 64}, {256}, {64, 297}};
constexpr std::int64_t kRanks = 128;

// The planner's own layout of one group of parameters of these shapes; the first `frozen` of them are not trained.
UnitLayout group(const std::vector<Shape>& shapes, std::int64_t ranks, std::size_t frozen = 0) {
  ModelGraph model;
  model.modules.push_back({"", "Group", -1, 0, 1});
  Op uses_all;
  uses_all.kind = OpKind::opaque;
  uses_all.module = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    model.parameters.push_back({"p" + std::to_string(i), {}, {0}, shapes[i], i >= frozen});
    uses_all.params.push_back(static_cast<std::int32_t>(i));
  }
  model.tensors.resize(4);
  uses_all.inputs = {0};
  uses_all.outputs = {2};
  Op loss;
  loss.kind = OpKind::cross_entropy;
  loss.inputs = {2, 1};
  loss.outputs = {3};
  model.ops = {uses_all, loss};
  ShardingPlan plan;
  plan.mesh = {{"shard", ranks}};
  plan.units = {{{""}}};
  return unit_layouts(plan, model).front();
}

std::int64_t numel(const Shape& s) { return std::accumulate(s.begin(), s.end(), std::int64_t{1}, std::multiplies<>()); }

// Small integers, different for every parameter, element and rank; all types hold them.
double value(std::size_t param, std::int64_t element, std::int64_t rank = 0) {
  return static_cast<double>((element * 7 + static_cast<std::int64_t>(param) * 31 + rank * 3) % 61 - 30);
}

// Element e of a tensor of this shape, cut along its first dimension as torch.chunk does: which rank has it, and where.
struct Place {
  std::int64_t rank, offset;
};
Place place_of(const Shape& shape, std::int64_t ranks, std::int64_t element) {
  const std::int64_t row = numel(shape) / shape[0], rows = (shape[0] + ranks - 1) / ranks, rank = element / row / rows;
  return {rank, element - rank * rows * row};
}
std::int64_t padded(const Shape& shape, std::int64_t ranks) {
  return (shape[0] + ranks - 1) / ranks * (numel(shape) / shape[0]);
}

std::vector<Block> targets(const std::vector<Shape>& shapes, DType type) {
  std::vector<Block> full;
  for (const Shape& s : shapes) full.push_back(encode(type, Numbers(static_cast<std::size_t>(numel(s)), -99.0)));
  return full;
}

std::vector<BufferView> views(std::vector<Block>& memory) {
  std::vector<BufferView> v;
  for (Block& m : memory) v.push_back(m.view());
  return v;
}

void check_whole(std::vector<Block>& full, const std::vector<Shape>& shapes, DType type) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Numbers x = decode(type, full[i].view());
    bool equal = x.size() == static_cast<std::size_t>(numel(shapes[i]));
    for (std::size_t e = 0; e < x.size(); ++e) equal = equal && x[e] == value(i, static_cast<std::int64_t>(e));
    CAPTURE(i);
    CHECK(equal);
  }
}

}  // namespace

TEST_CASE(
    "test_all_gather_fp32: 128 ranks give their shards of a group, every rank has every parameter; then groups of 8") {
  const UnitLayout layout = group(kShapes, kRanks);
  Numbers gathered(static_cast<std::size_t>(kRanks * layout.shard_elements), 0.0);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    for (std::int64_t e = 0; e < numel(kShapes[i]); ++e) {
      const Place p = place_of(kShapes[i], kRanks, e);
      gathered[static_cast<std::size_t>(p.rank * layout.shard_elements + offset + p.offset)] = value(i, e);
    }
    offset += padded(kShapes[i], kRanks);
  }
  CHECK(offset == layout.shard_elements);
  for (const DType type : {DType::f32, DType::f16}) {
    Block flat = encode(type, gathered);
    std::vector<Block> full = targets(kShapes, type);
    host_kernel_set().gather_copy_out(layout, type, flat.view(), views(full));
    check_whole(full, kShapes, type);

    // After forward each rank keeps an eighth of every padded parameter; groups of 8 put them together again.
    const std::int64_t n = 8, slot = layout.shard_elements * kRanks / n;
    Numbers parts(static_cast<std::size_t>(n * slot), 0.0);
    std::int64_t before = 0;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const std::int64_t part = padded(kShapes[i], kRanks) * kRanks / n;
      for (std::int64_t e = 0; e < numel(kShapes[i]); ++e)
        parts[static_cast<std::size_t>(e / part * slot + before + e % part)] = value(i, e);
      before += part;
    }
    Block kept = encode(type, parts);
    std::vector<Block> again = targets(kShapes, type);
    host_kernel_set().gather_parts_copy_out(layout, n, type, kept.view(), views(again));
    check_whole(again, kShapes, type);
  }
}

namespace {

// 128 ranks copy their gradients in; the sum of row r is what rank r is left with.
void check_reduced(std::size_t frozen, DType from, DType to) {
  const UnitLayout layout = group(kShapes, kRanks, frozen);
  const GradientScale scale = gradient_scale(kRanks, 1, to, std::nullopt, false);
  Numbers sum(static_cast<std::size_t>(kRanks * layout.reduce_elements), 0.0);
  Block flat(kRanks * layout.reduce_elements * size_of(to));
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    std::vector<Block> gradients;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      Numbers x(static_cast<std::size_t>(numel(kShapes[i])));
      for (std::size_t e = 0; e < x.size(); ++e) x[e] = value(i, static_cast<std::int64_t>(e), rank);
      gradients.push_back(encode(from, x));
    }
    host_kernel_set().scatter_copy_in(layout, from, views(gradients), to, flat.view());
    host_kernel_set().scale(to, flat.view(), kRanks * layout.reduce_elements, 1 / scale.divide_before);
    const Numbers row = decode(to, flat.view());
    for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += row[e];
  }
  if (to == DType::f16) CHECK(std::pair(scale.divide_before, scale.divide_after) == std::pair(16.0, 8.0));
  const double after = to == DType::f16 ? scale.divide_after : static_cast<double>(kRanks);
  Numbers expected(sum.size(), 0.0);  // padding stays zero
  std::int64_t offset = 0;
  for (std::size_t i = frozen; i < kShapes.size(); ++i) {
    for (std::int64_t e = 0; e < numel(kShapes[i]); ++e) {
      double total = 0;
      for (std::int64_t rank = 0; rank < kRanks; ++rank) total += value(i, e, rank);
      const Place p = place_of(kShapes[i], kRanks, e);
      expected[static_cast<std::size_t>(p.rank * layout.reduce_elements + offset + p.offset)] = total / kRanks;
    }
    offset += padded(kShapes[i], kRanks);
  }
  CHECK(offset == layout.reduce_elements);
  double worst = 0;
  for (std::size_t e = 0; e < sum.size(); ++e) worst = std::max(worst, std::abs(sum[e] / after - expected[e]));
  CHECK(worst == 0);  // integers and powers of two: nothing is rounded
}

}  // namespace

TEST_CASE(
    "test_reduce_scatter_fp32, _fp16: 128 ranks copy gradients in, each is left with its chunk of the mean; fp16 "
    "divides by 16, then by 8") {
  check_reduced(0, DType::f32, DType::f32);
  check_reduced(0, DType::bf16, DType::f32);
  check_reduced(0, DType::f16, DType::f16);
}

TEST_CASE("frozen parameters of a group are gathered, and left out of what is reduced") {
  check_reduced(3, DType::f32, DType::f32);
}

// PyTorch's chunk_cat test: a mix of bf16 and fp32 gradients. A plan here has one compute dtype, so each by itself,
// into fp32.
TEST_CASE("chunk_cat: (5, 3), (7), (2049, 2, 2) on 4 ranks, from bf16 and from fp32 into fp32") {
  const std::vector<Shape> shapes = {{5, 3}, {7}, {2049, 2, 2}};
  const UnitLayout layout = group(shapes, 4);
  for (const DType from : {DType::bf16, DType::f32}) {
    std::vector<Block> gradients;
    Numbers expected(static_cast<std::size_t>(4 * layout.reduce_elements), 0.0);
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      Numbers x(static_cast<std::size_t>(numel(shapes[i])));
      for (std::size_t e = 0; e < x.size(); ++e) {
        x[e] = value(i, static_cast<std::int64_t>(e));
        const Place p = place_of(shapes[i], 4, static_cast<std::int64_t>(e));
        expected[static_cast<std::size_t>(p.rank * layout.reduce_elements + offset + p.offset)] = x[e];
      }
      offset += padded(shapes[i], 4);
      gradients.push_back(encode(from, x));
    }
    Block flat = encode(DType::f32, Numbers(expected.size(), -9.0));  // what is not written would show
    host_kernel_set().scatter_copy_in(layout, from, views(gradients), DType::f32, flat.view());
    CHECK(decode(DType::f32, flat.view()) == expected);
  }
}
