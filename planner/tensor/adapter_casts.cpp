#include "planner/tensor/adapter_casts.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/graph/module_names.h"
#include "models/graph/op_ranges.h"
#include "models/hub/tensors.h"
#include "models/index.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

// The types of a plan's adapters.
class TypesInPlan {
 public:
  explicit TypesInPlan(const ShardingPlan& plan) : plan_(plan) {
    for (std::size_t u = 0; u < plan.units.size(); ++u)
      if (of_adapters(plan.units[u]))
        for (const std::string& module : plan.units[u].modules) unit_of_[module] = u;
  }

  [[nodiscard]] AdapterTypes of(const Parameter& p, double dropout = 0) const {
    const DType kept = plan_.kept_dtype(p.trainable);
    const bool whole = std::any_of(plan_.ignored.begin(), plan_.ignored.end(),
                                   [&](const std::string& name) { return p.name == name || inside(p.name, name); });
    if (plan_.dialect == Dialect::ddp || whole) return {kept, kept};
    const auto own = unit_of_.find(std::string_view(p.name).substr(0, p.name.rfind('.')));
    if (own != unit_of_.end()) return {kept, plan_.param_dtype_of(own->second), dropout > 0};
    return {plan_.param_dtype, plan_.param_dtype};
  }

 private:
  const ShardingPlan& plan_;
  std::unordered_map<std::string_view, std::size_t> unit_of_;  // by module: a unit of its own
};

const Parameter* weight_of(const Op& op, const ModelGraph& model, LoraPart part) {
  if (op.kind != OpKind::linear || op.params.empty()) return nullptr;
  const Parameter& p = model.parameters[at(op.params[0])];
  return lora_part(p) == part ? &p : nullptr;
}

class AdapterCasts {
 public:
  AdapterCasts(const ModelGraph& model, const ShardingPlan& plan, std::string_view where)
      : from_(model), plan_(plan), types_(plan), where_(where), out_(model) {
    out_.ops.clear();
    out_.adapter_casts = true;
  }

  ModelGraph build() {
    for (std::size_t i = 0; i < from_.ops.size(); ++i) {
      const Parameter* first = weight_of(from_.ops[i], from_, LoraPart::down);
      if (first == nullptr) out_.ops.push_back(from_.ops[i]);
      else adapter(i, types_.of(*first, from_.ops[i].shape.dropout)), i += 3;
    }
    set_op_ranges(out_);
    return std::move(out_);
  }

 private:
  // The four ops of an adapter stand together: both products, the scaling, and the sum (models/graph/lora.h).
  void adapter(std::size_t i, const AdapterTypes& types) {
    Op down = from_.ops[i], up = from_.ops[i + 1], scale = from_.ops[i + 2], sum = from_.ops[i + 3];
    const std::int32_t layer = sum.module;
    const Parameter* second = weight_of(up, from_, LoraPart::up);
    if (second == nullptr || types_.of(*second).inside != types.inside)
      throw InputError({std::string(where_), "units"},
                       "the two weights of the adapter of '" + from_.modules[at(layer)].name +
                           "' compute in different types, which is not known here",
                       "give their units one param_dtype");
    down.inputs[0] = cast(down.inputs[0], types.outside, layer);
    if (types.dropped_outside) {
      const std::int32_t whole = down.inputs[0], kept = copy_of(whole);
      add_cast(whole, kept, layer, std::exchange(down.shape.dropout, 0));
      down.inputs[0] = kept;
    }
    down.inputs[0] = cast(down.inputs[0], types.inside, layer);
    for (Op* op : {&down, &up, &scale}) compute_in(*op, types.inside);
    const std::int32_t result = sum.outputs[0];
    // bitsandbytes' layer casts what it adds, all others the sum.
    const bool four_bits = i > 0 && from_.ops[i - 1].shape.four_bits != FourBits::none;
    if (!four_bits && size_of(types.inside) > size_of(plan_.param_dtype)) {
      sum.outputs[0] = copy_of(result);
      compute_in(sum, types.inside);
    }
    for (Op* op : {&down, &up, &scale}) out_.ops.push_back(*op);
    if (four_bits) sum.inputs[1] = cast(scale.outputs[0], plan_.param_dtype, layer);
    const std::int32_t summed = sum.outputs[0];
    out_.ops.push_back(std::move(sum));
    if (summed != result) add_cast(summed, result, layer);
  }

  [[nodiscard]] DType type_of(std::int32_t tensor) const {
    return out_.tensors[at(tensor)].dtype.value_or(plan_.param_dtype);
  }
  [[nodiscard]] std::optional<DType> if_not_usual(DType type) const {
    return type == plan_.param_dtype ? std::nullopt : std::optional(type);
  }

  void compute_in(Op& op, DType type) {
    op.shape.dtype = if_not_usual(type);
    for (const std::int32_t t : op.outputs) out_.tensors[at(t)].dtype = if_not_usual(type);
  }

  std::int32_t copy_of(std::int32_t tensor) {
    out_.tensors.push_back(Tensor(out_.tensors[at(tensor)]));
    return static_cast<std::int32_t>(out_.tensors.size()) - 1;
  }

  std::int32_t cast(std::int32_t from, DType type, std::int32_t layer) {
    if (type_of(from) == type) return from;
    const std::int32_t to = copy_of(from);
    out_.tensors[at(to)].dtype = if_not_usual(type);
    add_cast(from, to, layer);
    return to;
  }

  // With a dropout, whose result is as wide as what it reads.
  void add_cast(std::int32_t from, std::int32_t to, std::int32_t layer, double dropout = 0) {
    OpShape shape;
    shape.dropout = dropout;
    shape.width = out_.tensors[at(from)].width;
    shape.from = type_of(from);  // the same type with a dropout alone
    shape.dtype = type_of(to);
    shape.of_adapter = true;
    out_.ops.push_back({OpKind::cast, layer, {from}, {to}, {}, shape});
  }

  const ModelGraph& from_;
  const ShardingPlan& plan_;
  const TypesInPlan types_;
  const std::string_view where_;
  ModelGraph out_;
};

}  // namespace

std::vector<AdapterTypes> adapter_types(const ModelGraph& model, const ShardingPlan& plan) {
  std::vector<AdapterTypes> found;
  if (!model.trace.empty() || plan.several_dtypes()) return found;
  const TypesInPlan types(plan);
  for (const Op& op : model.ops)
    if (const Parameter* first = weight_of(op, model, LoraPart::down))
      found.push_back(types.of(*first, op.shape.dropout));
  return found;
}

bool adapters_compute_apart(const ModelGraph& model, const ShardingPlan& plan) {
  const std::vector<AdapterTypes> types = adapter_types(model, plan);
  return std::any_of(types.begin(), types.end(), [&](const AdapterTypes& t) { return t.inside != plan.param_dtype; });
}

bool casts_for_adapters(const ModelGraph& model, const ShardingPlan& plan) {
  const std::vector<AdapterTypes> types = adapter_types(model, plan);
  return std::any_of(types.begin(), types.end(), [&](const AdapterTypes& t) {
    return t.outside != plan.param_dtype || t.inside != plan.param_dtype || t.dropped_outside;
  });
}

Implementation without_unit_casts(Implementation implementation, const ModelGraph& model, const ShardingPlan& base) {
  if (!adapters_compute_apart(model, base)) implementation.peft_casts = false;
  return implementation;
}

ModelGraph with_adapter_casts(const ModelGraph& model, const ShardingPlan& plan, std::string_view where) {
  return AdapterCasts(model, plan, where).build();
}

}  // namespace fsdp
