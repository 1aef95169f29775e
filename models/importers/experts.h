// The feed-forward of mixtures of experts, as transformers 5 builds it: a router, and the experts' matrices stacked in
// two parameters.
#pragma once

#include <cstdint>
#include <string_view>

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
};

struct ExpertShape {
  Experts experts;
  std::int64_t hidden = 0, ffn = 0;
  bool renormalised = false, wide_weights = false;
};

// num_experts_per_tok, and our own key capacity_factor (struct Experts; absent: 1). Refuses auxiliary losses, noise,
// dense layers between.
[[nodiscard]] ExpertShape read_experts(JsonObject& config, const ExpertVariant&, std::int64_t hidden);

struct ExpertModules {
  std::int32_t router = kNone, experts = kNone;
};
[[nodiscard]] ExpertModules add_experts(GraphBuilder&, std::int32_t parent, std::string_view class_prefix,
                                        const ExpertVariant&, const ExpertShape&);
[[nodiscard]] std::int32_t run_experts(GraphBuilder&, const ExpertModules&, const ExpertShape&, std::int32_t x);

}  // namespace fsdp
