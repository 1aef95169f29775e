// Stage two of lowering: when sharded work happens around the tape. A dialect is a set of hooks; the walk over the tape
// (lower.cpp) calls them in host order. To add one: a file with its class, a declaration below, a case in make_dialect.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/lowering/step/step_builder.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"
#include "planner/program.h"

namespace fsdp {

struct LoweringContext {
  const ModelGraph& model;
  const ShardingPlan& plan;
  const PlanIds& ids;  // of the plan
  const Implementation& implementation;
  Program& program;  // its layouts are filled
};

class DialectHooks {
 public:
  virtual ~DialectHooks() = default;
  virtual void init(StepBuilder&) = 0;        // parameters appear
  virtual void begin_step(StepBuilder&) = 0;  // gradients of the step before disappear
  // The first micro-batch of those whose gradients one backward makes (LoopPlan::forwards).
  virtual void begin_micro_batch(StepBuilder&, std::int16_t micro_batch) = 0;
  virtual void go_to(std::int16_t /*micro_batch*/) {}  // what follows belongs to it
  virtual void begin_backward(StepBuilder&) {}         // all that comes before the backward has been issued
  // The output layer runs by itself on a part of the tokens (LoopPlan::chunk_head). If it is all of its unit,
  // before_forward, after_forward, before_backward, after_backward of the unit and end_backward follow; else
  // before_forward and after_backward. end_parts: the backward of the rest comes next.
  virtual void begin_part(StepBuilder&, std::int32_t /*unit*/, bool /*last*/) {}
  virtual void end_parts() {}
  virtual void before_forward(StepBuilder&, std::int32_t unit) = 0;
  virtual void after_forward(StepBuilder&, std::int32_t unit) = 0;
  virtual void before_backward(StepBuilder&, std::int32_t unit) = 0;
  // The gradients of an op's outputs are there, and the hooks before_backward of the units that end with it have run.
  virtual void outputs_ready(StepBuilder&) {}
  virtual void after_backward(StepBuilder&, std::int32_t unit) = 0;
  // The backward of this op and of all ops after it has been issued.
  virtual void backward_passed(StepBuilder&, std::int32_t /*graph_op*/) {}
  virtual void end_backward(StepBuilder&) = 0;  // the final callback of a micro-batch
  // Inside a checkpointed module that is recomputed: the forward of a unit is about to begin, and has ended. A
  // recomputation that stops early leaves out the ends that lie behind.
  virtual void before_recompute(StepBuilder&, std::int32_t /*unit*/) {}
  virtual void after_recompute(StepBuilder&, std::int32_t /*unit*/) {}
  // An op that is about to be recomputed reads this unit's parameters.
  virtual void before_recomputed_op(StepBuilder&, std::int32_t /*unit*/) {}
  virtual void after_optimizer(StepBuilder&) {}
  // False: the step leaves behind another state than it found, so it is not yet a steady one and must be lowered again.
  virtual bool end_step(StepBuilder&) { return true; }
  // Arguments of kernels. `gradient` also says whether there is something to add to; it allocates the first time.
  virtual Arg parameter(StepBuilder&, std::int32_t param) = 0;
  virtual Arg gradient(StepBuilder&, std::int32_t param) = 0;
  // The kernel that makes the gradient has been issued.
  virtual void after_gradient(StepBuilder&, std::int32_t /*param*/) {}
  // The buffer; kNone: nothing of the unit is trained.
  [[nodiscard]] virtual std::int32_t sharded_gradient(std::int32_t unit) const = 0;
  [[nodiscard]] virtual std::int32_t parameter_shard(std::int32_t unit) const = 0;
};

[[nodiscard]] std::unique_ptr<DialectHooks> make_fsdp2(const LoweringContext&);
[[nodiscard]] std::unique_ptr<DialectHooks> make_fsdp1(const LoweringContext&);
[[nodiscard]] std::unique_ptr<DialectHooks> make_ddp(const LoweringContext&);

}  // namespace fsdp
