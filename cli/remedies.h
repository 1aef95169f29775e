// What would make a plan fit: changes of the command line, each tried by simulating the plan with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "planner/search.h"

namespace fsdp::cli {

struct Remedy {
  std::string change;  // "--compile", "--gpus 32"
  Score score;         // of the plan with it
};

// At most some 20 simulations, and a search where flags had narrowed the first one. Of changes with a size (GPUs,
// sequence length) the smallest that makes the plan fit, else the largest that was tried. Only what fits, or needs less
// memory by 1 % or more. `told` hears of each trial.
[[nodiscard]] std::vector<Remedy> try_remedies(const Flags&, const Setup&, const Candidate& plan,
                                               const std::function<void(const std::string&)>& told);

// The compiled variant of the same plan, if it exists and fits.
[[nodiscard]] std::vector<Remedy> try_compiling(const Flags&, const Setup&, const Candidate& plan);

// A line each; empty for none.
[[nodiscard]] std::string remedies_text(const std::vector<Remedy>&, Bytes limit);

}  // namespace fsdp::cli
