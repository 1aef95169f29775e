#include "viz/report/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "models/graph/output_layer.h"
#include "models/index.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> words;
  for (const std::int64_t n : sizes) words.push_back(with_commas(n));
  return fmt::format("{}", fmt::join(words, " x "));
}

std::string tensor_text(const Tensor& t, const Workload& w) {
  if (t.kind == TensorKind::loss) return "1";
  const std::int64_t all = elements(t, w), width = std::max<std::int64_t>(1, t.width);
  return t.kind == TensorKind::ids || all % width != 0 ? with_commas(all) : sizes_text({all / width, width});
}

std::string op_text(const Op& op, const ModelGraph& model, const Workload& w) {
  std::vector<std::string> in, out;
  for (const std::int32_t t : op.inputs) in.push_back(tensor_text(model.tensors[at(t)], w));
  for (const std::int32_t p : op.params) in.push_back("weight " + sizes_text(model.parameters[at(p)].shape));
  for (const std::int32_t t : op.outputs) out.push_back(tensor_text(model.tensors[at(t)], w));
  std::string text = fmt::format("{} -> {}", fmt::join(in, ", "), fmt::join(out, ", "));
  if (op.shape.heads > 0 && op.shape.head_dim > 0)
    text += fmt::format("; {} heads of {}", op.shape.heads, op.shape.head_dim);
  if (op.shape.kv_heads > 0 && op.shape.kv_heads != op.shape.heads)
    text += fmt::format(", {} of keys and values", op.shape.kv_heads);
  return text;
}

// Elements of each rank in a collective over the ranks of a unit's shards.
std::string ranks_text(std::int64_t ranks, std::int64_t each, const Buffer& b) {
  return fmt::format("{} rank{} x {} of {}", ranks, ranks == 1 ? "" : "s", with_commas(each), name(b.dtype));
}

}  // namespace

std::string shape_text(const Operation& op, const StepPicture& p) {
  const Step& step = p.program.steady_step;
  const auto largest = [&]() -> const Buffer* {
    const Buffer* found = nullptr;
    for (const Arg& a : step.args_of(op))
      if (a.buffer >= 0 && (found == nullptr || p.program.buffers[at(a.buffer)].bytes > found->bytes))
        found = &p.program.buffers[at(a.buffer)];
    return found;
  };
  if (op.graph_op >= 0 && is_kernel(op.action)) {
    const Op& of = p.model.ops[at(op.graph_op)];
    const auto mb = static_cast<std::size_t>(std::max<std::int16_t>(0, op.micro_batch));
    const Workload all{p.plan.micro_batches.at(std::min(mb, p.plan.micro_batches.size() - 1)), p.plan.seq_len,
                       size_of(p.plan.param_dtype), p.plan.loss_chunks};
    const std::int64_t parts = op.products == Products::rows ? p.plan.tensor() : p.plan.loss_chunks;
    return op_text(of, p.model, op.part >= 0 ? part_of(all, parts) : all);
  }
  const Buffer* b = largest();
  if (b == nullptr) return "";
  const std::int64_t count = b->bytes / size_of(b->dtype);
  if (op.unit < 0 || op.graph_op >= 0)
    return is_collective(op.action) ? fmt::format("{} of {}", with_commas(count), name(b->dtype)) : "";
  const UnitLayout& unit = p.program.layouts[at(op.unit)];
  if (op.action == Action::all_gather || op.action == Action::reduce_scatter) {
    const std::int64_t ranks = std::max<std::int64_t>(1, unit.shards);
    return count % ranks == 0 ? ranks_text(ranks, count / ranks, *b)
                              : fmt::format("{} of {}", with_commas(count), name(b->dtype));
  }
  if (is_collective(op.action)) return fmt::format("{} of {}", with_commas(count), name(b->dtype));
  const std::size_t tensors = unit.params.size();
  return fmt::format("{} parameters in {} tensor{}, {} of a rank", with_commas(unit.numel), tensors,
                     tensors == 1 ? "" : "s", with_commas(unit.shard_elements));
}

}  // namespace fsdp
