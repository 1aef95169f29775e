// What Python's frames hold while a forward runs, beside what its ops still need.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/lowering/tape/lifetimes.h"
#include "planner/lowering/tape/recomputed.h"

namespace fsdp {

struct FrameHold {
  std::int32_t tensor = kNone;  // or a value, where it says so; kNone: the rows of learned positions, no tensor
  std::int32_t end = 0;         // held until graph op end - 1 has run, and until modules have returned:
  std::int32_t scope = kNone;   // as TapeValue::scope
};

// A module's inputs are held until it has returned, its hooks included. Of implementations that say so (transformers)
// also variables, until their function returns: embeddings in the trunk, what attention reads in the module around it,
// what attention returns to a block of GPT-2's form, (prime-rl) what adapters make, and (where outputs are held, or the
// loss is computed by the model) what the output layer reads; of all implementations what experts are chosen by, read
// and make. `producer`: by tensor, the op that makes it.
[[nodiscard]] std::vector<FrameHold> frame_holds(const ModelGraph&, const Implementation&, const Workload&,
                                                 std::span<const std::int32_t> producer);
// What frames hold of the values of a forward, into `held`. `looked_up`: the rows of learned positions.
void hold_frames(std::span<const FrameHold>, std::span<const std::int32_t> forward_value, std::int32_t looked_up,
                 std::span<const std::uint32_t> forward_of, std::vector<Held>& held);

// The holds of a model, and those that have to do with a recomputation: they end in it, or hold what it makes.
class FrameHolds {
 public:
  FrameHolds() = default;
  FrameHolds(std::vector<FrameHold> holds, std::span<const std::int32_t> producer, std::size_t ops);
  [[nodiscard]] std::span<const FrameHold> all() const { return holds_; }
  [[nodiscard]] std::vector<FrameHold> near(const Region&) const;

 private:
  std::vector<FrameHold> holds_;
  std::vector<std::vector<std::int32_t>> of_op_;  // places of those that end with the op, or whose tensor it makes
};

// What op i makes beside tensors of the graph, and what lives until its module's forward returns, or comes
// to another op of its kind; or until the last module of the one around returns (OpFacts::returns_variables).
struct ModuleVariable {
  std::int64_t bytes = 0;
  BufferKind kind{};                    // saved: for the backward of the module's last op, too
  bool before_hook = false;             // made before hooks at the module's begin
  bool after = false;                   // a part of what op i makes, alone there when it is over
  std::int32_t end = 0, scope = kNone;  // as FrameHold's
};
// `wide`, by tensor: fp32, whatever activations are. `discarded`: nothing that the forward saves is kept.
[[nodiscard]] std::vector<ModuleVariable> module_variables(const ModelGraph&, const OpFacts&, std::int32_t i,
                                                           std::span<const char> wide, bool discarded);

// The same of modules that have returned before a recomputation ends. `last_run`: by graph op, its latest tape op.
void hold_frames_again(std::span<const FrameHold>, const Region&, std::span<const std::int32_t> recomputed_value,
                       std::span<const std::int32_t> last_run, std::vector<Held>& held);

// Variables of a recomputation (values, not tensors): until their module has returned, or to `now`, where it ends.
void hold_variables_again(std::span<const FrameHold> values, const Region&, std::span<const std::int32_t> last_run,
                          std::int32_t now, std::vector<Held>& held);

// What a recomputation's frames hold until it ends: tensors that its last ops would read if they ran again, and what
// modules hold that have not returned.
[[nodiscard]] std::vector<std::int32_t> held_by_recomputation(const ModelGraph&, const Region&,
                                                              std::span<const FrameHold>,
                                                              std::span<const std::int32_t> producer);

}  // namespace fsdp
