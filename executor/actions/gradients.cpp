// Gradients, from the kernels that make them to what is reduced of them.
#include <fmt/format.h>

#include <optional>

#include "executor/actions/actions.h"
#include "models/input/error.h"

namespace fsdp::actions {
namespace {

// Of a unit: one parameter's, where the host adds what has arrived, or all that is reduced.
std::int64_t elements_of_unit(const KernelCall& c) {
  if (c.op.host_only) return sharded_param(c, 0).local_elements(shard_rank(c));
  return layout_of(c).reduce_elements;
}

// In the dtype of its unit.
DType dtype_of_parameter(const KernelCall& c, std::int32_t param) {
  for (const UnitLayout& layout : c.program.layouts)
    for (const ShardedParam& p : layout.params)
      if (p.param == param) return layout.param_dtype;
  return c.plan.param_dtype;
}

}  // namespace

// Elements and type of what a buffer holds: reduced gradients, a tensor's gradient, a parameter's.
KernelBody add_gradient(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const Buffer& buffer = buffer_of(c, 1);
  DType type = c.plan.param_dtype;
  std::int64_t elements_to_add = 0;
  if (c.op.unit >= 0 && layout_of(c).flat_elements > 0) return add_flat_gradient(c, kernels);
  if (c.op.unit >= 0) {
    type = c.op.host_only ? c.plan.master_dtype : layout_of(c).reduce_dtype;
    elements_to_add = elements_of_unit(c);
  } else if (buffer.tensor >= 0) {
    const Tensor& tensor = c.model.tensors.at(at(buffer.tensor));
    elements_to_add = elements(tensor, workload_of(c));
    type = tensor.dtype.value_or(type);
  } else {
    const std::int32_t param = buffer.param >= 0 ? buffer.param : buffer_of(c, 0).param;
    elements_to_add = c.model.gradient_numel(param);
    if (c.plan.several_dtypes()) type = dtype_of_parameter(c, param);
  }
  for (const BufferView v : c.views) expect_elements(v, elements_to_add, type, "add_gradient");
  return [&kernels, type, from = c.views[0], into = c.views[1], elements_to_add] {
    kernels.convert(type, from, type, into, elements_to_add, true);
  };
}

KernelBody accumulate_gradient(const KernelCall& c, const KernelSet& kernels) {
  const UnitLayout& layout = layout_of(c);
  expect_args(c, 2 * layout.params.size());
  struct Pair {
    BufferView from, into;
    std::int64_t n;
    bool add;
  };
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const BufferView from = c.views[2 * i], into = c.views[2 * i + 1];
    if (from.data == nullptr) continue;
    const std::int64_t n = c.model.gradient_numel(layout.params[i].param);
    expect_elements(from, n, layout.param_dtype, "gradient");
    expect_elements(into, n, layout.reduce_dtype, "gradient accumulator");
    pairs.push_back({from, into, n, c.args[2 * i + 1].access == Access::accumulate});
  }
  return [&kernels, from = layout.param_dtype, to = layout.reduce_dtype, pairs = std::move(pairs)] {
    for (const Pair& p : pairs) kernels.convert(from, p.from, to, p.into, p.n, p.add);
  };
}

DType type_of(const KernelCall& c, std::size_t gradient) {
  const UnitLayout& layout = layout_of(c);
  return buffer_of(c, gradient).kind == BufferKind::gradient_accumulator ? layout.reduce_dtype : layout.param_dtype;
}

