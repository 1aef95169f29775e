// Changes of the command line that would make a plan fit, in words: planner/search/remedies.h finds and tries them.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/questions/search_how.h"
#include "cli/terminal/terminal.h"
#include "planner/bound/tensor_sizes.h"
#include "planner/search/remedies.h"

namespace fsdp::cli {

struct FlagRemedy {
  std::string change;             // "--compile", "--gpus 32"
  Score score;                    // of the plan with it
  std::string another_plan = {};  // its label, where that one fits and the plan itself does not
};

// Of a plan that does not fit, all that help; they include a search of what flags had left out of the first one. Of a
// tight plan, the changes with which it fits, or another plan does. None that the target cannot say. `told` hears of
// each trial. `flags` are the question's, of any number of tensor ranks if they say none. Without `sizes` neither GPUs
// nor the sequence are changed.
[[nodiscard]] std::vector<FlagRemedy> try_remedies(const Flags& flags, const SearchHow&, const Setup&,
                                                   const Candidate& plan,
                                                   const std::function<void(const std::string&)>& told,
                                                   bool sizes = true);

// Where nothing fits: of the plan that needs least, all that help; of the one without tensor ranks, which more settings
// go with, those with which it fits.
[[nodiscard]] std::vector<FlagRemedy> remedies_of(const Flags&, const SearchHow&, const Setup&, const SizesResult&,
                                                  const std::function<void(const std::string&)>& told);

// `told` that shows them. `progress` outlives it.
[[nodiscard]] std::function<void(const std::string&)> trials_said(Progress& progress);

// A line each; empty for none.
[[nodiscard]] std::string remedies_text(const std::vector<FlagRemedy>&, const Setup&);
[[nodiscard]] nlohmann::ordered_json remedies_json(const std::vector<FlagRemedy>&);

}  // namespace fsdp::cli
