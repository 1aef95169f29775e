#include "models/importers/experts.h"

#include <fmt/format.h>

#include <string>

#include "models/importers/importers.h"

namespace fsdp {

ExpertShape read_experts(JsonObject& config, const ExpertVariant& v, std::int64_t hidden) {
  ExpertShape s;
  s.wide_weights = v.wide_weights;
  s.hidden = hidden;
  s.ffn = config.integer(v.width_key, 1, kMaxWidth / 2);
  // transformers 5 writes one name for all families; older files and other programs write the family's own.
  const std::string_view other = v.count_key == "num_experts" ? "num_local_experts" : "num_experts";
  s.experts.count = config.integer(!config.has(v.count_key) && config.has(other) ? other : v.count_key, 1, kMaxExperts);
  s.experts.top_k = config.integer("num_experts_per_tok", 1, kMaxExperts);
  if (s.experts.top_k > s.experts.count)
    config.refuse("num_experts_per_tok", fmt::format("{} of {} experts", s.experts.top_k, s.experts.count),
                  "choose at most as many as there are");
  s.experts.capacity_factor =
      config.optional_number("capacity_factor", 1e-6, static_cast<double>(kMaxExperts)).value_or(1.0);
  s.renormalised = v.always_renormalised || config.optional_boolean("norm_topk_prob").value_or(false);
  require_boolean(config, "output_router_logits", false);  // true adds an auxiliary loss
  if (const auto noise = config.optional_number("router_jitter_noise", 0, 1); noise.value_or(0) != 0)
    config.refuse("router_jitter_noise", "noise is not modelled", "only 0 is");
  require_absent(config, "clip_qkv");
  if (config.optional_integer("decoder_sparse_step", 1, kMaxLayers).value_or(1) != 1)
    config.refuse("decoder_sparse_step", "dense layers between those with experts are not modelled", "only 1 is");
  if (const auto dense = config.find("mlp_only_layers"); dense && !dense->array().empty())
    config.refuse("mlp_only_layers", "layers without experts are not modelled", "only [] is");
  return s;
}

ExpertModules add_experts(GraphBuilder& b, std::int32_t parent, std::string_view class_prefix, const ExpertVariant& v,
                          const ExpertShape& s) {
  const std::string prefix(class_prefix);
  ExpertModules m;
  const auto router = [&] {
    m.router = b.module(parent, "gate", prefix + "TopKRouter");
    b.parameter(m.router, "weight", {s.experts.count, s.hidden});
  };
  if (v.router_first) router();
  m.experts = b.module(parent, "experts", prefix + "Experts");
  b.parameter(m.experts, "gate_up_proj", {s.experts.count, 2 * s.ffn, s.hidden});
  b.parameter(m.experts, "down_proj", {s.experts.count, s.hidden, s.ffn});
  b.module(m.experts, "act_fn", "SiLUActivation");
  if (!v.router_first) router();
  return m;
}

std::int32_t run_experts(GraphBuilder& b, const ExpertModules& m, const ExpertShape& s, std::int32_t x) {
  const auto routing = b.moe_route(m.router, b.linear(m.router, x), s.experts, s.renormalised, s.wide_weights);
  const auto rows = b.moe_dispatch(m.experts, x, routing, s.experts);
  const auto wide = b.packed_swiglu(m.experts, b.expert_linear(m.experts, 0, rows));
  return b.moe_combine(m.experts, b.expert_linear(m.experts, 1, wide), routing);
}

}  // namespace fsdp