// Gradients beside accumulators, one parameter after the other: its layout, as if it were alone in the input from its
// place on.
KernelBody copy_in_one_by_one(const KernelCall& c, const KernelSet& kernels) {
  struct One {
    UnitLayout layout;
    BufferView gradient, input;
    DType type;
  };
  const UnitLayout& layout = layout_of(c);
  std::vector<One> ones;
  BufferView input = c.views[layout.params.size()];
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    if (!layout.params[i].trainable) continue;
    UnitLayout alone;
    alone.params = {layout.params[i]};
    alone.shards = layout.shards, alone.reduce_elements = layout.reduce_elements;
    ones.push_back({std::move(alone), c.views[i], input, c.args[i].buffer < 0 ? layout.param_dtype : type_of(c, i)});
    input.data += layout.params[i].padded_shard() * size_of(layout.reduce_dtype);
  }
  return [&kernels, to = layout.reduce_dtype, ones = std::move(ones)] {
    for (const One& one : ones) kernels.scatter_copy_in(one.layout, one.type, {&one.gradient, 1}, to, one.input);
  };
}

// All of a unit's gradients, or all of its accumulators: they differ in type. PyTorch narrows from a copy
// (before 2.15), here every element is narrowed as it is copied: the same values.
KernelBody copy_in_gradients(const KernelCall& c, const KernelSet& kernels) {
  if (layout_of(c).flat_elements > 0) return concatenate_gradients(c, kernels);
  const std::size_t n = layout_of(c).params.size();
  const bool has_copy = c.args.size() == n + 2 && buffer_of(c, n + 1).kind == BufferKind::scratch;
  expect_args(c, n + (has_copy ? 2 : 1));
  std::optional<BufferKind> kind;
  for (const Arg& a : c.args.first(n)) {
    if (a.buffer < 0) continue;
    const BufferKind k = c.program.buffers.at(at(a.buffer)).kind;
    if (kind && *kind != k && c.plan.tensor() > 1 && !has_copy) return copy_in_one_by_one(c, kernels);
    if (kind && *kind != k) throw MachineError("scatter_copy_in: gradients and accumulators are mixed");
    kind = k;
  }
  const DType from = kind == BufferKind::gradient_accumulator ? layout_of(c).reduce_dtype : layout_of(c).param_dtype;
  return [&kernels, &layout = layout_of(c), n, from, to = layout_of(c).reduce_dtype, views = c.views] {
    kernels.scatter_copy_in(layout, from, std::span(views).first(n), to, views[n]);
  };
}

KernelBody divide_gradient(const KernelCall& c, const KernelSet& kernels) {
  const UnitLayout& layout = layout_of(c);
  const DType type = layout.reduce_dtype;
  const bool before = layout.flat_elements > 0 ? !c.reduced : buffer_of(c, 0).kind == BufferKind::reduce_input;
  const std::int64_t n = layout.reduce_elements * (before ? layout.shards : 1);
  for (const BufferView v : c.views) expect_elements(v, n, type, "divide_gradient");
  if (c.views.size() == 1)
    return [&kernels, type, n, v = c.views[0], by = before ? layout.scale.divide_before : layout.scale.divide_after] {
      kernels.scale(type, v, n, 1 / by);
    };
  expect_args(c, 2);
  return [&kernels, type, n, views = c.views, by = layout.scale.divide_copy] {
    kernels.convert(type, views[0], type, views[1], n, false);
    kernels.scale(type, views[1], n, 1 / by);
  };
}

KernelBody finish_gradient(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  const std::int64_t n = layout_of(c).reduce_elements;
  expect_elements(c.views[0], n, layout_of(c).reduce_dtype, "reduce output");
  expect_elements(c.views[1], n, c.plan.master_dtype, "sharded gradient");
  return [&kernels, from = layout_of(c).reduce_dtype, to = c.plan.master_dtype, views = c.views, n,
          add = c.args[1].access == Access::accumulate] { kernels.convert(from, views[0], to, views[1], n, add); };
}

// One parameter, without its padding.
KernelBody gradient_to_host(const KernelCall& c, const KernelSet& kernels) {
  expect_args(c, 2);
  if (c.views[0].bytes != c.views[1].bytes) throw MachineError("gradient_to_host: source and target differ in size");
  return [&kernels, views = c.views] { kernels.copy(views[1].data, views[0].data, views[0].bytes); };
}

}  // namespace fsdp::actions
