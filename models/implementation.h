// How one software stack implements the ops: which tensors stay for backward, which temporaries live inside an op, how
// many GPU kernels are launched and how many bytes they move. The order of work is a dialect's, not here
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
#include "models/memory_script.h"

namespace fsdp {

// Memory inside an op of several kernels. Values named in the script appear and go where it says, if they appear or go
// with this op at all; all others appear before the op and go after it.
struct Inside {
  std::array<std::int64_t, MemoryScript::kTemporaries> bytes{};  // of the script's temporaries
  MemoryScript script;  // empty: one temporary of the op's scratch bytes, if any
  friend bool operator==(const Inside&, const Inside&) = default;
};

// What the training loop computes of a loss's inputs when its backward has ended and gradients are reduced: metrics.
struct AfterBackward {
  std::int16_t launches = 0;       // 0: nothing
  std::int64_t traffic_bytes = 0;  // device memory read + written
  Inside inside = {};
  friend bool operator==(const AfterBackward&, const AfterBackward&) = default;
};

struct OpFacts {
  // Bit i: forward keeps inputs[i] / outputs[i] until this op's backward.
  std::uint8_t saved_inputs = 0, saved_outputs = 0;
  std::int64_t saved_extra_bytes = 0;       // made by forward for backward only (log-sum-exp, 1/rms, fp32 copies)
  std::int64_t saved_for_weight_bytes = 0;  // part of it that only the weight's gradient reads: scratch if it is frozen
  std::uint8_t wide_outputs = 0;            // bit i: outputs[i] and its gradient are fp32, whatever activations are
  // Made by forward for the backward of the last op of its module, or of the op itself, if it is in none.
  std::int64_t passed_bytes = 0;
  // Of variables in the forward of the op's module, until that returns; and what of it counts in saved_extra_bytes,
  // too.
  std::int64_t variable_bytes = 0, variable_saved_bytes = 0;
  // Those variables are a part of what the op makes, which its module returns beside its result: they live in the
  // function around it until the last module of that returns, whose results take the name.
  bool returns_variables = false;
  // Alive only inside the op: what its worst moment needs beside its inputs, outputs and saved tensors, all of which
  // count during the whole op.
  std::int64_t forward_scratch_bytes = 0, backward_scratch_bytes = 0;
  std::int16_t forward_launches = 1, backward_launches = 1;
  // Numbers that the host reads from the device before the op's kernels, one after the other: for the first it waits
  // for everything that it has issued.
  std::int32_t forward_reads = 0, backward_reads = 0;
  std::int64_t forward_traffic_bytes = 0, backward_traffic_bytes = 0;  // device memory read + written
  // Elements that aten::scatter_add adds one by one (planner/costs/kernels.cpp); in forward to make the result.
  std::int64_t forward_scattered = 0, backward_scattered = 0;
  // Elements that gather, scatter_, index and index_put_ of aten move one by one; the traffic holds their bytes.
  std::int64_t forward_indexed = 0, backward_indexed = 0;
  std::int64_t result_extra_bytes = 0;  // part of saved_extra_bytes that a selective checkpoint keeps with the result
  bool saves_by_input = false;  // inputs are kept for the gradient of inputs[0], the extra bytes for that of inputs[1]
  // Attention that scaled_dot_product_attention multiplies out: each product keeps a factor for the other's gradient.
  bool saves_factors = false;
  bool makes_result_again = false;    // backward_again's first temporary is the result, for weights that read it
  bool extra_replaces_input = false;  // where nothing is kept, the extra bytes appear as an input of their size goes
  Inside forward_inside = {}, backward_inside = {};   // the scratch bytes in detail
  Inside forward_stopped = {};                        // where a recomputation ends in this op: it makes no result
  Inside backward_again = {};                         // backward in a checkpointed module, if that differs
  double forward_rate = 1, backward_rate = 1;         // fraction of a good kernel's memory bandwidth
  AttentionKernel attention = AttentionKernel::sdpa;  // of attention
  // Of attention: the part of the traffic that copies before and after its kernel move, which it cannot hide.
  std::int64_t forward_copied_bytes = 0, backward_copied_bytes = 0;
  AfterBackward after_backward = {};  // of cross_entropy
  friend bool operator==(const OpFacts&, const OpFacts&) = default;
};

// Is input or output i one of `saved` (OpFacts::saved_inputs, saved_outputs)?
[[nodiscard]] constexpr bool keeps(std::uint8_t saved, std::size_t i) { return i < 8 && (saved >> i & 1) != 0; }

using OpRule = OpFacts (*)(const Op&, const Workload&);
// What there is about an op that an implementation does not know; empty: nothing.
using OpLack = std::string_view (*)(const Op&);
[[nodiscard]] std::string_view few_families(const Op&);  // any variant of an op that only few families (stacks) have
inline constexpr std::string_view kOpSize = "op size";   // where rules say that a size overflows; `facts` says whose

// Where device memory comes from.
enum class MemorySource : std::uint8_t {
  caching,             // PyTorch's caching allocator
  caching_expandable,  // the same with PYTORCH_ALLOC_CONF=expandable_segments:True, as its launch script says
  arena,               // one block, every tensor at a planned offset
};

// How PyTorch runs an optimizer: in one kernel; operator by operator, each on all parameters at once (its default on
// GPUs); or parameter by parameter (its default on CPUs).
enum class OptimizerForm : std::uint8_t { fused, foreach, loop };

// What of a forward's results the training loop holds longer than backward needs it.
enum class LoopHolds : std::uint8_t {
  nothing,
  logits,   // until the next forward has made new ones
  outputs,  // transformers' outputs until the next forward has ended: logits in fp32, and the keys and values of every
            // attention, as nobody turned its cache off
  loss,     // of the same outputs the loss alone: the others go as the forward ends
};

// Of weights that are multiplied in 8 bits, compiled, where nothing is run again: whose casts by columns, a byte per
// element, PyTorch's partitioner keeps from forward to backward (models/implementations/float8.h).
enum class Float8Copies : std::uint8_t {
  none,                    // torchao was told to cast again: force_recompute_fp8_weight_in_bwd
  of_gathered,             // of weights that were gathered in 8 bits, those of feed-forwards
  of_gathered_and_values,  // and of the projection to values: transformers' blocks
  of_all,                  // before the partitioner knew that parameters are there anyway
};

struct Implementation {
  std::string_view name;  // "native", "torchtitan", ...
  bool compiled = false;
  // The model as this stack builds it, of one as transformers does; nullptr: the same. It sets ModelGraph::own_form.
  ModelGraph (*own_form)(ModelGraph) = nullptr;
  std::array<OpRule, kOpKinds> rules{};  // by OpKind; nullptr: not known for this stack, `facts` refuses it
  OpLack lacks = few_families;           // beside the kinds without a rule, what `facts` refuses
  bool of_traces = false;                // of models that PyTorch ran (ModelGraph::trace), and of no others
  // True: a backward kernel adds into a gradient that exists already. False: it writes a temporary and a separate
  // kernel adds (PyTorch autograd).
  bool backward_adds_in_place = false;
  bool loss_read_every_step = false;  // the host waits for the loss at the end of each step
  LoopHolds loop_holds = LoopHolds::nothing;
  bool loss_in_model = false;  // the model's forward computes the loss where it is given targets (transformers)
  // DistributedDataParallel without gradient_as_bucket_view: gradients are copied into its buckets to be reduced.
  bool ddp_copies_gradients = false;
  // torch.autocast: kernels compute in param_dtype, but parameters are gathered, and their gradients made, in
  // master_dtype (fsdp1). The rules count the casts.
  bool autocast = false;
  // Activation checkpointing: results that selective_op keeps (of torchtitan's routers none); nullptr: none. `matmul`:
  // this op's number among the matmuls without bias of the module, but for routers, from 1.
  bool (*keeps_selectively)(const Op&, std::int64_t matmul) = nullptr;
  // Bytes that it keeps of an op beside its result, whether that is kept or made again; nullptr: none.
  std::int64_t (*keeps_beside)(const Op&, const Workload&, const ModelGraph&, std::int64_t matmul) = nullptr;
  bool keeps_unneeded_results = false;  // also kept results that nothing reads again, until the module's backward ends
  bool recompute_stops_early = true;    // recomputation ends with the last tensor that backward needs, or at the end
  bool frames_hold_inputs = false;      // a module's inputs live until its forward returns (Python's frames hold them)
  bool frames_hold_variables = false;   // so do variables of its functions: planner/lowering/tape/frames.h
  bool peft_casts = false;              // adapters are peft's layers, with its casts (planner/tensor/adapter_casts.h)
  bool frames_hold_adapters = false;    // beside those, adapters' results until they are added to their layer's
  // What collectives over tensor ranks read and write is marked by record_stream: free when their stream has come
  // there.
  bool tensor_collectives_recorded = false;
  // Asynchronous tensor parallelism: products run in parts, one per tensor rank, that move while others are multiplied
  // (planner/lowering/tape/products_in_parts.h).
  bool async_tensor = false;
  Float8Copies float8_copies = Float8Copies::of_gathered;
  AttentionKernel sdpa = AttentionKernel::sdpa;           // PyTorch's attention at the time of this software
  OptimizerForm optimizer_form = OptimizerForm::foreach;  // of optimizers but AdamW, whose own form the next lines say
  // AdamW's temporaries beside states in fp32 (others: in their type): of one unit after the other, or (foreach) of all
  // at once. Clipping has none worth counting: foreach norms are a number per parameter, the scaling is in place.
  std::int64_t optimizer_temp_bytes_per_element = 0;
  bool optimizer_temps_at_once = false;
  double optimizer_traffic = 1;  // bytes that AdamW's kernels move over those of one fused pass
  // On Hopper and newer, products keep every multiprocessor from start to end (simulator/engine/engine.h), as the
  // library did that software of before 2026 has.
  bool persistent_products = true;
  MemorySource memory = MemorySource::caching;
  double host_seconds_per_launch = 0;     // CPU time to issue one kernel
  double host_seconds_per_part = 0;       // ... of products in parts, which Python issues
  double host_seconds_per_unit_hook = 0;  // CPU time of one unit's pre- or post-hook
  double host_seconds_per_read = 0;       // CPU time to make the device compute one number and to fetch it
  // Between reading a step's loss and the next step, while the device has nothing to do: CPU time of the training loop,
  // and small collectives of all ranks, each of which the host reads.
  double host_seconds_between_steps = 0;
  int collectives_between_steps = 0;
};

// Do transformers' outputs, with its cache, come out of the model?
[[nodiscard]] constexpr bool gives_outputs(const Implementation& i) {
  return i.loop_holds == LoopHolds::outputs || i.loop_holds == LoopHolds::loss;
}
[[nodiscard]] const Implementation& find_implementation(std::string_view name, bool compiled,
                                                        std::string_view where);  // throws InputError, lists names
[[nodiscard]] std::vector<std::string> implementation_names();
// The same with asynchronous tensor parallelism. Throws InputError for one that is not torchtitan's, compiled.
[[nodiscard]] const Implementation& with_async_tensor(const Implementation&, std::string_view where);
// The same under PyTorch before 2.11, which changes the kernel of attention alone (AttentionKernel).
[[nodiscard]] Implementation before_torch_2_11(Implementation);
// transformers', with PyTorch's own choice of AdamW, foreach, which its Trainer takes before PyTorch 2.8.
[[nodiscard]] Implementation by_foreach(Implementation fused);
// transformers' before 4.49, not compiled, whose loss copied logits. `cast_first`: before 4.46, where models cast them.
// Another implementation comes back as it is.
[[nodiscard]] Implementation copying_logits(Implementation newest, bool cast_first);
// transformers' and LitGPT's, compiled, before PyTorch's pull request 148922 of March 2025. `again`: with torchao's
// force_recompute_fp8_weight_in_bwd.
[[nodiscard]] Implementation keeping_float8_casts(Implementation compiled, bool again);
// "torchtitan", "torchtitan+compile", "torchtitan+compile+async-tensor".
[[nodiscard]] std::string implementation_text(const Implementation&);
// Where nobody names one. On GPUs torchtitan's, or transformers' for a model with an op that torchtitan does not know;
// where none knows all of it torchtitan's, which then says what. On CPU ranks ours.
[[nodiscard]] const Implementation& usual_implementation(const ModelGraph&, bool host, bool compiled,
                                                         std::string_view where);
// As if every parameter were trained. Throws InputError(setting("implementation"), ...) for a kind of op that the
// implementation has no rule for, InputError(setting("seq_len"), ...) for one of more than kMostOpBytes.
[[nodiscard]] OpFacts facts(const Implementation&, const Op&, const Workload&);
// With frozen parameters (Parameter::trainable, Tensor::requires_grad): a linear layer with a frozen weight does not
// keep its input, a norm with one does not keep what it multiplies with it, and an op below the first trained parameter
// keeps nothing.
[[nodiscard]] OpFacts facts(const Implementation&, const Op&, const Workload&, const ModelGraph&);
[[nodiscard]] std::string digest(const Implementation&);

// One stack per file in models/implementations/.
[[nodiscard]] const Implementation& native_implementation();                   // our executor on CPUs
[[nodiscard]] const Implementation& native_cuda_implementation();              // our executor on GPUs
[[nodiscard]] const Implementation& torchtitan_implementation(bool compiled);  // torchtitan as of early 2026
[[nodiscard]] std::span<const Implementation> torchtitan_implementations();    // that, and its past forms
// Compiled, of January and February 2025; no name on the command line. It kept absolute values of every weight that is
// multiplied in 8 bits by rows, or of those alone whose product is made again.
[[nodiscard]] const Implementation& torchtitan_with_absolutes(bool of_all_weights);
[[nodiscard]] const Implementation& hf_implementation(bool compiled);     // transformers 5
[[nodiscard]] const Implementation& hf_4_implementation();                // transformers 4, of mixtures of experts
[[nodiscard]] const Implementation& hf_eager_attention_implementation();  // attn_implementation="eager"
[[nodiscard]] const Implementation& automodel_implementation();           // NeMo Automodel, TransformerEngine's kernels
[[nodiscard]] const Implementation& foundry_implementation(
    bool compiled);                                                 // MPT in llm-foundry, before it since March 2023
[[nodiscard]] const Implementation& foundry_2023_implementation();  // the same under PyTorch before 2.1
// Until February 2023. It has no name on the command line: its memory is not modelled.
[[nodiscard]] const Implementation& foundry_2023_01_implementation();
// transformers 4.31 under PyTorch 2.1, its cache left on; no names on the command line. In ATorch's training loop, with
// a flash kernel; and in llama-recipes', with attention written out, which held outputs, or (`loss`) the loss alone.
[[nodiscard]] const Implementation& hf_2023_cache_implementation();
[[nodiscard]] const Implementation& hf_2023_eager_implementation(LoopHolds held);
// The same with a loss that the training loop computes outside of the model: of logits cast to fp32, as they are, or
// compiled by itself.
enum class LoopLoss : std::uint8_t { in_fp32, in_16_bits, compiled };
[[nodiscard]] Implementation with_loss(Implementation, LoopLoss);
// LitGPT's model under PyTorch before 2.11, of the benchmark alone also compiled; no names on the command line.
enum class LitGptLoop : std::uint8_t {
  fabric,       // its own scripts: Fabric casts logits to fp32 as they leave a model of 16 bits
  fabric_2023,  // the same of October 2023 under PyTorch 2.1, with norms in 16 bits
  benchmark,    // lightning-thunder's benchmark_litgpt.py: nothing is cast, and its loop holds the logits
};
[[nodiscard]] const Implementation& litgpt_implementation(LitGptLoop, bool compiled);
// torchtune of 2024, of sequences that hold several documents; no name on the command line. `loss`: is that compiled,
// too?
[[nodiscard]] const Implementation& torchtune_implementation(bool compiled, bool loss);
// What PyTorch did when it ran the model (ModelGraph::trace).
[[nodiscard]] const Implementation& traced_implementation();
// For comparisons with recordings of PyTorch on CPU tensors.
[[nodiscard]] const Implementation& torch_cpu_implementation();

}  // namespace fsdp
