// Walks the tape of every micro-batch and calls the dialect's hooks around it; adds what a step has besides: the batch,
// clipping, the optimizer, the loss.
#include "planner/lower.h"
#include "models/index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/graph/output_layer.h"
#include "models/input/error.h"
#include "planner/lowering/dialect.h"
#include "planner/lowering/ignored.h"
#include "planner/lowering/optimizer.h"
#include "planner/lowering/step/clipping.h"
#include "planner/lowering/step/unit_hooks.h"
#include "planner/lowering/tape/tape.h"
#include "planner/lowering/tape_issuer.h"
#include "planner/tensor/adapter_casts.h"
#include "planner/tensor/local_model.h"

namespace fsdp {
namespace {

Operation simple(Action action, Communicator comm = Communicator::none) {
  Operation o = operation(action);
  o.comm = comm;
  return o;
}

std::unique_ptr<DialectHooks> make_dialect(const LoweringContext& c) {
  switch (c.plan.dialect) {
    case Dialect::fsdp2: break;
    case Dialect::fsdp1: return make_fsdp1(c);
    case Dialect::ddp: return make_ddp(c);
  }
  return make_fsdp2(c);
}

// A unit of the whole model ends behind the loss, where the model computes that. Elsewhere than here a root is the only
// such unit: it stays whole, and is left to end before the loss.
void end_with_loss(std::vector<UnitLayout>& layouts, const PlanIds& ids, const ModelGraph& model) {
  for (std::size_t u = 0; u < layouts.size(); ++u)
    if (ids.units[u] == std::vector<std::int32_t>{0})
      layouts[u].op_end = layouts[u].uses.back().op_end = static_cast<std::int32_t>(model.ops.size());
}

// Of a plan whose checkpoints are reentrant, or a model whose are (trl prepares one so). fsdp1's hook that frees a
// frozen unit lies on the leaves that its module is called with, and holds them (docs/fsdp-order.md, A2.15).
Reentrant reentrant_checkpoints(const ShardingPlan& plan, const ModelGraph& model, const PlanIds& ids,
                                const std::vector<UnitLayout>& layouts) {
  Reentrant out{plan.reentrant || model.prepared};  // trl's of a prepared model
  std::vector<std::int32_t> producer(model.tensors.size(), kNone);
  for (std::size_t i = 0; i < model.ops.size(); ++i)
    for (const std::int32_t t : model.ops[i].outputs) producer[at(t)] = static_cast<std::int32_t>(i);
  for (const std::int32_t id : plan.reentrant ? ids.checkpointed : std::vector<std::int32_t>{}) {
    const Module& again = model.modules[at(id)];
    const bool held = std::any_of(layouts.begin(), layouts.end(), [&](const UnitLayout& u) {
      if (u.params.empty() || u.trained()) return false;
      return std::any_of(u.uses.begin(), u.uses.end(), [&](const UnitUse& use) {
        const auto& inputs = model.ops[at(use.op_begin)].inputs;
        return use.inputs_require_grad && use.op_begin >= again.op_begin && use.op_end <= again.op_end &&
               std::any_of(inputs.begin(), inputs.end(),
                           [&](std::int32_t t) { return producer[at(t)] < again.op_begin; });
      });
    });
    if (held) out.leaves_held.push_back(id);
  }
  return out;
}

constexpr int kSettlingSteps = 64;  // until what is left for the next step repeats

class Lowering {
 public:
  Lowering(const ModelGraph& model, const ShardingPlan& plan, const PlanIds& ids, const Implementation& impl,
           Program& program)
      : cast_(with_cast_inputs(model, plan, ids)),
        model_(cast_ ? *cast_ : model),
        plan_(plan),
        ids_(ids),
        impl_(impl),
        program_(program),
        ignored_({model, plan, ids, impl, program}),
        optimizer_({model, plan, ids, impl, program}),
        hooks_(unit_hooks(model, ids, program.layouts, plan.reentrant)),
        issuer_({model, plan, ids, impl, program}, model_, ignored_) {
    if (impl.async_tensor) check_units_of_parts();
    const LoweringContext context{model, plan, ids, impl, program};
    dialect_ = make_dialect(context);
    for (std::int64_t sequences : plan.micro_batches) {
      if (tapes_.contains(sequences)) continue;
      const Workload work{sequences, plan.seq_len, size_of(plan.param_dtype), plan.loss_chunks,
                          plan.loop.loss_in_model};
      tapes_.emplace(sequences,
                     make_tape(model_, impl, work, plan.param_dtype, ids.checkpointed, plan.checkpoint_policy,
                               plan.loop.chunk_head ? plan.loss_chunks : 1, ids.offload_activations,
                               reentrant_checkpoints(plan, model, ids, program.layouts)));
    }
    if (!plan.loop.chunk_head) return;
    const std::int32_t head = chunked_head(model);
    unit_of_head_ = unit_of_parameters(program.layouts, model)[at(model.ops[at(head)].params[0])];
    end_before(hooks_, head, unit_of_head_);
  }

