// The adapters of a model (models/graph/lora.h), read back from its modules, as peft is told them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct Adapters {
  std::int64_t rank = 0;
  double alpha = 0, dropout = 0;
  std::vector<std::string> targets;  // by the last part of their names where every layer of that name has an adapter
  FourBits base = FourBits::none;
  std::string head;  // the layer that stays in 16 bits
};
[[nodiscard]] std::optional<Adapters> adapters_of(const ModelGraph&);  // empty: there are none, or PyTorch brings them

[[nodiscard]] std::string lora_config(const Adapters&);  // Python: "LoraConfig(r=16, ...)"
// What a script of one's own has to do for them, and for weights in 4 bits.
[[nodiscard]] std::string adapters_by_hand(const Adapters&, const ShardingPlan&);

}  // namespace fsdp
