// What a search found for one question: what `plan` answers, and what questions about several plans are made of.
#pragma once

#include <functional>

#include "cli/options.h"
#include "planner/search.h"

namespace fsdp::cli {

struct FoundPlan {
  Flags flags;  // of the question, with what was decided beside a plan (the size that --max asks for)
  Setup setup;
  PlanResult result;
};
// Throws InputError about the flags.
using FindPlan = std::function<FoundPlan(const Flags&)>;

// Has the user asked to end with what there is?
using Stop = std::function<bool()>;

}  // namespace fsdp::cli
