// Builds a ModelGraph for the importers, in two passes: first the module tree with its parameters, in the order in
// which PyTorch registers them; then the ops, in the order in which the forward runs them.
//
//   GraphBuilder b("llama", "LlamaForCausalLM");
//   const auto q = b.linear_module(attention, "q_proj", hidden, heads * head_dim, /*bias=*/false);
//   ...
//   x = b.linear(q, x);
//   return b.finish(logits, vocab, max_seq_len, where);    // adds the loss, op ranges, order of parameters; checks all
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/graph.h"
#include "models/input/limits.h"

namespace fsdp {

class GraphBuilder {
 public:
  using Id = std::int32_t;  // of a module or of a tensor

  GraphBuilder(std::string_view family, std::string_view root_class);

  // Modules. The root is 0.
  Id module(Id parent, std::string_view name, std::string_view class_name);
  Id list(Id parent, std::string_view name);                           // a ModuleList
  Id block(Id list, std::int64_t index, std::string_view class_name);  // one of its repeated blocks
  Id linear_module(Id parent, std::string_view name, std::int64_t in, std::int64_t out, bool bias,
                   std::string_view class_name = "Linear");
  Id conv1d_module(Id parent, std::string_view name, std::int64_t in,
                   std::int64_t out);  // GPT-2's: weight [in, out], bias
  Id embedding_module(Id parent, std::string_view name, std::int64_t rows, std::int64_t width,
                      std::string_view class_name = "Embedding");
  Id norm_module(Id parent, std::string_view name, std::string_view class_name, std::int64_t width, bool bias);
  Id lm_head(Id embedding, bool tied);                                                // tied: to the embedding's weight
  void parameter(Id module, std::string_view leaf, std::vector<std::int64_t> shape);  // of a module of another kind

  // Ops; each returns the tensor it makes. Extents come from the module's parameters.
  Id ids() const { return graph_.ids; }
  Id embedding(Id module, Id ids);
  Id position(Id module, Id x);
  Id rms_norm(Id module, Id x, std::int64_t groups, double eps, const OpShape& variant = {});
  Id layer_norm(Id module, Id x, double eps);
  Id linear(Id module, Id x, bool in_fp32 = false);
  Id rotary(Id module, Id x, OpShape shape);
  std::pair<Id, Id> rotary_of_parts(Id module, Id q, Id k, const OpShape& shape);  // k: or a latent, with shape.in
  Id attention(Id module, const std::vector<Id>& qkv, OpShape shape);
  Id swiglu(Id module, Id gate, Id up);
  Id packed_swiglu(Id module, Id gate_up, bool clamped = false);
  Id gelu(Id module, Id x, bool tanh, bool fast = false);
  Id geglu(Id module, Id gate, Id up);
  Id scale(Id module, Id x, double factor);
  Id soft_cap(Id module, Id x, double cap);
  Id add(Id module, Id a, Id b);
  struct Routing {
    Id weights, slots;
    bool wide_weight = false;  // OpShape's
  };
  Routing moe_route(Id module, Id logits, const Experts&, OpShape variant);
  Id moe_dispatch(Id module, Id x, const Routing&, const Experts&, bool biased = false);
  // By the module's `which`-th parameter, [experts, out, in]. Biased: [experts, in, out], and the next one is the bias.
  Id expert_linear(Id module, std::size_t which, Id x, bool biased = false);
  Id moe_combine(Id module, Id y, const Routing&);

  // Throws InputError(where, ...) if the graph breaks a rule (impossible sizes).
  [[nodiscard]] ModelGraph finish(Id logits, std::int64_t vocab, std::optional<std::int64_t> max_seq_len,
                                  std::string_view where);

 private:
  Id tensor(std::int64_t width, const Experts& = {});
  Id op(OpKind, Id module, std::vector<Id> inputs, const OpShape&, std::int64_t width);
  Id op_without_weight(OpKind, Id module, Id x, OpShape);
  [[nodiscard]] const std::vector<std::int64_t>& weight_shape(Id module) const;
  [[nodiscard]] std::int64_t width(Id tensor) const;
  [[nodiscard]] std::string child_name(Id parent, std::string_view name) const;

  ModelGraph graph_;
  std::vector<std::vector<std::int32_t>> params_of_;  // per module, in registration order
};

}  // namespace fsdp