  void lower() {
    {
      StepBuilder b(program_, program_.init);
      dialect_->init(b);
      ignored_.init(b);
      hold_scales(b);
    }
    (void)lower_step(program_.first_step, /*first=*/true);
    const std::size_t buffers = program_.buffers.size();
    for (int tries = 0; !lower_step(program_.steady_step, /*first=*/false); ++tries) {
      if (tries == kSettlingSteps) throw InternalError("broken lowering: steps never repeat");
      program_.steady_step = {};
      program_.buffers.resize(buffers);
    }
  }

 private:
  // Products in parts run in the turn of the gather before them: the weights of all of them are there by then.
  void check_units_of_parts() const {
    for (std::size_t i = 0; i < model_.ops.size(); ++i) {
      const Op& gather = model_.ops[i];
      if (gather.shape.redistribution != Redistribution::gather) continue;
      for (std::size_t k = i + 1; k < model_.ops.size() && model_.ops[k].kind == OpKind::linear; ++k)
        if (model_.ops[k].inputs[0] == gather.outputs[0] && !hooks_.begins[k].empty())
          throw InputError({"plan", "units"},
                           "asynchronous tensor parallelism multiplies by the weights of '" +
                               model_.modules[at(model_.ops[k].module)].name + "' before that begins, which is a unit",
                           "use units of whole blocks (--wrap block), or leave --async-tensor out");
    }
  }

  bool lower_step(Step& step, bool first) {
    reserve(step);
    StepBuilder b(program_, step);
    dialect_->begin_step(b);
    ignored_.begin_step(b);
    loss_ = b.declare(scalar_buffer());
    issuer_.begin_step(*dialect_, loss_);
    const auto count = static_cast<std::size_t>(plan_.loop.forwards);
    for (std::size_t m = 0; m < plan_.micro_batches.size(); m += count)
      forwards_and_backward(b, static_cast<std::int16_t>(m), count);
    if (plan_.clip_norm)
      clip_gradients(b, plan_, gradients_of(*dialect_, program_, ignored_, /*own_mesh=*/false),
                     gradients_of(*dialect_, program_, ignored_, /*own_mesh=*/true), micro_batch_);
    optimizer_.lower(b, *dialect_, ignored_, first);
    dialect_->after_optimizer(b);
    Operation reduce = simple(Action::reduce_loss, Communicator::world);
    b.issue(reduce, {{Arg{loss_, Access::accumulate}}});
    if (impl_.loss_read_every_step) b.issue(simple(Action::read_loss), {{Arg{loss_}}});
    b.release(loss_);
    return dialect_->end_step(b);
  }

