// How differences between published runs read: on a terminal, in docs/accuracy.md.
#pragma once

#include <cstddef>
#include <string>

#include "simulator/published/pairs.h"

namespace fsdp::cli {

// The summary by knob, and the `worst` pairs whose difference is furthest off (all of them, by knob, if there are no
// more).
[[nodiscard]] std::string pairs_text(const PairReport&, std::size_t worst);
// The summary as a Markdown table.
[[nodiscard]] std::string pairs_markdown(const PairReport&);

}  // namespace fsdp::cli
