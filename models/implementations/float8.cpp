// Traffic here is what is moved beside the products, which planner/costs/ counts itself.
//
// matmul_with_hp_or_float8_args saves its input as it came and the weight, which is FSDP's. Its casts are made again in
// backward: the gradient's, twice, the weight's, unless it was gathered in 8 bits, and the input's.
//
// Elements: x of the input, y of the output, w of the weight. Bytes of a cast, beside what it reads, at its worst
// moment: the scaled copy in fp32, the clamped one and the result, 9 per element; a source in 16 bits is converted to
// fp32 and scaled before, which takes no more. The second factor of a product has to be stored by columns, the first by
// rows: what is not is copied.
#include "models/implementations/float8.h"

#include <algorithm>
#include <initializer_list>

#include "models/implementations/pytorch_ops.h"

namespace fsdp::float8 {
namespace {

using pytorch::plus;
using pytorch::row_bytes;
using pytorch::row_elements;
using pytorch::times;

std::int64_t largest(std::initializer_list<std::int64_t> moments) {
  return std::max<std::int64_t>(0, std::max(moments));
}

struct Sizes {
  std::int64_t x, y, w, t, e;
  Sizes(const Op& op, const Workload& work)
      : x(row_elements(work, op.shape.in)),
        y(row_elements(work, op.shape.out)),
        w(times(op.shape.in, op.shape.out)),
        t(work.tokens()),
        e(work.element_bytes) {}
};

// torchao's MXFP8Linear (0.18): a cast is one kernel that reads 16 bits and writes 8 and a byte of scale per 32. Each
// of the three products has two, the input's and the weight's of forward being made again along the other side. Scales
// are then put in the order that cuBLAS reads, by two copies, which Inductor makes one; it fuses nothing into the
// casts. What autograd keeps is the input and the weight as they came, as of a layer in 16 bits. (Compiled, and nothing
// recomputed, Inductor may keep the cast by columns instead, half as large: not counted.)
//
// Casts reach 5.4 to 6.0 TB/s on a B200 (torchao's workflows/training.md and moe_training/README.md), where
// memory-bound kernels are taken for 6.8: their bytes count 6.8 / 5.7 times. Traffic beside the products.
//
// Eager: what backward casts stays until it returns. Compiled: until it is multiplied.
OpFacts mx_linear(const Op& op, const Workload& work, bool compiled) {
  const Sizes s(op, work);
  const bool bias = op.params.size() > 1;
  const std::int64_t result = s.y * s.e, dx = s.x * s.e, dw = s.w * s.e;
  const auto cast = [](std::int64_t elements) { return plus(elements, elements / 32 * 2); };  // scales in both orders
  const auto moved = [](std::int64_t elements) { return times(elements, 97) / 32 * 12 / 10; };
  std::int64_t backward = plus(plus(cast(s.y), cast(s.w)), plus(dx, plus(cast(s.y), plus(cast(s.x), dw))));
  if (compiled)
    backward = largest({plus(cast(s.y), plus(cast(s.w), dx)), plus(dx, plus(cast(s.y), plus(cast(s.x), dw)))});
  const std::int16_t each = compiled ? 2 : 3;  // a cast and the copies of its scales
  return {
      .saved_inputs = 0b1,
      .forward_scratch_bytes = plus(plus(cast(s.x), cast(s.w)), bias ? result : 0),
      .backward_scratch_bytes = std::max<std::int64_t>(0, backward - dx - dw),
      .forward_launches = static_cast<std::int16_t>(1 + 2 * each + (bias ? 1 : 0)),
      .backward_launches = static_cast<std::int16_t>(2 + 4 * each + (bias ? 1 : 0)),
      .forward_traffic_bytes = plus(moved(plus(s.x, s.w)), bias ? 3 * result : 0),
      .backward_traffic_bytes = plus(moved(plus(plus(s.y, s.y), plus(s.x, s.w))), bias ? result : 0),
  };
}

}  // namespace

OpFacts linear(const Op& op, const Workload& work) {
  if (op.shape.float8 == Float8Recipe::mxfp8) return mx_linear(op, work, /*compiled=*/false);
  const Sizes s(op, work);
  const OpShape& shape = op.shape;
  const bool tensorwise = shape.float8 == Float8Recipe::tensorwise,
             wide = shape.float8 == Float8Recipe::rowwise_with_gw_hp;
  const bool bias = op.params.size() > 1, gathered = shape.float8_weight;
  const std::int64_t cast = 9, weight = gathered ? 0 : s.w, result = s.y * s.e;
  // Scales of rows and columns, fp32: of the input's and the gradient's rows, and of both sides of the weight.
  const std::int64_t of_rows = tensorwise ? 0 : 4 * s.t, of_in = tensorwise ? 0 : 4 * shape.in,
                     of_out = tensorwise ? 0 : 4 * shape.out;
  // Forward: the input's cast, the weight's beside it, the product; a bias is added to it.
  const std::int64_t forward = largest({times(s.x, cast) + of_rows - result,
                                        s.x + of_rows + (gathered ? 0 : times(weight, cast) + of_out) - result,
                                        s.x + weight + of_rows + of_out + (bias ? result : 0)});
  // Backward, in order: casts of the gradient and of the weight, a copy of the weight by columns and the first product;
  // casts of the gradient and of the input, copies of both and the second product. A product without fast accumulation
  // is multiplied by the product of its rows' scales. dx and dw are made on the way and count as results throughout.
  const std::int64_t dx = s.x * s.e, dw = s.w * s.e;
  const std::int64_t once = s.y + of_rows, of_weight = wide ? 0 : of_in, before = once + weight + of_weight;
  std::int64_t backward = largest({times(s.y, cast) + of_rows, once + (gathered ? 0 : times(weight, cast) + of_weight),
                                   before + s.w + dx + (tensorwise ? 0 : times(s.x, 4))});
  if (wide) {
    backward = largest({backward, before + dx + dw});
  } else {
    const std::int64_t twice = before + dx + s.y + of_out;
    backward = largest({backward, before + dx + times(s.y, cast) + of_out, twice + times(s.x, cast) + of_in,
                        twice + s.y + 2 * s.x + of_in + dw + (tensorwise ? 0 : times(s.w, 4))});
  }
  const std::int64_t forward_casts = gathered ? 1 : 2, backward_casts = (wide ? 1 : 3) + (gathered ? 0 : 1);
  // abs, largest value, four of its scale, to fp32, scaled, clamped, cast.
  constexpr std::int64_t kCastLaunches = 10, kCastBytes = 2 + 2 + 2 + 2 + 4 + 8 + 8 + 5;
  return {
      .saved_inputs = 0b1,
      .forward_scratch_bytes = forward,
      .backward_scratch_bytes = std::max<std::int64_t>(0, backward - dx - dw),
      .forward_launches = static_cast<std::int16_t>(1 + kCastLaunches * forward_casts + (bias ? 1 : 0)),
      .backward_launches =
          static_cast<std::int16_t>(2 + kCastLaunches * backward_casts + (tensorwise ? 3 : 5) + (bias ? 1 : 0)),
      .forward_traffic_bytes = plus(times(plus(s.x, weight), kCastBytes), bias ? 3 * result : 0),
      .backward_traffic_bytes = plus(times(plus(times(s.y, wide ? 1 : 2), plus(wide ? 0 : s.x, weight)), kCastBytes),
                                     plus(2 * plus(s.w, plus(s.x, s.y)), bias ? result : 0))};
}

// What Inductor makes of a Llama block (PyTorch 2.15), counted from its schedule: bytes within 15 %, launches to one.
// A scale for the whole tensor needs all of it first: a pass of its own for a gradient or a weight, while the input's
// largest value comes with the kernel before it. A gradient's cast is written by rows and by columns. A scale per row
// is found and used while the row is in the cache; one per column is a pass of its own again. The gradients' products
// are multiplied by their rows' scales in passes over the results. A weight gathered in 8 bits is copied by columns.
//
// The partitioner keeps an input for the weight's gradient in 16 bits; one that is cast again it makes again with the
// cast, from what its norm, activation or attention keep.
OpFacts linear_compiled(const Op& op, const Workload& work) {
  if (op.shape.float8 == Float8Recipe::mxfp8) return mx_linear(op, work, /*compiled=*/true);
  const Sizes s(op, work);
  const OpShape& shape = op.shape;
  const bool tensorwise = shape.float8 == Float8Recipe::tensorwise,
             wide = shape.float8 == Float8Recipe::rowwise_with_gw_hp;
  const bool bias = op.params.size() > 1, gathered = shape.float8_weight;
  // Bytes per element of a cast, without and with a pass before.
  const std::int64_t again = s.e + 1, alone = 2 * s.e + 1;
  const std::int64_t weight = gathered ? 0 : s.w;
  OpFacts f;
  f.saved_inputs = wide ? 0b1 : 0;
  f.forward_scratch_bytes = plus(s.x, weight);
  f.backward_scratch_bytes = wide ? plus(s.y, s.w) : plus(s.y, std::max(s.w, plus(s.y, s.x)));
  f.forward_launches = static_cast<std::int16_t>(tensorwise && !gathered ? 6 : 3);
  f.forward_traffic_bytes = plus(times(s.x, again), times(weight, tensorwise ? alone : again));
  if (tensorwise) {
    f.backward_launches = static_cast<std::int16_t>(gathered ? 6 : 8);
    f.backward_traffic_bytes =
        plus(plus(times(s.y, alone + 1), times(s.x, again)), gathered ? 2 * s.w : times(s.w, alone));
  } else if (wide) {
    f.backward_launches = 5;
    f.backward_traffic_bytes = plus(plus(times(s.y, again), times(s.w, alone)), times(s.x, 2 * s.e));
  } else {
    f.backward_launches = 8;
    f.backward_traffic_bytes = plus(plus(times(s.y, again + alone), times(s.x, alone)),
                                    plus(times(s.w, alone), plus(times(s.x, 2 * s.e), times(s.w, 2 * s.e))));
  }
  if (bias) f.backward_launches = static_cast<std::int16_t>(f.backward_launches + 1);
  return f;
}

// TransformerEngine 0.10, transformer_engine/pytorch/module/linear.py. Scales are known before (base.py copies the
// largest values that the ranks have agreed on and makes scales of them, in a function that torch.compile fuses), so a
// cast is one kernel that reads a tensor once, finds its largest value on the way, and writes it by rows and by
// columns (common/transpose/cast_transpose.cu). The weight's is made in every forward (is_first_microbatch is not
// given), of the whole weight, and kept by columns until backward as the input's is: FSDP does not know of it, and it
// is as large as the layer. The input as it came is not kept. A bias is added by the product, and its gradient summed
// by the cast.
//
// Not modelled: the all-reduces of the largest values, one of some hundred numbers at the end of each pass, and a
// workspace of 32 MiB on Hopper, which is kept.
OpFacts linear_delayed(const Op& op, const Workload& work) {
  const Sizes s(op, work);
  const bool bias = op.params.size() > 1;
  constexpr std::int16_t kScaleLaunches = 4;  // a copy, the largest of the history and the scales, its roll, its fill
  const std::int64_t cast = s.e + 2;          // bytes per element
  return {.saved_extra_bytes = plus(s.x, s.w),
          .forward_scratch_bytes = plus(s.x, s.w),
          .backward_scratch_bytes = 2 * s.y,
          .forward_launches = kScaleLaunches + 4,  // two casts, the product, a copy of the scales for backward
          .backward_launches = static_cast<std::int16_t>(kScaleLaunches + 3 + (bias ? 1 : 0)),
          .forward_traffic_bytes = times(plus(s.x, s.w), cast),
          .backward_traffic_bytes = times(s.y, cast)};
}

std::int64_t kept_cast_bytes(const Op& op, const Workload& work, const ModelGraph& model) {
  const Float8Recipe recipe = op.shape.float8;
  if (recipe != Float8Recipe::tensorwise && recipe != Float8Recipe::rowwise) return 0;
  const bool of_attention = std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& other) {
    return other.kind == OpKind::attention && other.outputs[0] == op.inputs[0];
  });
  return of_attention ? row_elements(work, op.shape.in) : 0;
}

