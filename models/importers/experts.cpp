#include "models/importers/experts.h"

#include <fmt/format.h>

#include <string>

#include "models/importers/importers.h"
#include "models/input/suggest.h"

namespace fsdp {

namespace {

// Keys of published files that say something else than transformers builds.
std::vector<std::string> unread(JsonObject& config, bool softmax) {
  std::vector<std::string> notes;
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"})
    if (config.optional_integer(key, 0, kMaxLayers).value_or(0) > 0)
      notes.push_back(std::string(key) + " is left out: transformers trains without these layers");
  const std::string scores = softmax ? "softmax" : "sigmoid";
  if (config.optional_text("scoring_func").value_or(scores) != scores)
    notes.push_back("scoring_func is left out: transformers does not read it, and takes " + scores);
  if (!softmax && config.optional_text("topk_method").value_or("noaux_tc") != "noaux_tc")
    notes.emplace_back("topk_method is left out: transformers does not read it, and takes noaux_tc");
  if (softmax && config.optional_boolean("norm_topk_prob").value_or(false))
    notes.emplace_back("norm_topk_prob is left out: transformers does not read it, and divides by no sum");
  if (config.optional_integer("moe_layer_freq", 0, kMaxLayers).value_or(1) != 1)
    notes.emplace_back("moe_layer_freq is left out: transformers does not read it, and has experts in every layer");
  return notes;
}

// Groups are ranked by their two best experts, in DeepSeek-V2 by their best one, and there only if topk_method says so.
void read_groups(JsonObject& config, const ExpertVariant& v, ExpertShape& s) {
  const std::string method =
      config.optional_text("topk_method").value_or(config.has("topk_method") ? "null" : "greedy");
  s.groups = config.optional_integer("n_group", 1, kMaxExperts).value_or(v.absent.groups);
  s.chosen_groups = config.optional_integer("topk_group", 1, kMaxExperts).value_or(v.absent.chosen_groups);
  if (v.softmax && method == "greedy") {
    s.groups = s.chosen_groups = 1;
    return;
  }
  if (v.softmax && method != "group_limited_greedy")
    config.refuse("topk_method", "\"" + printable(method) + "\" is none of transformers'",
                  "use greedy or group_limited_greedy");
  if (v.softmax && !config.optional_integer("topk_group", 1, kMaxExperts))
    config.refuse("topk_group", "is missing, and group_limited_greedy needs it", "add it, or use the method greedy");
  if (v.softmax && s.groups < 2)
    config.refuse("n_group", "one group limits nothing", "use two or more, or the topk_method greedy");
  if (s.experts.count % s.groups != 0 || s.experts.count / s.groups < (v.softmax ? 1 : 2))
    config.refuse("n_group", fmt::format("{} groups of {} experts", s.groups, s.experts.count),
                  fmt::format("groups are of {} or more, all of one size", v.softmax ? "one expert" : "two experts"));
  if (s.chosen_groups > s.groups)
    config.refuse("topk_group", fmt::format("{} of {} groups (n_group)", s.chosen_groups, s.groups),
                  "choose at most as many as there are");
  if (const std::int64_t most = s.experts.count / s.groups * s.chosen_groups; s.experts.top_k > most)
    config.refuse(
        "num_experts_per_tok",
        fmt::format("{} of the {} experts in {} of {} groups", s.experts.top_k, most, s.chosen_groups, s.groups),
        "use a larger topk_group");
}

// What DeepSeek's form has beside.
void read_shared(JsonObject& config, const ExpertVariant& v, ExpertShape& s) {
  s.shared = true;
  s.sigmoid = !v.softmax;
  s.notes = unread(config, v.softmax);
  s.dense_layers = config.optional_integer("first_k_dense_replace", 0, kMaxLayers).value_or(v.absent.dense_layers);
  s.shared_ffn = config.optional_integer("n_shared_experts", 1, kMaxExperts).value_or(v.absent.shared_experts) * s.ffn;
  if (s.shared_ffn > kMaxWidth)
    config.refuse("n_shared_experts", fmt::format("makes a width of {}", s.shared_ffn),
                  fmt::format("at most {} is possible", kMaxWidth));
  s.factor = config.optional_number("routed_scaling_factor", 1e-9, 1e9).value_or(v.absent.factor);
  read_groups(config, v, s);
}

}  // namespace

ExpertShape read_experts(JsonObject& config, const ExpertVariant& v, std::int64_t hidden) {
  ExpertShape s;
  s.wide_weights = v.wide_weights;
  s.hidden = hidden;
  s.ffn = config.integer(v.width_key, 1, kMaxWidth / 2);
  // transformers 5 writes one name for all families; older files and other programs write the family's own.
  const std::string_view other = v.count_key == "num_local_experts" ? "num_experts" : "num_local_experts";
  s.experts.count = config.integer(!config.has(v.count_key) && config.has(other) ? other : v.count_key, 1, kMaxExperts);
  if (const auto same = config.optional_integer(other, 1, kMaxExperts).value_or(s.experts.count);
      same != s.experts.count)
    config.refuse(other, fmt::format("{}, and {} is {}", same, v.count_key, s.experts.count), "leave one of them out");
  s.experts.top_k = config.integer("num_experts_per_tok", 1, kMaxExperts);
  if (s.experts.top_k > s.experts.count)
    config.refuse("num_experts_per_tok", fmt::format("{} of {} experts", s.experts.top_k, s.experts.count),
                  "choose at most as many as there are");
  s.experts.capacity_factor =
      config.optional_number("capacity_factor", 1e-6, static_cast<double>(kMaxExperts)).value_or(1.0);
  s.renormalised = v.always_renormalised ||
                   config.optional_boolean("norm_topk_prob").value_or(v.shared && !config.has("norm_topk_prob"));
  if (v.shared) read_shared(config, v, s);
  if (v.softmax) s.renormalised = false;
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

GatedModules add_gated(GraphBuilder& b, std::int32_t self, std::int64_t hidden, std::int64_t ffn, bool bias) {
  GatedModules m{.self = self};
  m.gate = b.linear_module(self, "gate_proj", hidden, ffn, bias);
  m.up = b.linear_module(self, "up_proj", hidden, ffn, bias);
  m.down = b.linear_module(self, "down_proj", ffn, hidden, bias);
  b.module(self, "act_fn", "SiLUActivation");
  return m;
}

std::int32_t run_gated(GraphBuilder& b, const GatedModules& m, std::int32_t x) {
  const auto gate = b.linear(m.gate, x);
  const auto up = b.linear(m.up, x);
  return b.linear(m.down, b.swiglu(m.self, gate, up));
}

ExpertModules add_experts(GraphBuilder& b, std::int32_t self, std::string_view class_prefix, const ExpertVariant& v,
                          const ExpertShape& s) {
  const std::string prefix(class_prefix);
  ExpertModules m{.self = self};
  const auto router = [&] {
    m.router = b.module(self, "gate", prefix + (v.shared ? "TopkRouter" : "TopKRouter"));
    b.parameter(m.router, "weight", {s.experts.count, s.hidden});
  };
  if (v.router_first) router();
  m.experts = b.module(self, "experts", prefix + "Experts");
  b.parameter(m.experts, "gate_up_proj", {s.experts.count, 2 * s.ffn, s.hidden});
  b.parameter(m.experts, "down_proj", {s.experts.count, s.hidden, s.ffn});
  b.module(m.experts, "act_fn", "SiLUActivation");
  if (!v.router_first) router();
  if (v.shared)
    m.shared = add_gated(b, b.module(self, "shared_experts", prefix + "MLP"), s.hidden, s.shared_ffn, false);
  return m;
}

std::int32_t run_experts(GraphBuilder& b, const ExpertModules& m, const ExpertShape& s, std::int32_t x) {
  const auto logits = b.linear(m.router, x, /*in_fp32=*/s.shared);
  const auto routing = b.moe_route(m.router, logits, s.experts,
                                   {.groups = s.groups,
                                    .renormalised = s.renormalised,
                                    .sigmoid = s.sigmoid,
                                    .chosen_groups = s.chosen_groups,
                                    .in_fp32 = s.shared && !s.sigmoid,
                                    .factor = s.factor,
                                    .wide_weight = s.wide_weights});
  const auto rows = b.moe_dispatch(m.experts, x, routing, s.experts);
  const auto wide = b.packed_swiglu(m.experts, b.expert_linear(m.experts, 0, rows));
  const auto mixed = b.moe_combine(m.experts, b.expert_linear(m.experts, 1, wide), routing);
  return s.shared ? b.add(m.self, mixed, run_gated(b, m.shared, x)) : mixed;
}

}  // namespace fsdp