  void reserve(Step& step) const {
    std::size_t ops = 0, args = 0, values = 0;
    for (std::int64_t sequences : plan_.micro_batches) {
      const Tape& t = tapes_.at(sequences);
      ops += t.ops.size() + 12 * program_.layouts.size();
      args += t.args.size() + 6 * model_.parameters.size();
      values += t.values.size() + 4 * model_.parameters.size();
    }
    step.ops.reserve(ops);
    step.args.reserve(args);
    step.waits.reserve(16 * program_.layouts.size() * plan_.micro_batches.size());
    step.allocs.reserve(values);
    step.frees.reserve(values);
    program_.buffers.reserve(program_.buffers.size() + values);
  }

  // Micro-batches from `first` on whose gradients one backward makes.
  void forwards_and_backward(StepBuilder& b, std::int16_t first, std::size_t count) {
    dialect_->begin_micro_batch(b, first);
    for (std::size_t f = 0; f < count; ++f) {
      micro_batch_ = static_cast<std::int16_t>(first + static_cast<std::int16_t>(f));
      tape_ = &tapes_.at(plan_.micro_batches[static_cast<std::size_t>(micro_batch_)]);
      issuer_.begin_forward(*tape_, micro_batch_, f, count);
      if (count > 1) dialect_->go_to(micro_batch_);
      forward(b);
    }
    run_parts(b);
    dialect_->begin_backward(b);
    for (std::size_t f = count; f-- > 0;) {  // autograd runs what was made last first
      micro_batch_ = static_cast<std::int16_t>(first + static_cast<std::int16_t>(f));
      tape_ = &tapes_.at(plan_.micro_batches[static_cast<std::size_t>(micro_batch_)]);
      issuer_.go_to(f);
      if (count > 1) dialect_->go_to(micro_batch_);
      backward(b);
    }
    dialect_->end_backward(b);
    issuer_.end_backward(b);
    for (std::size_t f = 0; f < count; ++f) {
      issuer_.go_to(f);
      issuer_.update_metrics(b);
    }
  }

  // Ops that run once, in forward and in backward: all, or those before a split output layer.
  [[nodiscard]] std::int32_t whole_ops() const {
    return tape_->head >= 0 ? tape_->head : static_cast<std::int32_t>(model_.ops.size());
  }

  void forward(StepBuilder& b) {
    if (micro_batch_ == 0) b.allocate(loss_);
    issuer_.emit(b, tape_->ops[0]);
    std::uint32_t next = 1;  // tape op
    for (std::int32_t i = 0; i < whole_ops(); ++i) {
      for (const UnitHooks::Begin& begin : hooks_.begins[at(i)]) dialect_->before_forward(b, begin.unit);
      const bool emits = next <= tape_->forward_of[at(i)];
      for (; next <= tape_->forward_of[at(i)]; ++next) issuer_.emit(b, tape_->ops[next]);
      const TapeOp& op = tape_->ops[next - 1];
      for (auto end = hooks_.ends[at(i)].rbegin(); end != hooks_.ends[at(i)].rend(); ++end) {
        issuer_.release_late(b, op, end->op_begin);
        dialect_->after_forward(b, end->unit);
      }
      issuer_.release_late(b, op, -1);
      if (emits) issuer_.allocate_late(b, op);
    }
  }

  // The output layer and the loss, a part of the tokens at a time: each a forward and a backward by itself.
  void run_parts(StepBuilder& b) {
    if (tape_->head < 0) return;
    const std::int32_t unit = unit_of_head_;
    const bool alone = ids_.units[at(unit)].size() == 1;
    for (std::size_t p = 0; p < tape_->parts.size(); ++p) {
      const auto emit_at = [&](std::size_t k) {
        for (std::uint32_t o = tape_->parts[p][k]; o < tape_->parts[p][k + 1]; ++o) issuer_.emit(b, tape_->ops[o]);
      };
      dialect_->begin_part(b, unit, p + 1 == tape_->parts.size());
      dialect_->before_forward(b, unit);
      emit_at(0);
      if (alone) dialect_->after_forward(b, unit);
      emit_at(1), emit_at(2);
      if (alone) dialect_->before_backward(b, unit);
      emit_at(3);
      dialect_->after_backward(b, unit);
      if (alone) dialect_->end_backward(b);
    }
    dialect_->end_parts();
  }

