#include "planner/tensor/prepared_casts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "models/graph/op_ranges.h"
#include "models/hub/tensors.h"
#include "models/index.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr DType kWide = DType::f32;

class PreparedCasts {
 public:
  PreparedCasts(const ModelGraph& model, const ShardingPlan& plan, std::string_view where)
      : from_(model), narrow_(plan.param_dtype), where_(where), out_(model) {
    out_.ops.clear();
    out_.adapter_casts = true;
  }

  ModelGraph build() {
    for (const Op& op : from_.ops) add(op);
    set_op_ranges(out_);
    return std::move(out_);
  }

 private:
  void add(Op op) {
    if (!known(op))
      throw InputError(
          {std::string(where_), "model"},
          "what " + std::string(name(op.kind)) + " of " + from_.name + " computes in under autocast is not known here",
          "leave out prepared, or use a model of Llama's form");
    const bool wide = std::any_of(op.inputs.begin(), op.inputs.end(), [&](std::int32_t t) { return is_wide(t); });
    switch (op.kind) {
      case OpKind::linear: return linear(std::move(op), wide);
      case OpKind::rms_norm:
        op.inputs[0] = cast(op.inputs[0], kWide, op.module);
        compute_wide(op);
        break;
      case OpKind::attention:
        for (std::int32_t& t : op.inputs) t = cast(t, narrow_, op.module);
        break;
      default:
        if (wide && op.kind != OpKind::cross_entropy) compute_wide(op);
    }
    out_.ops.push_back(std::move(op));
  }

  // Of other norms, positions, attention and products it was not recorded.
  [[nodiscard]] bool known(const Op& op) const {
    const OpShape& s = op.shape;
    switch (op.kind) {
      case OpKind::embedding:
      case OpKind::linear:
      case OpKind::add:
      case OpKind::scale:
      case OpKind::cross_entropy: return true;
      case OpKind::rms_norm: return !s.wide_weight && s.weight_offset == 0 && s.in <= s.width;
      case OpKind::rotary: return !s.packed && s.in == 0 && s.rotated == 0 && !s.by_halves && !s.wide_angles;
      case OpKind::attention:
        return !s.packed && !s.alibi && !s.sinks && !s.always_masked && s.v_head_dim == 0 && s.cap == 0;
      case OpKind::swiglu:
        return !s.clamped && s.experts.count == 0 &&
               std::all_of(op.inputs.begin(), op.inputs.end(),
                           [&](std::int32_t t) { return is_wide(t) == is_wide(op.inputs[0]); });
      default: return false;
    }
  }

  // bitsandbytes' layer that is first called with fp32 computes in it (set_compute_type), but for its product, which
  // autocast casts; it casts the result back, of which peft's layer keeps a copy.
  void linear(Op op, bool wide) {
    const LoraPart part = lora_part(from_.parameters[at(op.params[0])]);
    if (part != LoraPart::none) op.shape.cast_weight = true;
    if (part == LoraPart::down && wide && op.shape.dropout > 0) {
      const std::int32_t whole = op.inputs[0], kept = copy_of(whole);
      const std::int32_t layer = from_.modules[at(from_.modules[at(op.module)].parent)].parent;
      add_cast(whole, kept, layer, {.dropout = std::exchange(op.shape.dropout, 0)});
      op.inputs[0] = kept;
    }
    op.inputs[0] = cast(op.inputs[0], narrow_, op.module);
    if (op.shape.four_bits == FourBits::none || !wide) return out_.ops.push_back(std::move(op));
    const std::int32_t result = op.outputs[0], module = op.module;
    OpShape back{.copied = std::exchange(op.shape.copied, false)};
    op.shape.unpacked_wide = true;
    op.outputs[0] = copy_of(result);
    const std::int32_t product = op.outputs[0];
    out_.ops.push_back(std::move(op));
    out_.tensors[at(result)].dtype = kWide;
    add_cast(product, result, module, std::move(back));
  }

  [[nodiscard]] DType type_of(std::int32_t tensor) const { return out_.tensors[at(tensor)].dtype.value_or(narrow_); }
  [[nodiscard]] bool is_wide(std::int32_t tensor) const { return type_of(tensor) != narrow_; }

  void compute_wide(Op& op) {
    op.shape.dtype = kWide;
    for (const std::int32_t t : op.outputs) out_.tensors[at(t)].dtype = kWide;
  }

  std::int32_t copy_of(std::int32_t tensor) {
    out_.tensors.push_back(Tensor(out_.tensors[at(tensor)]));
    return static_cast<std::int32_t>(out_.tensors.size()) - 1;
  }

  std::int32_t cast(std::int32_t from, DType type, std::int32_t module) {
    if (type_of(from) == type) return from;
    const std::int32_t to = copy_of(from);
    if (type == narrow_) out_.tensors[at(to)].dtype.reset();
    else out_.tensors[at(to)].dtype = type;
    add_cast(from, to, module, {});
    return to;
  }

  void add_cast(std::int32_t from, std::int32_t to, std::int32_t module, OpShape shape) {
    shape.width = out_.tensors[at(from)].width;
    shape.from = type_of(from);
    shape.dtype = type_of(to);
    shape.of_adapter = true;
    out_.ops.push_back({OpKind::cast, module, {from}, {to}, {}, shape});
  }

  const ModelGraph& from_;
  const DType narrow_;
  const std::string_view where_;
  ModelGraph out_;
};

}  // namespace

ModelGraph with_prepared_casts(const ModelGraph& model, const ShardingPlan& plan, const Implementation& implementation,
                               std::string_view where) {
  if (implementation.name != "hf" || implementation.compiled)
    throw InputError(setting("implementation"),
                     implementation_text(implementation) +
                         " has no known memory and time under autocast for a model "
                         "in 4 bits that was prepared",
                     "use hf, not compiled, or leave prepared out");
  return PreparedCasts(model, plan, where).build();
}

}  // namespace fsdp
