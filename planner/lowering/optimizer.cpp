#include "planner/lowering/optimizer.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "models/input/error.h"
#include "planner/layout/optimizer_state.h"

namespace fsdp {

OptimizerLowering::OptimizerLowering(const LoweringContext& context) : c_(context) {
  const OptimizerFacts& facts = facts_of(c_.plan.optimizer.kind);
  if (!facts.executed && c_.implementation.memory == MemorySource::arena)
    throw InputError(
        {"plan", "optimizer.kind"},
        fmt::format("{} is {}, which {} has no kernel for", facts.name, facts.python, c_.implementation.name),
        "predict it for an implementation of PyTorch's, such as torchtitan, or use adamw");
  if (facts.eight_bit_block > 0 && c_.implementation.optimizer_form == OptimizerForm::loop)
    throw InputError({"plan", "optimizer.kind"},
                     fmt::format("what a step of {} ({}) takes is known on GPUs, not under {}", facts.name,
                                 facts.python, c_.implementation.name),
                     "predict it for another implementation, such as torchtitan, or use adamw");
}

std::int64_t OptimizerLowering::Part::all_elements() const {
  return std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
}

// PyTorch's default on CPUs, where offloaded shards are.
OptimizerForm OptimizerLowering::form() const {
  const OptimizerForm usual = c_.implementation.optimizer_form;
  return c_.plan.offload && usual == OptimizerForm::foreach ? OptimizerForm::loop : usual;
}

std::vector<OptimizerLowering::Part> OptimizerLowering::units(const DialectHooks& dialect) const {
  std::vector<Part> parts;
  for (std::size_t u = 0; u < c_.program.layouts.size(); ++u) {
    const auto unit = static_cast<std::int32_t>(u);
    if (dialect.sharded_gradient(unit) < 0) continue;
    Part part{unit, kNone, dialect.sharded_gradient(unit), dialect.parameter_shard(unit), {}};
    const UnitLayout& layout = c_.program.layouts[u];
    part.elements = optimizer_elements(layout, layout.shard_index(c_.plan, c_.program.rank));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<OptimizerLowering::Part> OptimizerLowering::ignored(const IgnoredParameters& parameters) const {
  std::vector<Part> parts;
  for (const IgnoredParameters::Live& live : parameters.live())
    parts.push_back({kNone,
                     live.param,
                     live.gradient,
                     live.value,
                     {c_.model.parameters[static_cast<std::size_t>(live.param)].numel()}});
  return parts;
}

Buffer OptimizerLowering::buffer(const Part& part, BufferKind kind, std::int64_t bytes) const {
  Buffer info;
  info.bytes = bytes;
  info.kind = kind;
  info.host = c_.plan.offload && part.unit >= 0;
  info.dtype = c_.plan.kept_dtype(/*trained=*/true);
  info.unit = part.unit;
  info.param = part.param;
  return info;
}

Operation OptimizerLowering::operation_on(const Part& part, Action action) const {
  Operation o = operation(action, Stream::compute, part.unit);
  o.host_only = c_.plan.offload && part.unit >= 0;
  return o;
}

OptimizerLowering::States& OptimizerLowering::states_of(const Part& part) {
  States none;
  none.fill(kNone);
  return states_.try_emplace({part.unit, part.param}, none).first->second;
}

void OptimizerLowering::init(StepBuilder& b, const Part& part) {
  const std::int64_t count = state_count(c_.plan.optimizer);
  if (count == 0) return;
  States& states = states_of(part);
  std::array<Arg, kMostOptimizerStates> args;
  for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
    std::int64_t bytes = 0;
    for (const std::int64_t elements : part.elements)
      bytes += state_bytes(c_.plan.optimizer.kind, elements, c_.plan.kept_dtype(/*trained=*/true));
    states[k] = b.allocate_new(buffer(part, BufferKind::optimizer_state, bytes));
    args[k] = {states[k], Access::write};
  }
  b.issue(operation_on(part, Action::init_optimizer), args);
}

const Buffer& OptimizerLowering::info_of(std::int32_t buffer) const {
  return c_.program.buffers.at(static_cast<std::size_t>(buffer));
}

void OptimizerLowering::fetch_states(StepBuilder& b, const Part& part) {
  States& states = states_of(part);
  for (std::size_t k = 0; k < states.size(); ++k) {
    const std::int32_t waiting = on_host_.at({part.unit, part.param})[k];
    if (waiting < 0) continue;
    states[k] = b.allocate_new(buffer(part, BufferKind::optimizer_state, info_of(waiting).bytes));
    b.issue(operation_on(part, Action::fetch_state), {{Arg{waiting}, Arg{states[k], Access::write}}});
  }
}

void OptimizerLowering::offload_states(StepBuilder& b, const Part& part) {
  States none;
  none.fill(kNone);
  States& waiting = on_host_.try_emplace({part.unit, part.param}, none).first->second;
  for (std::size_t k = 0; k < waiting.size(); ++k) {
    const std::int32_t state = states_of(part)[k];
    if (state < 0) continue;
    if (waiting[k] < 0) {
      Buffer info = info_of(state);
      info.host = true;
      waiting[k] = b.allocate_new(info);
    }
    b.issue(operation_on(part, Action::offload_state), {{Arg{state}, Arg{waiting[k], Access::write}}});
    b.release(state);
  }
}

void OptimizerLowering::update(StepBuilder& b, const Part& part, std::int32_t temporary) {
  std::vector<Arg> args = {{part.gradient}, {part.value, Access::accumulate}};
  for (const std::int32_t state : states_of(part)) args.push_back({state, Access::accumulate});
  if (temporary >= 0) args.push_back({temporary, Access::write});
  b.issue(operation_on(part, Action::optimizer), args);
}

// Weight decay of SGD makes gradients of its own (docs/fsdp-order.md A1.14): of all parameters at once until the
// step ends, or of one parameter after the other.
void OptimizerLowering::allocate_decayed(StepBuilder& b, const std::vector<Part>& parts,
                                         std::vector<std::int32_t>& temporaries) const {
  const std::int64_t width = size_of(c_.plan.kept_dtype(/*trained=*/true));
  for (const Part& part : parts) {
    if (form() == OptimizerForm::foreach) {
      temporaries.push_back(b.allocate_new(buffer(part, BufferKind::scratch, part.all_elements() * width)));
      continue;
    }
    for (const std::int64_t elements : part.elements) {
      if (elements == 0) continue;
      const std::int32_t temporary = b.declare(buffer(part, BufferKind::scratch, elements * width));
      b.allocate_inside(temporary);
      b.release_inside(temporary);
    }
  }
}

// torchao's optimizers step parameter by parameter.
void OptimizerLowering::allocate_scales(StepBuilder& b, const Part& part) const {
  for (const std::int64_t elements : part.elements) {
    std::vector<std::int32_t> scales;
    for (const std::int64_t bytes : step_tensors(c_.plan.optimizer.kind, elements))
      scales.push_back(b.declare(buffer(part, BufferKind::scratch, bytes)));
    for (const std::int32_t scale : scales) b.allocate_inside(scale);
    for (const std::int32_t scale : scales) b.release_inside(scale);
  }
}

std::int32_t OptimizerLowering::adamw_temporary(StepBuilder& b, const Part& part) const {
  const std::int64_t each = c_.implementation.optimizer_temp_bytes_per_element;
  if (each == 0 || part.unit < 0) return kNone;
  const std::int64_t fp32 = each * part.all_elements();
  return b.allocate_new(
      buffer(part, BufferKind::scratch, fp32 / size_of(DType::f32) * size_of(c_.plan.kept_dtype(/*trained=*/true))));
}

void OptimizerLowering::lower(StepBuilder& b, const DialectHooks& dialect, const IgnoredParameters& parameters,
                              bool first) {
  const bool adamw = c_.plan.optimizer.kind == OptimizerKind::adamw;
  const bool decays = c_.plan.optimizer.kind == OptimizerKind::sgd && form() != OptimizerForm::fused &&
                      c_.plan.optimizer.weight_decay != 0;
  const bool at_once = adamw ? c_.implementation.optimizer_temps_at_once : form() == OptimizerForm::foreach;
  const std::vector<Part> sharded = units(dialect), whole = ignored(parameters);
  const auto each = [&](auto&& move) {
    if (!c_.plan.offload_optimizer) return;
    for (const std::vector<Part>* parts : {&sharded, &whole})
      for (const Part& part : *parts) move(part);
  };
  if (!first) each([&](const Part& part) { fetch_states(b, part); });
  std::vector<std::int32_t> temporaries;
  if (decays && at_once) allocate_decayed(b, sharded, temporaries);
  if (first)
    for (const Part& part : sharded) init(b, part);
  for (const Part& part : sharded) {
    if (decays && !at_once) allocate_decayed(b, {part}, temporaries);
    allocate_scales(b, part);
    const std::int32_t temporary = adamw ? adamw_temporary(b, part) : kNone;
    update(b, part, temporary);
    if (temporary >= 0 && at_once) temporaries.push_back(temporary);
    else if (temporary >= 0) b.release(temporary);
  }
  for (const std::int32_t temporary : std::exchange(temporaries, {})) b.release(temporary);
  if (decays && at_once) allocate_decayed(b, whole, temporaries);  // a group of parameters of its own
  for (const Part& part : whole) {
    if (first) init(b, part);
    if (decays && !at_once) allocate_decayed(b, {part}, temporaries);
    allocate_scales(b, part);
    update(b, part, kNone);
  }
  for (const std::int32_t temporary : temporaries) b.release(temporary);
  each([&](const Part& part) { offload_states(b, part); });
  if (c_.plan.offload_optimizer) b.host_wait({{b.last(Stream::compute)}}, 0);
}

}  // namespace fsdp
