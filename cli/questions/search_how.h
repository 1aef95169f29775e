// How a question about plans is searched: how thoroughly, and over which numbers of tensor ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "planner/search.h"

namespace fsdp::cli {

struct SearchHow {
  Effort effort = Effort::joint;
  bool splits = true;       // plans over several tensor ranks, too, where --tensor says nothing
  std::string target = {};  // a format of `emit`: only plans that it can say; empty: any
  bool strict = true;       // also in what flags fix; false: what they fix may be lost
};

// The question's flags for a target of `emit` (or for none): where they name no implementation, and the model is not an
// exported one, that which such files are for, with a note.
[[nodiscard]] Flags for_target(Flags, const std::string& target);

// The numbers of tensor ranks to search: that of --tensor, or all that are ranks of one node.
[[nodiscard]] std::vector<std::int64_t> tensor_tried(const Flags&, const Setup&, const SearchHow&);
// Of plans with one of these numbers. The setup outlives the options.
[[nodiscard]] SearchOptions options_of(const Flags&, const Setup&, const SearchHow&, std::int64_t tensor);

// What throws InputError for a plan that the target cannot say; empty where there is no target. The model outlives it.
[[nodiscard]] std::function<void(const ShardingPlan&)> rule_of(const SearchHow&, const Flags&, const ModelGraph&);

// Of plans for this setup, which outlives it; for each number of tensor ranks the model is split once.
[[nodiscard]] ScoreFunction scored_by(const Setup&);

}  // namespace fsdp::cli
