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
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// One kind of op per row; how each counts flops and bytes is in `op_work` below, what each saves for backward is an
// Implementation's business (implementation.h), how it computes is a kernel's (executor). [T] = tokens = sequences *
// seq_len.
// clang-format off: a table
enum class OpKind : std::uint8_t {
  embedding,           // in: ids [T]                 params: weight [vocab, width]           out: [T, width]
  position_embedding,  // in: x [T, width]            params: weight [positions, width]       out: x + weight[t %
                       //                                                                     seq_len]
  rms_norm,            // in: x [T, groups*width]     params: weight [width]                  out: same; normalised over
                       //                                                                     `width`, eps
  layer_norm,          // in: x [T, width]            params: weight [width] (, bias [width]) out: same
  linear,              // in: x [T, in]               params: weight [out, in] (, bias [out]) out: [T, out]; transposed:
                       //                             weight is [in, out]
  rotary,              // in: x [T, heads*head_dim]   params: -                               out: same; half-rotation
                       //                                                                     as in Llama (HF), theta
  attention,           // in: q [T, heads*head_dim], k, v [T, kv_heads*head_dim], or one packed qkv [T,
                       // (heads+2*kv_heads)*head_dim]
                       //                             params: -                               out: [T, heads*head_dim];
                       //                                                                     causal, window, alibi
  swiglu,              // in: gate, up [T, width]     params: -                               out: silu(gate) * up; of
                       //                                                                     experts: [S, width];
                       //   or one packed [gate, up] of 2*width
  gelu,                // in: x [T, width]            params: -                               out: gelu(x); tanh: the
                       //                                                                     tanh approximation
  add,                 // in: a, b [T, width]         params: -                               out: a + b
  cross_entropy,       // in: logits [T, vocab], targets [T]   params: -                      out: mean loss over the
                       //                                                                     tokens of the step
                       //                                                                       (scalar)
  opaque,              // flops, bytes and saved bytes only
  // Mixtures of experts. [S] = slots, a fixed number per expert (Experts below); ids name slots.
  moe_route,      // in: logits [T, experts]     params: -                               out: weights [T, top_k],
                  //                                                                     slots [T, top_k] (ids):
                  //   the top_k largest probabilities (of equal ones the lower expert), renormalised: divided by
                  //     their sum
  moe_dispatch,   // in: x [T, width], slots     params: -                               out: [S, width]: rows of
                  //                                                                     x; empty slots: zeros
  expert_linear,  // in: x [S, in]               params: weight [experts, out, in]       out: [S, out]: each
                  //                                                                     expert's slots by its
                  //                                                                       matrix
  moe_combine,    // in: y [S, width], weights, slots   params: -                        out: [T, width]: sum of
                  //                                                                     weight * its slot's row of
                  //                                                                       y
};
// clang-format on
inline constexpr int kOpKinds = 16;
[[nodiscard]] std::string_view name(OpKind);

// How tokens share experts. Each expert has a fixed number of slots, its capacity, so that memory and work do not
// depend on what is routed. Tokens take slots in their order in the micro-batch, and a token's choices theirs; a choice
// that finds its expert full is dropped: it counts as zero and has no gradient, the token's other choices keep their
// weights. With capacity_factor = count / top_k nothing is ever dropped: then, and only then, results do not depend on
// how a batch is split.
struct Experts {
  std::int64_t count = 0, top_k = 0;  // count 0: no experts
  double capacity_factor = 1;
  // ceil(tokens * top_k / count * capacity_factor), at most `tokens`: top_k different experts are chosen.
  [[nodiscard]] std::int64_t capacity(std::int64_t tokens) const;
  friend bool operator==(const Experts&, const Experts&) = default;
};
// A choice in the ids that moe_route makes: expert * capacity + place, or, dropped, -1 - expert.

struct OpShape {
  std::int64_t in = 0, out = 0;                                    // linear
  std::int64_t width = 0, groups = 1;                              // norms, elementwise, embedding
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // rotary, attention; window 0: none
  std::int64_t vocab = 0;                                          // embedding, cross_entropy
  std::int64_t positions = 0;                                      // position_embedding
  Experts experts = {};                                            // mixtures of experts, and a swiglu over their slots
  bool causal = true, alibi = false, packed = false;
  bool transposed = false;            // linear whose weight is stored [in, out] (GPT-2's Conv1D)
  bool tanh = false;                  // gelu
  bool renormalised = false;          // moe_route
  double eps = 1e-5;                  // norms
  double theta = 10000.0;             // rotary
  double opaque_flops_per_token = 0;  // opaque
  std::int64_t opaque_bytes_per_token = 0, opaque_saved_bytes_per_token = 0;
  friend bool operator==(const OpShape&, const OpShape&) = default;
};

