// What of a checkpointed module runs again in backward, and when: rule A1.5 of docs/fsdp-order.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/graph.h"
#include "models/implementation.h"

namespace fsdp {

// Graph ops [begin, end) of one checkpointed module.
struct Region {
  std::int32_t begin = 0, end = 0;
  // The last op whose result is computed again; begin - 1: none.
  std::int32_t last = kNone;
  // The op whose backward needs the recomputation: the last one that has saved something. It starts right before that
  // backward; what comes behind (the sum at the end of a block saves nothing) has had its backward by then. kNone:
  // backward needs nothing of the module.
  std::int32_t needed_by = kNone;
  // Does the recomputation end as soon as `needed_by` has everything? Otherwise it goes on to the module's end.
  bool stops_early = true;
  // Reentrant: it starts before all of the module's backward, goes on to its end, and the backward of what it made is
  // one of autograd's own.
  bool reentrant = false;
  bool leaves_held = false;  // Reentrant::leaves_held
  // Reentrant: values that go when the backward of all that ran again has ended, whose last tape op this is.
  std::vector<std::int32_t> held = {};
  std::int32_t last_backward = kNone;
  // Tensors that the module was called with and that wait in host memory for its recomputation, and the values of their
  // copies there, once they are made. Empty: the inputs stay on the device.
  std::vector<std::int32_t> offloaded = {}, in_host = {};

  [[nodiscard]] bool runs() const { return needed_by >= begin; }
  // Does the recomputation get as far as the end of op i?
  [[nodiscard]] bool completes(std::int32_t i) const { return !stops_early || i < needed_by; }
  // Does it end in op i, for what that saves?
  [[nodiscard]] bool ends_inside(std::int32_t i, const OpFacts& f) const {
    return stops_early && needed_by == i && !f.forward_stopped.script.empty();
  }
};

// `facts` by op; `producer` by tensor: the op that makes it, or kNone.
[[nodiscard]] Region recomputed_region(std::int32_t begin, std::int32_t end, const ModelGraph&, const Implementation&,
                                       std::span<const OpFacts> facts, std::span<const std::int32_t> producer);

// torch.utils.checkpoint with use_reentrant=True: a module runs again as a whole before its backward begins, which is
// one of autograd's own: what that begins with is held until it ends.
struct Reentrant {
  bool used = false;
  // Modules of whose inputs somebody holds autograd's leaves, with their gradients, until the end of backward.
  std::vector<std::int32_t> leaves_held = {};
};

void make_reentrant(Region&, std::int32_t module, const Reentrant&);

// Of selective checkpointing: what Implementation::keeps_selectively numbers, and whether it keeps an op's result.
[[nodiscard]] bool counts_as_matmul(const Op&);
[[nodiscard]] bool keeps_result(const Implementation&, const Op&, const OpFacts&, std::int64_t matmul);

// Compiled, a module that is run again makes copies of weights in 8 bits where it reads them: it keeps none.
void keep_no_copies(std::span<OpFacts> facts, const Module&, const ModelGraph&, const Implementation&, const Workload&);

// OpFacts::makes_result_again: a kernel of backward makes a result that gradients of weights read after it. A tape has
// these gradients before it, where they come with that of the layer's input: only what the result is larger than they
// are appears, and nothing where no weight that reads it is trained.
void leave_to_gradients(std::span<OpFacts> facts, const ModelGraph&, std::span<const std::int32_t> producer,
                        std::int64_t element_bytes);

}  // namespace fsdp