namespace {

bool of_feed_forward(const Op& op, const ModelGraph& model) {
  return std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& other) {
    if (other.kind != OpKind::swiglu && other.kind != OpKind::gelu && other.kind != OpKind::geglu) return false;
    const bool reads = std::find(other.inputs.begin(), other.inputs.end(), op.outputs[0]) != other.inputs.end();
    return reads || other.outputs[0] == op.inputs[0];
  });
}

bool of_values(const Op& op, const ModelGraph& model) {
  return std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& other) {
    return other.kind == OpKind::attention && other.inputs.back() == op.outputs[0];
  });
}

}  // namespace

// Recorded (tests/torch/record_float8_saved.py). A weight gathered in 8 bits is a graph input of a subclass, which the
// partitioner does not take for free: of two tensors of a byte per element it keeps the input here, the copy there.
void keep_copies(OpFacts& f, const Op& op, const ModelGraph& model, Float8Copies copies) {
  const OpShape& shape = op.shape;
  const Float8Recipe recipe = shape.float8;
  if (op.kind != OpKind::linear || copies == Float8Copies::none || recipe == Float8Recipe::none ||
      recipe == Float8Recipe::mxfp8 || recipe == Float8Recipe::delayed)
    return;
  const bool all = copies == Float8Copies::of_all;
  const bool values = copies == Float8Copies::of_gathered_and_values && of_values(op, model);
  if (!all && !(shape.float8_weight && (values || of_feed_forward(op, model)))) return;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(shape.in, shape.out));
}