struct Op {
  OpKind kind{};
  std::int32_t module = -1;                   // -1: outside the model (the loss)
  std::vector<std::int32_t> inputs, outputs;  // tensor ids
  std::vector<std::int32_t> params;           // parameter ids, in the order of the table above
  OpShape shape;
  friend bool operator==(const Op&, const Op&) = default;
};

// A value that flows between ops. Elements = width * tokens, width * slots where it has experts, or 1 for the loss.
enum class TensorKind : std::uint8_t { ids, activation, loss };
struct Tensor {
  TensorKind kind = TensorKind::activation;
  std::int64_t width = 0;     // elements per token
  bool requires_grad = true;  // false for ids, and for what no trained parameter has a part in
  Experts experts = {};       // a row per slot instead of one per token
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

struct Module {
  std::string name;        // "" for the root, "model.layers.0.mlp", ... as named_modules() prints it
  std::string class_name;  // "LlamaDecoderLayer", "Linear", ...
  std::int32_t parent = -1;
  std::int32_t op_begin = 0,
               op_end = 0;  // its ops are ops[op_begin, op_end), children included; empty: it has no forward of its own
  bool container = false;   // ModuleList / ModuleDict: no forward, cannot be a unit by itself
  bool block = false;       // one of the model's repeated transformer blocks
  friend bool operator==(const Module&, const Module&) = default;
};

struct Parameter {
  std::string name;                   // as named_parameters() prints it
  std::vector<std::string> aliases;   // further names of the same storage (tied weights)
  std::vector<std::int32_t> modules;  // owners: the module that registers it, then those of the aliases
  std::vector<std::int64_t> shape;    // at least one dimension
  bool trainable = true;
  [[nodiscard]] std::int64_t numel() const;
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

struct ModelGraph {
  std::string name;              // "llama3-8b", or what the file calls itself
  std::string family;            // "llama", "gpt2", ...
  std::int64_t max_seq_len = 0;  // what the config allows; 0: not stated
  std::int64_t vocab = 0;
  std::vector<Module> modules;        // pre-order, registration order; modules[0] is the root
  std::vector<Parameter> parameters;  // in named_parameters() order, each storage once
  std::vector<Tensor> tensors;
  std::vector<Op> ops;                  // forward order; the last is the loss
  std::int32_t ids = -1, targets = -1;  // tensors that a batch fills

  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] std::int32_t find_module(std::string_view name) const;  // -1 if absent
  [[nodiscard]] std::string digest() const;  // 16 hex digits over everything that decides a result
  friend bool operator==(const ModelGraph&, const ModelGraph&) = default;
};

// Sizes of one micro-batch on one rank.
struct Workload {
  std::int64_t sequences = 1, seq_len = 1;
  std::int64_t element_bytes = 2;  // of activations
  std::int64_t loss_chunks = 1;    // parts in which the loss is computed, along the sequence
  [[nodiscard]] std::int64_t tokens() const { return sequences * seq_len; }
};

[[nodiscard]] std::int64_t rows(const Experts&, const Workload&);  // tokens; with experts: slots = count * capacity
[[nodiscard]] std::int64_t elements(const Tensor&, const Workload&);

// Arithmetic of one op. Forward; backward of a matrix product is twice it, of attention 2.5 times (cost-model practice:
// the backward recomputes the scores). Causal attention counts half of the square, as published TFLOP/s figures do.
[[nodiscard]] double forward_flops(const Op&, const Workload&);
[[nodiscard]] double backward_flops(const Op&, const Workload&);

// Model flops of a training step per token, for MFU: 6 * (parameters in matrix products) + 12 * layers * heads *
// head_dim * seq_len (the PaLM / nanoGPT convention: full attention square, no recomputation; of experts the top_k that
// a token is routed to).
[[nodiscard]] double model_flops_per_token(const ModelGraph&, std::int64_t seq_len);

// The same model with these parameters, or all parameters in and below these modules, not trained; which tensors take
// part in backward follows. Names as the graph has them, aliases too. Throws InputError(where, ...) for a name that the
// model does not have.
[[nodiscard]] ModelGraph freeze(ModelGraph, std::span<const std::string> modules_or_parameters, std::string_view where);

// Every invariant that the comments above promise; throws InputError(where, ...) naming the first that does not hold.
void check_graph(const ModelGraph&, std::string_view where);

}  // namespace fsdp