  void backward(StepBuilder& b) {
    for (std::int32_t i = whole_ops() - 1; i >= 0; --i) {
      // Units that end here share the output, whose hooks run as they were registered: after forward, inner before
      // outer.
      const std::int32_t r = tape_->recomputed_at[at(i)];
      // Those inside of a module whose checkpoint is reentrant hook what it makes again.
      const std::int32_t inside = r >= 0 && tape_->regions[at(r)].reentrant ? tape_->regions[at(r)].begin : i + 1;
      const auto outputs = [&](bool again) {
        for (auto end = hooks_.ends[at(i)].rbegin(); end != hooks_.ends[at(i)].rend(); ++end)
          if ((end->op_begin >= inside) == again) dialect_->before_backward(b, end->unit);
      };
      outputs(/*again=*/false);
      dialect_->outputs_ready(b);
      std::uint32_t o = tape_->backward_begin[at(i)];
      if (r >= 0) o = recompute(b, tape_->regions[at(r)], o);
      outputs(/*again=*/true);
      const auto emit_to = [&](std::uint32_t end) {
        for (; o < end; ++o) issuer_.emit(b, tape_->ops[o]);
      };
      for (const std::int32_t u : hooks_.returns[at(i)]) dialect_->before_backward(b, u);
      emit_to(sums_of(i, o));
      for (auto begin = hooks_.begins[at(i)].rbegin(); begin != hooks_.begins[at(i)].rend(); ++begin) {
        if (sums_inside(i, *begin)) emit_to(tape_->backward_end[at(i)]);
        if (begin->inputs_require_grad) dialect_->after_backward(b, begin->unit);
      }
      for (std::uint32_t k = tape_->backward_begin[at(i)]; k < o; ++k) issuer_.release_late(b, tape_->ops[k], -1);
      emit_to(tape_->backward_end[at(i)]);
      const Region* again = reentrant_from(i);
      if (again != nullptr) dialect_->outputs_ready(b);
      dialect_->backward_passed(b, i);
      if (again != nullptr) issuer_.end_region(b, *again);
    }
  }

  // The reentrant checkpoint whose first op this is: a backward of autograd's own ends with it.
  const Region* reentrant_from(std::int32_t i) const {
    const std::int32_t r = tape_->region_of[at(i)];
    return r >= 0 && tape_->regions[at(r)].reentrant && tape_->regions[at(r)].begin == i ? &tape_->regions[at(r)]
                                                                                         : nullptr;
  }

  // Where, from `o` on, the backward of op i adds the gradient of its only input to those of the tensor's other
  // readers. If a unit begins with the op, autograd does that after its post-backward hook, unless the others are in
  // the unit.
  std::uint32_t sums_of(std::int32_t i, std::uint32_t o) const {
    std::uint32_t end = tape_->backward_end[at(i)];
    const auto& inputs = model_.ops[at(i)].inputs;
    const auto ids = [&](std::int32_t t) { return model_.tensors[at(t)].kind == TensorKind::ids; };
    const bool only = !inputs.empty() && std::all_of(inputs.begin() + 1, inputs.end(), ids);
    if (plan_.dialect != Dialect::fsdp2 || hooks_.begins[at(i)].empty() || !only) return end;
    while (end > o && tape_->ops[end - 1].action == Action::add_gradient) --end;
    return end;
  }

  bool sums_inside(std::int32_t i, const UnitHooks::Begin& unit) const {
    for (std::int32_t k = i + 1; k < unit.op_end; ++k)
      for (const std::int32_t in : model_.ops[at(k)].inputs)
        if (in == model_.ops[at(i)].inputs[0]) return true;
    return false;
  }

