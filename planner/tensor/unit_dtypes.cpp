#include "planner/tensor/unit_dtypes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/op_ranges.h"
#include "models/index.h"
#include "models/input/error.h"
#include "planner/plan_ids.h"

namespace fsdp {
namespace {

class UnitDtypes {
 public:
  UnitDtypes(const ModelGraph& model, const ShardingPlan& plan, std::string_view where)
      : whole_(model),
        plan_(plan),
        where_(where),
        unit_of_module_(model.modules.size(), kNone),
        begins_(model.ops.size()),
        ends_(model.ops.size()),
        now_(model.tensors.size()) {
    for (std::size_t t = 0; t < now_.size(); ++t) now_[t] = static_cast<std::int32_t>(t);
    const PlanIds ids = resolve_ids(plan, model, where);
    for (std::size_t u = plan.units.size(); u-- > 0;) {  // outer units first, so that inner ones write over them
      if (plan.units[u].group_of) continue;              // has no hooks of its own
      for (const std::int32_t m : ids.units[u]) add_module(static_cast<std::int32_t>(u), m);
    }
    out_ = model;
    out_.ops.clear();
    out_.ops.reserve(model.ops.size() + 2 * plan.units.size());
    out_.unit_dtypes = true;
  }

  ModelGraph build() {
    refuse_models();
    for (std::size_t i = 0; i < whole_.ops.size(); ++i) {
      for (const Call& call : begins_[i]) cast_inputs(call);
      add(whole_.ops[i]);
      for (auto call = ends_[i].rbegin(); call != ends_[i].rend(); ++call) end(*call);
    }
    set_op_ranges(out_);
    return std::move(out_);
  }

 private:
  struct Call {  // of a unit's module, in a forward
    std::int32_t unit = kNone, module = kNone;
  };

  [[noreturn]] void refuse(const std::string& problem, const std::string& remedy) const {
    throw InputError({std::string(where_), "units"}, problem, remedy);
  }

  void add_module(std::int32_t unit, std::int32_t m) {
    for (std::size_t k = at(m); k < whole_.modules.size(); ++k) {  // its subtree: modules are in pre-order
      if (static_cast<std::int32_t>(k) != m && whole_.modules[k].parent < m) break;
      unit_of_module_[k] = unit;
    }
    const Module& module = whole_.modules[at(m)];
    if (m == 0 || module.op_begin == module.op_end) return;  // the root is called with token ids
    begins_[at(module.op_begin)].push_back({unit, m});
    ends_[at(module.op_end - 1)].push_back({unit, m});
  }

  void refuse_models() const {
    if (!whole_.trace.empty())
      refuse("one computes in another dtype, and '" + whole_.name + "' is as PyTorch exported it in one",
             "use one param_dtype for all units");
    for (const Op& op : whole_.ops)
      if (op.shape.experts.count > 0)
        refuse("one computes in another dtype, and what is cast in a mixture of experts is not known here",
               "use one param_dtype for all units");
    for (const auto& calls : begins_)
      for (const Call& call : calls) {
        const Module& m = whole_.modules[at(call.module)];
        for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
          if (!within(whole_.ops[at(i)].module, call.module))
            refuse("'" + m.name + "' runs more than once in a forward, and what is cast each time is not known here",
                   "use one param_dtype for all units");
      }
  }

  bool within(std::int32_t module, std::int32_t outer) const {
    while (module > outer) module = whole_.modules[at(module)].parent;
    return module == outer;
  }

  DType dtype_of(std::int32_t tensor) const { return out_.tensors[at(tensor)].dtype.value_or(plan_.param_dtype); }

  // A tensor as it is, in `dtype`.
  std::int32_t cast(std::int32_t from, DType dtype, const Call& call, bool of_result) {
    Tensor like = out_.tensors[at(from)];
    OpShape shape;
    shape.width = like.width;
    shape.from = dtype_of(from);
    shape.dtype = like.dtype = dtype;
    shape.of_result = of_result;
    const auto to = static_cast<std::int32_t>(out_.tensors.size());
    out_.tensors.push_back(like);
    std::int32_t around = whole_.modules[at(call.module)].parent;
    while (around > 0 && whole_.modules[at(around)].container) around = whole_.modules[at(around)].parent;
    out_.ops.push_back({OpKind::cast, around, {from}, {to}, {}, shape});
    return to;
  }

