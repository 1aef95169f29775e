// How ops are implemented by one stack: which tensors stay for backward, which temporaries live inside a kernel, how
// many kernels are launched and how many bytes they move. Order of work is not here; that is a dialect's
// (planner/lowering).
//
//   const Implementation& impl = find_implementation("torchtitan", /*compiled=*/false, "--implementation");
//   OpFacts f = facts(impl, op, workload);
//
// To add one: a file in models/implementations/ with one table (a row per OpKind), and a line in implementation.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/attention_kernel.h"
#include "models/graph.h"

namespace fsdp {

// Memory inside an op of several kernels, in the order in which its implementation asks for it and lets go. Words with
// blanks between:
//   +0 .. +3, -0 .. -3   a temporary of bytes[k] appears, goes
//   +o, +o1 ..           all results (outputs; in backward the gradients of the inputs), or one of them
//   +e, -e               what forward makes for backward only
//   -y                   backward: the gradient of the output goes
//   -i0 .., -r           backward: a saved input, the saved output goes
// What is named here appears and goes here if it appears or goes with this op at all; everything else does so before
// and after it.
struct Inside {
  std::array<std::int64_t, 4> bytes{};
  std::string_view script;  // empty: one temporary of the op's scratch bytes, if any
  friend bool operator==(const Inside&, const Inside&) = default;
};

struct OpFacts {
  std::uint8_t saved_inputs = 0,
               saved_outputs = 0;           // bit i: forward keeps inputs[i] / outputs[i] until this op's backward
  std::int64_t saved_extra_bytes = 0;       // made by forward for backward only (log-sum-exp, 1/rms, fp32 copies)
  std::int64_t forward_scratch_bytes = 0;   // alive only inside the op: what its worst moment needs beside its inputs,
  std::int64_t backward_scratch_bytes = 0;  // outputs and saved tensors, all of which count during the whole op
  std::int16_t forward_launches = 1, backward_launches = 1;
  std::int64_t forward_traffic_bytes = 0, backward_traffic_bytes = 0;  // device memory read + written
  std::int64_t result_extra_bytes =
      0;                              // the part of saved_extra_bytes that a selective checkpoint keeps with the result
  bool extra_replaces_input = false;  // where nothing is kept, the extra bytes appear as an input as large goes
  Inside forward_inside = {}, backward_inside = {};  // the scratch bytes in detail
  double forward_rate = 1, backward_rate = 1;  // fraction of a good kernel's memory bandwidth that these kernels reach
  AttentionKernel attention = AttentionKernel::sdpa;  // of attention
  friend bool operator==(const OpFacts&, const OpFacts&) = default;
};

using OpRule = OpFacts (*)(const Op&, const Workload&);

// Where device memory comes from.
enum class MemorySource : std::uint8_t {
  caching,             // PyTorch's caching allocator
  caching_expandable,  // the same with PYTORCH_ALLOC_CONF=expandable_segments:True, as its launch script says
  arena,               // one block, every tensor at a planned offset
};

struct Implementation {
  std::string_view name;  // "native", "torchtitan", ...
  bool compiled = false;
  std::array<OpRule, kOpKinds>
      rules{};  // indexed by OpKind; nullptr: what this stack does there is not known, `facts` refuses it
  bool backward_adds_in_place = false;    // true: a backward kernel adds into a gradient that exists already;
                                          // false: it writes a temporary and a separate kernel adds (PyTorch autograd)
  bool loss_read_every_step = false;      // the host waits for the loss at the end of each step
  bool batch_read_every_forward = false;  // and for something computed from each micro-batch before its first kernel
  // Activation checkpointing. `product`: this op's number among the module's matrix products without bias, from 1.
  bool (*keeps_selectively)(const Op&,
                            std::int64_t product) = nullptr;  // results that selective_op keeps; nullptr: none
  bool keeps_unneeded_results =
      false;  // of those, also results that nobody reads again, until the module's backward ends
  bool recompute_stops_early =
      true;  // recomputation ends with the last tensor that backward needs; false: it runs to the end
  bool frames_hold_inputs = false;  // a module's inputs live until its forward returns (Python's frames hold them)
  // The optimizer's temporaries beside the states: of one unit after the other, or (foreach) of all at once. Clipping
  // has none worth counting: foreach norms are a number per parameter and the scaling is in place.
  std::int64_t optimizer_temp_bytes_per_element = 0;
  bool optimizer_temps_at_once = false;
  bool float8_linear =
      false;  // products of linear layers but the head in 8 bits, scaled by tensor; gathered in 16 bits
  double optimizer_traffic = 1;  // bytes that its kernels move over those of one fused pass
  MemorySource memory = MemorySource::caching;
  double host_seconds_per_launch = 0;     // CPU time to issue one kernel
  double host_seconds_per_unit_hook = 0;  // CPU time of one unit's pre- or post-hook
};

[[nodiscard]] const Implementation& find_implementation(std::string_view name, bool compiled,
                                                        std::string_view where);  // throws InputError, lists names
[[nodiscard]] std::vector<std::string> implementation_names();
// Everything is trained. Throws InputError("--implementation", ...) for a kind of op that the implementation has no
// rule for.
[[nodiscard]] OpFacts facts(const Implementation&, const Op&, const Workload&);
// What is kept given what is trained (Parameter::trainable, Tensor::requires_grad): a linear layer with a frozen weight
// does not keep its input, an op below the first trained parameter keeps nothing.
[[nodiscard]] OpFacts facts(const Implementation&, const Op&, const Workload&, const ModelGraph&);
[[nodiscard]] std::string digest(const Implementation&);

// One stack per file in models/implementations/.
[[nodiscard]] const Implementation& native_implementation();                   // our executor on the host
[[nodiscard]] const Implementation& native_cuda_implementation();              // and on GPUs
[[nodiscard]] const Implementation& torchtitan_implementation(bool compiled);  // as of 2026
[[nodiscard]] std::span<const Implementation> torchtitan_implementations();    // that, as it was before, and in float8
[[nodiscard]] const Implementation& hf_implementation(bool compiled);          // transformers 5
[[nodiscard]] const Implementation& hf_eager_attention_implementation();       // attn_implementation="eager"
[[nodiscard]] const Implementation& foundry_implementation(
    bool compiled);                                                 // MPT in llm-foundry, and before since March 2023
[[nodiscard]] const Implementation& foundry_2023_implementation();  // the same under PyTorch before 2.1
[[nodiscard]] const Implementation&
foundry_2023_01_implementation();  // until then; not by name: its memory is not modelled
[[nodiscard]] const Implementation&
torch_cpu_implementation();  // for comparisons with recordings of PyTorch on CPU tensors

}  // namespace fsdp
