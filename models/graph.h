// What is trained: a tree of modules with PyTorch's names, their parameters, and the typed ops of one forward in the
// order in which they run. It knows nothing of sharding.
//
//   ModelGraph m = load_model("llama3-8b");
//   m.parameter_count()                      -> 8,030,261,248
//   m.modules[m.ops[7].module].name          -> "model.layers.0.self_attn.o_proj"
//
// Everything is a plain value; ids are indices into the vectors beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph/trace.h"

namespace fsdp {

// In place of an id (an index into a flat array), here and in the flat arrays of a Step: there is none. Sizes and rates
// that may be absent are std::optional instead.
inline constexpr std::int32_t kNone = -1;

// The kinds of ops. A kind's flops and bytes are counted in graph/op_work.cpp; what it saves for backward is the
// Implementation's business (implementation.h); how it computes is the kernel's (executor).
// [T] = tokens = sequences * seq_len; [S] = expert slots, a fixed number per expert (Experts below).
// clang-format off
enum class OpKind : std::uint8_t {
                       // inputs                     parameters                             output
  embedding,           // ids [T]                    weight [vocab, width]                  [T, width]
  position_embedding,  // x [T, width]               weight [positions, width]              x + weight[t % seq_len]
  rms_norm,            // x [T, groups*width]        weight [width]                         as x; over `width`, with eps
                       // or the first `width` of in channels
  layer_norm,          // x [T, width]               weight [width] (, bias [width])        as x
  linear,              // x [T, in]                  weight [out, in] (, bias [out])        [T, out]
                       //                            transposed: weight is [in, out]
  rotary,              // x [T, heads*head_dim]      -                                      as x; half-rotation as in
                       //                                                                   Llama (HF), theta
                       // or packed qkv (attention)                                         q and k in one
                       // or q and k, of whose heads a part turns                           both
                       // or q and a latent [T, in], of which the last channels turn        q and what all heads share
  attention,           // q [T, heads*head_dim],     - (, sinks [heads])                    [T, heads*head_dim];
                       // k, v [T, kv_heads*head_dim],                                      causal, window, alibi
                       // or one packed qkv [T, (heads+2*kv_heads)*head_dim]
                       // or q and k in one, and the packed qkv that has v
                       // or q, keys and values in one but for the last `rotated` channels
                       // of keys, and those, which all heads share: latent attention       [T, heads*v_head_dim]
  swiglu,              // gate, up [T, width],       -                                      silu(gate) * up
                       // or one packed [gate, up] of 2*width; of experts: [S, width]
  gelu,                // x [T, width]               -                                      gelu(x); tanh: the tanh
                       //                                                                   approximation
  add,                 // a, b [T, width]            -                                      a + b
  cross_entropy,       // logits [T, vocab],         -                                      mean loss over the tokens of
                       // targets [T]                                                       the step (scalar)
  opaque,              // only flops, bytes and saved bytes are known; with experts: is_expert_in_turn
  // Mixtures of experts.
  moe_route,           // logits [T, experts]        -                                      weights [T, top_k],
                       //                                                                   slots [T, top_k] (ids)
                       // the top_k largest probabilities (of equal ones the lower expert); renormalised: divided by
                       // their sum; sigmoid: of sigmoids and a number per expert, among the experts of the best groups,
                       // the sigmoids times `factor`; of_chosen: the top_k largest logits, and their probabilities
  moe_dispatch,        // x [T, width], slots        -                                      [S, width]: rows of x;
                       //                                                                   empty slots: zeros
                       // of an expert alone (here and below): its slots
  expert_linear,       // x [S, in]                  weight [experts, out, in]              [S, out]: an expert's slots
                       //                            (, bias [experts, out])                by its matrix
                       //                            transposed: weight is [experts, in, out]
                       //                            of an expert alone [out, in]
  moe_combine,         // y [S, width], weights,     -                                      [T, width]: sum of weight *
                       // slots                                                             its slot's row of y
                       // of an expert alone also the sum of those before it
  // Of few families.
  geglu,               // gate, up [T, width]        -                                      gelu(gate) * up, by the tanh
                       //                                                                   approximation
  scale,               // x [T, width]               - (or others, which have a gradient)   factor * x
  soft_cap,            // x [T, width]               -                                      cap * tanh(x / cap)
  // Of a model whose ops are split over ranks (planner/tensor/split.h) alone.
  redistribute,        // x                          -                                      as Redistribution says
  // Of a model whose units compute in several dtypes (planner/tensor/unit_dtypes.h) alone.
  cast,                // x [T, width]               -                                      x, from `from` to `dtype`
};
// clang-format on
inline constexpr int kOpKinds = static_cast<int>(OpKind::cast) + 1;
[[nodiscard]] std::string_view name(OpKind);

// True for the ops whose work is a matrix multiplication (matmul) with a weight: linear and expert_linear.
[[nodiscard]] constexpr bool is_matmul(OpKind k) { return k == OpKind::linear || k == OpKind::expert_linear; }

// How linear layers multiply in 8 bits: what their products read is scaled and cast before. All but `delayed` are
// torchao's.
enum class Float8Recipe : std::uint8_t {
  none,                // products as wide as activations are
  tensorwise,          // one scale per tensor
  rowwise,             // one per row of the left factor and column of the right one
  rowwise_with_gw_hp,  // the same, the gradient of the input with one scale for the weight, that of the weight in 16
                       // bits
  delayed,             // TransformerEngine's DelayedScaling: one scale per tensor, of its largest values so far
  mxfp8,               // one per 32 numbers along what is summed over, a power of two: MXFP8, from Blackwell on
};
inline constexpr int kFloat8Recipes = static_cast<int>(Float8Recipe::mxfp8) + 1;

// How a frozen weight of a linear layer is kept in 4 bits, as bitsandbytes does: NF4, with a scale for each 64 numbers,
// in fp32 or, `nf4_double`, in 8 bits (models/graph/four_bits.h).
enum class FourBits : std::uint8_t { none, nf4, nf4_double };

// How tokens share experts. Each expert has a fixed number of slots, its capacity, so that memory and work do not
// depend on what is routed. Tokens take slots in their order in the micro-batch, and the choices of a token in theirs.
// A choice is dropped if its expert is full: it counts as zero and has no gradient, and the token's other choices keep
// their weights. With capacity_factor = count / top_k no choice is ever dropped; with any lower factor results can
// depend on how the batch is split.
struct Experts {
  std::int64_t count = 0, top_k = 0;  // count 0: no experts
  double capacity_factor = 1;
  bool alone = false;  // of an op: one expert of them, whose slots are its rows and whose matrix is its weight
  [[nodiscard]] std::int64_t multiplied() const { return alone ? 1 : count; }  // experts of one op
  // ceil(tokens * top_k / count * capacity_factor), at most `tokens`: top_k different experts are chosen.
  [[nodiscard]] std::int64_t capacity(std::int64_t tokens) const;
  friend bool operator==(const Experts&, const Experts&) = default;
};
// A choice in the ids that moe_route makes: expert * capacity + place; a dropped one: -1 - expert.

// What a redistribute does among the ranks that a model's ops are split over, and what its backward does. T rows of
// `width` are all tokens, T/n this rank's part of each sequence.
enum class Redistribution : std::uint8_t {
  none,
  gather,          // [T/n, width] -> [T, width]: all-gather; backward: reduce-scatter
  scatter,         // sums [T, width] over the ranks -> [T/n, width]: reduce-scatter; backward: all-gather
  gather_columns,  // [T, width/n] -> [T, width]: all-gather; backward: this rank's columns, without communication
};

struct OpShape {
  // linear; scale: in, elements of a layer's adapters; rms_norm, rotary: in, the width of what they read a part of
  std::int64_t in = 0, out = 0;
  std::int64_t width = 0, groups = 1;                              // norms, elementwise, embedding
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // rotary, attention; window 0: all tokens
  std::int64_t vocab = 0;                                          // embedding, cross_entropy
  std::int64_t positions = 0;                                      // position_embedding
  Experts experts = {};                                            // mixtures of experts; swiglu, add, scale: of slots
  bool causal = true, alibi = false, packed = false;  // packed, expert_linear of torchtitan's gpt-oss: gate and up
  bool transposed = false;            // linear (GPT-2's Conv1D), expert_linear: the weight is stored [in, out]
  bool tanh = false;                  // gelu
  bool renormalised = false;          // moe_route
  bool sigmoid = false;               // moe_route: not of softmax (DeepSeek-V3's)
  bool of_chosen = false;             // moe_route: softmax of the chosen ones alone (gpt-oss's)
  std::int64_t chosen_groups = 1;     // moe_route: of `groups`
  bool router = false;                // linear: of torchtitan's, which experts are chosen by
  bool in_fp32 = false;               // linear: of x and weight cast to fp32, and so is the result; moe_route: of such
  double eps = 1e-5;                  // norms
  double theta = 10000.0;             // rotary
  double opaque_flops_per_token = 0;  // opaque
  std::int64_t opaque_bytes_per_token = 0, opaque_saved_bytes_per_token = 0;
  std::int64_t rotated = 0;     // rotary: channels of each head that turn; 0: all
  double factor = 1;            // scale; moe_route: of the weights
  double cap = 0;               // soft_cap; attention: of the scores, 0: none
  double score_factor = 0;      // attention: of the scores, 0: 1 / sqrt(head_dim)
  double weight_offset = 0;     // rms_norm: added to the weight
  bool wide_weight = false;     // rms_norm: multiplied in fp32, before the result is cast; experts: those of choices
  bool wide_angles = false;     // rotary in fp32; of latent attention in complex numbers (DeepSeek-V2's)
  bool interleaved = false;     // packed: q, k and v of each key head stand together, not all q first
  bool fast = false;            // gelu: transformers' gelu_fast, which writes the tanh approximation out another way
  bool always_masked = false;   // attention: its caller writes the causal mask out
  std::int64_t v_head_dim = 0;  // latent attention: channels of a head of values
  bool by_head = false;         // attention: q and k stand head by head, not token by token
  bool sinks = false;           // attention: each head has a learned score beside those of the keys
  bool by_halves = false;       // rotary: the halves of a head are turned apart, and joined
  bool clamped = false;         // swiglu: gpt-oss's, whose gate and up are limited and stand in turn
  bool keeps_order = false;     // moe_dispatch: which expert each row is of stays for gradients of biases (freeze.cpp)
  // Of a model whose ops are split over ranks.
  Redistribution redistribution = Redistribution::none;
  std::int64_t sequence_parts = 1;  // it computes one of so many parts of each sequence
  std::int64_t vocab_parts = 1;     // cross_entropy, embedding: it has one of so many parts of the vocabulary
  // Linear, as a rank multiplies (planner/tensor/local_model.h): in 8 bits, and with a weight that arrives in 8 bits.
  Float8Recipe float8 = Float8Recipe::none;
  bool float8_weight = false;
  FourBits four_bits = FourBits::none;  // linear: how its weight is kept
  bool copied = false;                  // linear with a weight in 4 bits: peft copies its result; cast: of that result
  // linear, of an adapter: probability that a number that it reads is dropped; cast: the same, where a hook casts then
  double dropout = 0;
  // Of a model whose units compute in several dtypes: what it computes in, if that is not the plan's param_dtype, and
  // of a cast what it reads.
  std::optional<DType> dtype = {}, from = {};
  bool of_result = false;   // cast: of what a module has returned, not of what it is called with
  bool of_adapter = false;  // cast: of what adapters read or add (planner/tensor/adapter_casts.h)
  // Under autocast (planner/tensor/prepared_casts.h). Linear: a weight in fp32, cast before it is multiplied with; one
  // in 4 bits, made in fp32 and cast.
  bool cast_weight = false, unpacked_wide = false;
  // Of a model that PyTorch ran: which of the graph's Trace::kinds it is. Memory and work are that kind's, `kind` of
  // the op is what was recognised, and opaque_flops_per_token is a third of what a step computes.
  std::int32_t traced = kNone;
  friend bool operator==(const OpShape&, const OpShape&) = default;
};

struct Op {
  OpKind kind{};
  std::int32_t module = kNone;                // none: outside the model (the loss)
  std::vector<std::int32_t> inputs, outputs;  // tensor ids
  std::vector<std::int32_t> params;           // parameter ids, in the order of the table above
  OpShape shape;
  friend bool operator==(const Op&, const Op&) = default;
};

// A value that flows between ops. Elements = width * tokens, width * slots where it has experts, or 1 for the loss;
// of one part of each sequence so many parts of it.
enum class TensorKind : std::uint8_t { ids, activation, loss };
struct Tensor {
  TensorKind kind = TensorKind::activation;
  std::int64_t width = 0;     // elements per token
  bool requires_grad = true;  // false for ids and where no trained parameter contributes
  Experts experts = {};       // a row per slot instead of one per token
  std::int64_t sequence_parts = 1;
  std::optional<DType> dtype = {};  // as OpShape::dtype
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// Opaque ops of experts, one of `groups`, that are multiplied one after the other: the whole feed-forward of one of
// them with its adapters (in: channels, out: of the hidden layer, width: rank), which reads the rows of all and makes
// its own; and, without parameters, what joins the rows, whose gradient the experts' are views of.
[[nodiscard]] inline bool is_expert_in_turn(const Op& op) {
  return op.kind == OpKind::opaque && op.shape.experts.count > 0 && !op.params.empty();
}
[[nodiscard]] inline bool joins_experts(const Op& op) {
  return op.kind == OpKind::opaque && op.shape.experts.count > 0 && op.params.empty();
}

struct Module {
  std::string name;        // "" for the root, "model.layers.0.mlp", ... as named_modules() prints it
  std::string class_name;  // "LlamaDecoderLayer", "Linear", ...
  std::int32_t parent = kNone;
  // Its ops are ops[op_begin, op_end), children included. Empty: it has no forward of its own.
  std::int32_t op_begin = 0, op_end = 0;
  bool container = false;  // ModuleList / ModuleDict: no forward, cannot be a unit by itself
  bool block = false;      // one of the model's repeated transformer blocks
  friend bool operator==(const Module&, const Module&) = default;
};

// How the gradient of a parameter comes out of backward on one of the ranks that a model's ops are split over.
enum class TensorGradient : std::uint8_t {
  local,    // that of the rank's own part (or of the whole parameter, where nothing is split)
  partial,  // a summand of it: every rank holds the parameter and sees a part of the tokens
  whole,    // that of all parts, on every rank
};

struct Parameter {
  std::string name;                   // as named_parameters() prints it
  std::vector<std::string> aliases;   // further names of the same storage (tied weights)
  std::vector<std::int32_t> modules;  // owners: the module that registers it, then those of the aliases
  std::vector<std::int64_t> shape;    // at least one dimension
  bool trainable = true;
  TensorGradient tensor_gradient = TensorGradient::local;
  std::string part_of = {};  // in an implementation's own form: the parameter, as plans name it, that this is a part of
  std::int64_t packed = 1;   // numbers in each element: 4 of a weight in 4 bits, whose shape is [elements, 1]
  std::int64_t scale_bytes = 0;              // what every rank has whole beside its shard: scales of a weight in 4 bits
  [[nodiscard]] std::int64_t numel() const;  // elements
  [[nodiscard]] std::int64_t numbers() const;  // of the weight
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

struct ModelGraph {
  std::string name;                         // "llama3-8b", or what the file calls itself
  std::string family;                       // "llama", "gpt2", ...
  std::optional<std::int64_t> max_seq_len;  // what the config allows, where it says so
  std::int64_t vocab = 0;
  std::vector<Module> modules;        // pre-order, registration order; modules[0] is the root
  std::vector<Parameter> parameters;  // in named_parameters() order, each storage once
  std::vector<Tensor> tensors;
  std::vector<Op> ops;                        // forward order; the last is the loss
  std::vector<std::string> notes;             // what its file says and this graph leaves out; for people
  std::int32_t ids = kNone, targets = kNone;  // tensors that a batch fills
  std::int64_t tensor_ranks = 1;              // ranks that its ops are split over; parameters are one rank's part
  Float8Recipe float8 = Float8Recipe::none;   // in which its linear layers multiply: set with their shapes'
  bool unit_dtypes = false;                   // each op has the dtype of its unit: set with their shapes'
  bool adapter_casts = false;                 // peft's casts are among its ops (planner/tensor/adapter_casts.h)
  bool prepared = false;                      // in 4 bits, for autocast (planner/tensor/prepared_casts.h)
  bool own_form = false;                      // as an implementation's own code builds it (Implementation::own_form)
  Trace trace;                                // of a model that PyTorch ran; else empty

  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] std::int64_t gradient_numel(std::int32_t parameter) const;  // as backward makes it
  [[nodiscard]] std::int32_t find_module(std::string_view name) const;      // kNone if absent
  [[nodiscard]] std::string digest() const;  // 16 hex digits over everything that decides a result
  friend bool operator==(const ModelGraph&, const ModelGraph&) = default;
};

// Sizes of one micro-batch on one rank.
struct Workload {
  std::int64_t sequences = 1, seq_len = 1;
  std::int64_t element_bytes = 2;  // of activations
  std::int64_t loss_chunks = 1;    // parts in which the loss is computed, along the sequence
  bool loss_in_model = false;      // by the model, which holds what its output layer reads meanwhile (transformers)
  [[nodiscard]] std::int64_t tokens() const { return sequences * seq_len; }
  // What an op of this shape sees of it: of a part of each sequence only that, and what it computes in.
  [[nodiscard]] Workload seen_by(const OpShape& s) const {
    Workload w = *this;
    w.seq_len /= s.sequence_parts;
    if (s.dtype) w.element_bytes = size_of(*s.dtype);
    return w;
  }
};

[[nodiscard]] std::int64_t rows(const Experts&, const Workload&);  // tokens; with experts: slots = count * capacity
[[nodiscard]] std::int64_t elements(const Tensor&, const Workload&);

// Arithmetic of one op. Backward of a matmul is twice its forward, of attention 2.5 times (the backward recomputes the
// scores; a little more where heads of values are narrower). Causal attention counts half of the square, as published
// TFLOP/s figures do.
[[nodiscard]] double forward_flops(const Op&, const Workload&);
[[nodiscard]] double backward_flops(const Op&, const Workload&);

// Model flops of a training step per token, for MFU: 6 * (parameters in matmuls; 4 of frozen ones, 2 below the first
// that is trained) + 12 * layers * heads * head_dim * seq_len (the PaLM / nanoGPT convention: full attention square, no
// recomputation; a window where it is shorter than seq_len; of experts the top_k that a token is routed to).
[[nodiscard]] double model_flops_per_token(const ModelGraph&, std::int64_t seq_len);

// The same model with some parameters not trained: those named, and all in and below the modules named. The tensors
// that take part in backward follow from that. Names are those of the graph, aliases included. Throws
// InputError(where, ...) for a name that the model does not have.
[[nodiscard]] ModelGraph freeze(ModelGraph, std::span<const std::string> modules_or_parameters, std::string_view where);
// The same model after transformers' enable_input_require_grads: what its embedding makes gets a gradient, although
// the embedding is frozen, and so does all that is computed from it.
[[nodiscard]] ModelGraph require_input_gradients(ModelGraph);

// Checks every invariant that the comments above promise. Throws InputError(where, ...) naming the first that does not
// hold.
void check_graph(const ModelGraph&, std::string_view where);

}  // namespace fsdp