  // What the module reads and others have made: inside, it is the cast that is read.
  void cast_inputs(const Call& call) {
    if (!plan_.units[at(call.unit)].cast_forward_inputs) return;
    const DType dtype = plan_.param_dtype_of(at(call.unit));
    const Module& m = whole_.modules[at(call.module)];
    std::vector<std::int32_t> made, seen;
    for (std::int32_t i = m.op_begin; i < m.op_end; ++i) {
      const Op& op = whole_.ops[at(i)];
      for (const std::int32_t t : op.inputs) {
        const auto in = [t](const std::vector<std::int32_t>& list) {
          return std::find(list.begin(), list.end(), t) != list.end();
        };
        if (whole_.tensors[at(t)].kind != TensorKind::activation || in(made) || in(seen)) continue;
        seen.push_back(t);
        if (dtype_of(now_[at(t)]) == dtype) continue;
        const std::int32_t before = now_[at(t)];
        now_[at(t)] = cast(before, dtype, call, /*of_result=*/false);
        outside_.push_back({call.module, t, before});
      }
      made.insert(made.end(), op.outputs.begin(), op.outputs.end());
    }
  }

  void end(const Call& call) {
    while (!outside_.empty() && outside_.back().module == call.module) {
      now_[at(outside_.back().tensor)] = outside_.back().before;
      outside_.pop_back();
    }
    const std::optional<DType> dtype = plan_.units[at(call.unit)].output_dtype;
    if (!dtype) return;
    const Module& m = whole_.modules[at(call.module)];
    for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
      for (const std::int32_t t : whole_.ops[at(i)].outputs)
        if (whole_.tensors[at(t)].kind == TensorKind::activation && read_from(t, m.op_end) &&
            dtype_of(now_[at(t)]) != *dtype)
          now_[at(t)] = cast(now_[at(t)], *dtype, call, /*of_result=*/true);
  }

  bool read_from(std::int32_t tensor, std::int32_t op) const {
    for (std::size_t i = at(op); i < whole_.ops.size(); ++i)
      for (const std::int32_t in : whole_.ops[i].inputs)
        if (in == tensor) return true;
    return false;
  }

  std::string name_of(const Op& op) const {
    if (op.module < 0) return "the model's loss";
    const std::string& name = whole_.modules[at(op.module)].name;
    return name.empty() ? "the root" : "'" + name + "'";
  }

  // The weights' dtype, or where it has none that of what it reads.
  DType computes_in(const Op& op) const {
    std::optional<DType> weights;
    for (const std::int32_t p : op.params) {
      std::int32_t unit = static_cast<std::int32_t>(plan_.units.size());
      for (const std::int32_t owner : whole_.parameters[at(p)].modules)
        if (unit_of_module_[at(owner)] >= 0) unit = std::min(unit, unit_of_module_[at(owner)]);
      const DType of = at(unit) < plan_.units.size() ? plan_.param_dtype_of(at(unit)) : plan_.param_dtype;
      weights = of;
    }
    if (weights) return *weights;
    for (const std::int32_t t : op.inputs)
      if (whole_.tensors[at(t)].kind == TensorKind::activation) return dtype_of(now_[at(t)]);
    return plan_.param_dtype;
  }

  void add(Op op) {
    const DType dtype = computes_in(op);
    for (std::int32_t& t : op.inputs) {
      t = now_[at(t)];
      if (out_.tensors[at(t)].kind != TensorKind::activation || dtype_of(t) == dtype) continue;
      const std::string reads(name(dtype_of(t))), has(name(dtype));
      refuse("the " + std::string(name(op.kind)) + " of " + name_of(op) + " reads " + reads +
                 (op.params.empty() ? " beside " + has + ", which PyTorch promotes and is not known here"
                                    : ", and its weights are " + has),
             "set output_dtype of the unit before to " + has + ", or units of whole blocks");
    }
    if (dtype != plan_.param_dtype) op.shape.dtype = dtype;
    for (const std::int32_t t : op.outputs)
      if (out_.tensors[at(t)].kind == TensorKind::activation && dtype != plan_.param_dtype)
        out_.tensors[at(t)].dtype = dtype;
    out_.ops.push_back(std::move(op));
  }

  struct Outside {  // what others read while a module reads a cast
    std::int32_t module = kNone, tensor = kNone, before = kNone;
  };
  const ModelGraph& whole_;
  const ShardingPlan& plan_;
  const std::string_view where_;
  std::vector<std::int32_t> unit_of_module_;      // the innermost
  std::vector<std::vector<Call>> begins_, ends_;  // by op, outer first
  std::vector<std::int32_t> now_;                 // by tensor of the whole model: what is read of it
  std::vector<Outside> outside_;
  ModelGraph out_;
};

}  // namespace

ModelGraph with_unit_dtypes(const ModelGraph& model, const ShardingPlan& plan, std::string_view where) {
  return UnitDtypes(model, plan, where).build();
}

}  // namespace fsdp
