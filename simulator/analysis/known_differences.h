// Where PyTorch itself is known to hold other bytes than the Step says. tests/torch/random/random_plans.py compares
// every other byte with PyTorch, plan by plan, and demands that these are said with their size.
//
//   for (const KnownDifference& d : known_differences(program, plan, model)) text(d.kind), d.bytes;
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"

namespace fsdp {

enum class DifferenceKind : std::uint8_t {
  tables,            // PyTorch has more from the first layer's forward to the end of its backward
  whole_operations,  // PyTorch has fewer where one operation makes several tensors one after the other
  adapted_units,     // PyTorch has more between the hooks of units that are adapted layers
  latent_parts,      // PyTorch has more, or a little fewer, between the hooks of units inside of latent attention
  wide_gradients,    // PyTorch has more from the backward of norms to the end of their units'
};
inline constexpr int kDifferenceKinds = 5;
[[nodiscard]] std::string_view name(DifferenceKind);  // "tables of angles and positions"
[[nodiscard]] std::string_view text(DifferenceKind);  // what PyTorch does, and when: one sentence without a full stop
[[nodiscard]] constexpr bool pytorch_has_more(DifferenceKind k) { return k != DifferenceKind::whole_operations; }

struct KnownDifference {
  DifferenceKind kind{};
  std::int64_t bytes = 0;  // at most; above 0
  friend bool operator==(const KnownDifference&, const KnownDifference&) = default;
};

// Of a steady step, up to its optimizer. Nothing for `native`, whose Step is what our own executor does, and for
// `ddp` and `fsdp1` only what all dialects share.
[[nodiscard]] std::vector<KnownDifference> known_differences(const Program&, const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp
