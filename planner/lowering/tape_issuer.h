// One op of a tape becomes operations of the Step: its values buffers, its parameters and gradients those that the
// dialect gives. What autograd adds up and converts around a backward follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/dialect.h"
#include "planner/lowering/ignored.h"
#include "planner/lowering/step/over_tensor.h"
#include "planner/lowering/step/step_builder.h"
#include "planner/lowering/tape/tape.h"

namespace fsdp {

class TapeIssuer {
 public:
  // `model`: as the units' hooks leave it (with_cast_inputs). Everything must outlive the issuer.
  TapeIssuer(const LoweringContext&, const ModelGraph& model, IgnoredParameters&);

  void begin_step(DialectHooks& dialect, std::int32_t loss) {
    dialect_ = &dialect;
    loss_ = loss;
    step_begins_ = true;
  }
  // A forward of this micro-batch begins, the `index`-th of `count` before one backward.
  void begin_forward(const Tape&, std::int16_t micro_batch, std::size_t index, std::size_t count);
  // What follows belongs to the `index`-th forward.
  void go_to(std::size_t index) { now_ = index; }

  void emit(StepBuilder&, const TapeOp&);
  void allocate_late(StepBuilder&, const TapeOp&);
  // Values that go before the post-forward hook of a unit that begins with graph op `unit_begin`; -1: all that are
  // left.
  void release_late(StepBuilder&, const TapeOp&, std::int32_t unit_begin);
  void end_region(StepBuilder& b, const Region& r) {
    for (const std::int32_t v : r.held) b.release(buffer_of(v));
  }
  void end_backward(StepBuilder&);
  // Of the forward that go_to says.
  void update_metrics(StepBuilder& b) {
    if (tape().metrics >= 0) emit(b, tape().ops[static_cast<std::size_t>(tape().metrics)]);
  }

 private:
  struct Pass {  // a forward, until its backward has been issued
    const Tape* tape = nullptr;
    std::int16_t micro_batch = 0;
    std::vector<std::int32_t> buffers;  // by value of the tape
  };
  [[nodiscard]] const Tape& tape() const { return *passes_[now_].tape; }
  [[nodiscard]] std::int32_t& buffer_of(std::int32_t value) {
    return passes_[now_].buffers[static_cast<std::size_t>(value)];
  }
  [[nodiscard]] Buffer value_info(std::int32_t value) const;
  [[nodiscard]] Buffer gradient_of(std::int32_t param) const;
  Arg resolve(StepBuilder&, const TapeOp&, const TapeArg&);
  // Of a value that parts of the output layer read or write a part each of.
  void narrow(const TapeOp&, std::int32_t value, Arg&) const;
  void end_backward_op(StepBuilder&, const TapeOp&);
  void emit_over_tensor(StepBuilder&, const TapeOp&, const Operation&);
  void join_streams(StepBuilder&, const Operation&);
  void release(StepBuilder&, const TapeOp&, bool gradients);
  std::int32_t declare(StepBuilder&, std::int32_t value);
  void hold(std::int32_t buffer);
  void let_gradients_go(StepBuilder&);
  void hold_over_step(StepBuilder&);
  [[nodiscard]] bool holds(std::int32_t value) const;
  [[nodiscard]] bool stays(std::int32_t value) const;  // where its last reader has run
  bool adds_to_view(std::int32_t param, std::int32_t graph_op) const;

  struct Sum {
    std::int32_t param = kNone;
    Arg from, into;
  };
  struct LastUses {  // ops of the forward; none: kNone
    std::int32_t last = kNone, before = kNone;
  };
  const LoweringContext c_;
  const ModelGraph& model_;
  IgnoredParameters& ignored_;
  DialectHooks* dialect_ = nullptr;
  std::int32_t loss_ = kNone;
  std::vector<Pass> passes_;
  std::size_t now_ = 0;
  std::vector<std::int32_t> unit_of_;  // by parameter
  std::vector<LastUses> last_uses_;    // by parameter
  OverTensor over_tensor_;
  std::vector<Arg> args_;
  std::vector<Sum> to_add_;
  std::vector<std::int32_t> params_, later_, freed_;  // of the op that is issued: here for their room
  bool in_parts_ = false;                             // between the two barriers around products in parts
  // TapeValue::until_next, in the order in which a forward makes them: the buffers that are held now, and those that
  // the last micro-batch of each step leaves to the next; how many this forward has made, and what they replace. Behind
  // them those that its backward has made.
  std::vector<std::int32_t> held_, left_, replaced_;
  std::size_t made_ = 0;
  bool step_begins_ = false;
};

}  // namespace fsdp
