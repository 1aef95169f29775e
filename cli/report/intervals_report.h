// How sure predictions are, held against published runs.
#pragma once

#include <string>

#include "simulator/published/accuracy.h"

namespace fsdp::cli {

// The quality of 80 % intervals and of the probability of running out of memory, each source predicted by all others,
// and the constants of the fit to all. `markdown`: as tables of a document. The report must have every peak.
[[nodiscard]] std::string intervals_text(const AccuracyReport&, bool markdown);

}  // namespace fsdp::cli
