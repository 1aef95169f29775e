// The feed-forward of mixtures of experts, as transformers 5 builds it: a router, the experts' matrices stacked in two
// parameters, and in DeepSeek's form experts that every token goes through.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/importers/builder.h"
#include "models/input/json.h"

namespace fsdp {

// How a family names and registers its experts.
struct ExpertVariant {
  std::string_view count_key, width_key;  // config keys: number of experts, width of one
  bool router_first = true;               // its router is registered before its experts
  bool always_renormalised = false;       // false: as norm_topk_prob says
  bool wide_weights = false;              // its router leaves the weights of choices in fp32
  // DeepSeek's form: the router is in fp32 and may choose in groups; shared experts beside; the first layers are dense.
  bool shared = false;
  struct {
    std::int64_t dense_layers = 0, groups = 1, chosen_groups = 1;
    double factor = 1;
    std::int64_t shared_experts = 1;
  } absent = {};         // of that form, where the config says nothing
  bool softmax = false;  // of that form DeepSeek-V2's; else choices are by sigmoids, with a bias that is no parameter
};

struct ExpertShape {
  Experts experts;
  std::int64_t hidden = 0, ffn = 0;
  bool renormalised = false, wide_weights = false;
  // Of the form with shared experts.
  bool shared = false, sigmoid = false;
  std::int64_t shared_ffn = 0, dense_layers = 0, groups = 1, chosen_groups = 1;
  double factor = 1;
  std::vector<std::string> notes;  // keys that transformers does not read (ModelGraph::notes)
};

// num_experts_per_tok, and our own key capacity_factor (struct Experts; absent: 1). Refuses auxiliary losses, noise,
// dense layers between.
[[nodiscard]] ExpertShape read_experts(JsonObject& config, const ExpertVariant&, std::int64_t hidden);

// gate_proj, up_proj and down_proj: silu(gate) times up, and down.
struct GatedModules {
  std::int32_t self = kNone, gate = kNone, up = kNone, down = kNone;
};
[[nodiscard]] GatedModules add_gated(GraphBuilder&, std::int32_t self, std::int64_t hidden, std::int64_t ffn,
                                     bool bias);
[[nodiscard]] std::int32_t run_gated(GraphBuilder&, const GatedModules&, std::int32_t x);

struct ExpertModules {
  std::int32_t self = kNone, router = kNone, experts = kNone;
  GatedModules shared = {};
};
[[nodiscard]] ExpertModules add_experts(GraphBuilder&, std::int32_t self, std::string_view class_prefix,
                                        const ExpertVariant&, const ExpertShape&);
[[nodiscard]] std::int32_t run_experts(GraphBuilder&, const ExpertModules&, const ExpertShape&, std::int32_t x);

}  // namespace fsdp