namespace {

// As the partitioner keeps them (tests/torch/early/record_float8_saved.py): of an input once, however many layers read
// it, and not of an activation function's result.
std::int64_t absolutes(const Op& op, const Workload& work, const ModelGraph& model, bool of_weight) {
  if (op.kind != OpKind::linear || op.shape.float8 != Float8Recipe::rowwise) return 0;
  bool of_input = true;
  for (const Op& before : model.ops) {
    if (&before == &op) break;
    const bool shares = before.kind == OpKind::linear && before.inputs[0] == op.inputs[0];
    const bool activated =
        (before.kind == OpKind::swiglu || before.kind == OpKind::gelu) && before.outputs[0] == op.inputs[0];
    if (shares || activated) of_input = false;
  }
  const Sizes s(op, work);
  return times(plus(of_weight ? s.w : 0, of_input ? s.x : 0), s.e);
}

}  // namespace

std::int64_t kept_absolutes(const Op& op, const Workload& work, const ModelGraph& model, std::int64_t matmul) {
  return absolutes(op, work, model, matmul % 2 == 0);
}

std::int64_t kept_absolutes_of_all(const Op& op, const Workload& work, const ModelGraph& model, std::int64_t) {
  return absolutes(op, work, model, true);
}

namespace {

std::string_view lacks_of_wide(const Op& op) {
  Op wide = op;
  wide.shape.float8 = Float8Recipe::none;
  return few_families(wide);
}

}  // namespace

std::string_view lacks(const Op& op) {
  return op.shape.float8 == Float8Recipe::delayed ? few_families(op) : lacks_of_wide(op);
}

std::string_view lacks_but_delayed(const Op& op) {
  return op.shape.float8 == Float8Recipe::delayed ? lacks_of_wide(op) : few_families(op);
}

}  // namespace fsdp::float8
