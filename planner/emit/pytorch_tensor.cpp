// What an emitted PyTorch script says of tensor parallelism: which ParallelStyle each module has, for
// parallelize_module. For apply(), python/fsdp_plan/dialects/tensor.py says the same.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/index.h"
#include "planner/emit/formats.h"
#include "planner/emit/pytorch_template.h"
#include "planner/tensor/split.h"
#include "planner/tensor/styles.h"

namespace fsdp {
namespace {

// By module's name: Python that makes its style.
using Styles = std::map<std::string, std::string>;

std::string linear_style(TensorStyle style, bool gathers, bool makes_logits, bool loss_parallel) {
  if (style == TensorStyle::rowwise) return "RowwiseParallel(output_layouts=Shard(1), use_local_output=False)";
  std::vector<std::string> arguments;
  if (gathers) arguments.emplace_back("input_layouts=Shard(1)");
  if (makes_logits)
    arguments.emplace_back(loss_parallel ? "output_layouts=Shard(-1), use_local_output=False"
                                         : "output_layouts=Replicate()");
  return "ColwiseParallel(" + join(arguments, ", ") + ")";
}

Styles styles_of(const ShardingPlan& plan, const ModelGraph& model) {
  const auto chosen = styles_of_modules(plan.tensor_plan, model, "plan");
  const ModelGraph local = split_over_tensor(model, plan, "plan");
  std::set<std::int32_t> gathers, logits;  // tensors that the loss reads
  for (const Op& op : local.ops) {
    if (op.kind == OpKind::redistribute && op.shape.redistribution == Redistribution::gather) gathers.insert(op.module);
    if (op.kind == OpKind::cross_entropy) logits.insert(op.inputs[0]);
    if (op.kind == OpKind::redistribute && op.shape.redistribution == Redistribution::gather_columns)
      logits.insert(op.inputs[0]);
  }
  Styles styles;
  for (const std::int32_t m : gathers) styles[local.modules[at(m)].name] = "GatheredSequence()";
  for (const Op& op : local.ops) {
    const auto set = [&](const std::string& style) { styles[local.modules[at(op.module)].name] = style; };
    if (op.kind == OpKind::embedding)
      set("RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False)");
    if (op.kind == OpKind::rms_norm)  // of what a rank holds of each sequence, or of heads
      set(local.tensors[at(op.inputs[0])].sequence_parts > 1
              ? "SequenceParallel()"
              : "SequenceParallel(sequence_dim=2, use_local_output=True)");
    if (op.kind == OpKind::linear)
      set(linear_style(*chosen[at(op.module)], gathers.contains(op.module), logits.contains(op.outputs[0]),
                       plan.tensor_plan.loss_parallel));
  }
  return styles;
}

}  // namespace

std::string tensor_text(const ShardingPlan& plan, const ModelGraph& model) {
  const Styles styles = styles_of(plan, model);
  std::string rows;
  std::set<std::string> written;
  for (const Module& m : model.modules) {  // in the model's order
    const auto style = styles.find(m.name);
    if (style == styles.end()) continue;
    const std::string pattern = pattern_of(m.name);
    const bool alike = std::all_of(model.modules.begin(), model.modules.end(), [&](const Module& other) {
      if (!matches(pattern, other.name)) return true;
      const auto its = styles.find(other.name);
      return its != styles.end() && its->second == style->second;
    });
    const std::string& key = alike ? pattern : m.name;
    if (written.insert(key).second) rows += fmt::format("    {}: {},\n", quoted(key), style->second);
  }
  std::string text = kPytorchTensor;
  const std::string mark = "@STYLES@\n";
  return text.replace(text.find(mark), mark.size(), rows);
}

const char* const kPytorchTensor = R"python(
# ---- tensor parallelism: how layers are split, and what flows between them -------------------------------------------

class GatheredSequence(ParallelStyle):
    """In front of a module that reads whole sequences the ranks' parts are gathered, once for all of its layers. As
    PrepareModuleInput, but by position or by name, as the module is called."""

    def _apply(self, module, mesh):
        def whole(x):
            return x.redistribute(mesh, (Replicate(),)) if isinstance(x, DTensor) else x

        module.register_forward_pre_hook(
            lambda _, inputs, named: (tuple(map(whole, inputs)), {k: whole(x) for k, x in named.items()}),
            with_kwargs=True)
        return module


# What is between blocks is a DTensor of whole sequences, of which each rank holds a part: the model sees their length.
STYLES = {
@STYLES@
}


def split_over_tensor(model, mesh):
    """Splits the layers over the mesh's ranks "tensor". Returns the dimensions that are left for fully_shard."""
    parallelize_module(model, mesh["tensor"], STYLES, src_data_rank=None)
    return mesh[mesh.mesh_dim_names[:-1]]

)python";

}  // namespace fsdp