  // Runs a checkpointed module again, with the hooks of the units inside. `o`: its first tape op; returns the one
  // behind its last.
  std::uint32_t recompute(StepBuilder& b, const Region& r, std::uint32_t o) {
    const std::int32_t end = r.stops_early ? r.needed_by + 1 : r.end;
    if (o - 1 > tape_->forward_of.back()) issuer_.allocate_late(b, tape_->ops[o - 1]);
    for (; tape_->ops[o].action == Action::fetch_activation; ++o) issuer_.emit(b, tape_->ops[o]);
    for (std::int32_t i = r.begin; i < end; ++i) {
      for (const std::int32_t u : hooks_.again_begins[at(i)]) dialect_->before_recompute(b, u);
      bool emitted = false;
      for (; o < tape_->ops.size() && tape_->ops[o].recomputed && tape_->ops[o].turn == i; ++o) {
        issuer_.emit(b, tape_->ops[o]);
        emitted = true;
      }
      if (r.completes(i)) {
        for (auto u = hooks_.again_ends[at(i)].rbegin(); u != hooks_.again_ends[at(i)].rend(); ++u) {
          if (emitted) issuer_.release_late(b, tape_->ops[o - 1], u->op_begin);
          dialect_->after_recompute(b, u->unit);
        }
        if (emitted) issuer_.release_late(b, tape_->ops[o - 1], -1);
      }
      if (emitted) issuer_.allocate_late(b, tape_->ops[o - 1]);
      if (!r.completes(i)) break;
    }
    return o;
  }

  // Of weights in 4 bits: whole on every rank, for good.
  void hold_scales(StepBuilder& b) {
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      const std::int64_t bytes = model_.parameters[p].scale_bytes;
      if (bytes == 0) continue;
      const Buffer scales{.bytes = bytes,
                          .kind = BufferKind::parameter_shard,
                          .dtype = DType::f8,
                          .param = static_cast<std::int32_t>(p)};
      b.issue(operation(Action::init_parameters), {{Arg{b.allocate_new(scales), Access::write}}});
    }
  }

  const std::optional<ModelGraph> cast_;
  const ModelGraph& model_;
  const ShardingPlan& plan_;
  const PlanIds& ids_;
  const Implementation& impl_;
  Program& program_;
  IgnoredParameters ignored_;
  OptimizerLowering optimizer_;
  std::unique_ptr<DialectHooks> dialect_;
  std::map<std::int64_t, Tape> tapes_;  // by sequences of a micro-batch
  UnitHooks hooks_;
  TapeIssuer issuer_;
  std::int32_t unit_of_head_ = kNone;  // of an output layer that runs a part at a time
  const Tape* tape_ = nullptr;
  std::int32_t loss_ = -1;
  std::int16_t micro_batch_ = 0;
};

}  // namespace

Program lower(const ModelGraph& model, const ShardingPlan& plan, const PlanIds& ids, const Implementation& impl,
              std::int64_t rank) {
  Program program;
  program.model_digest = plan.model_digest;
  program.plan_digest = plan.digest();
  program.implementation = implementation_text(impl);
  program.dialect = plan.dialect;
  program.rank = rank;
  if (model.tensor_ranks != plan.tensor() || model.float8 != plan.float8.recipe ||
      model.unit_dtypes != plan.several_dtypes() || differs_in_form(model, impl) ||
      (impl.peft_casts && !model.adapter_casts && casts_for_adapters(model, plan)) ||
      (model.prepared && !model.adapter_casts))
    throw InternalError("lowering: the model is not that of the plan's ranks");
  program.layouts = unit_layouts(plan, ids, model);
  if (gives_outputs(impl) || plan.loop.loss_in_model || (impl.loss_in_model && plan.trained_outermost))
    end_with_loss(program.layouts, ids, model);
  if (impl.autocast)
    for (UnitLayout& layout : program.layouts) layout.param_dtype = plan.master_dtype;
  Lowering(model, plan, ids, impl, program).lower();
  return program;
}

Program lower(const ModelGraph& model, const ShardingPlan& plan, const Implementation& impl, std::int64_t rank) {
  return lower(model, plan, resolve_ids(plan, model), impl, rank);
}

}  // namespace fsdp
