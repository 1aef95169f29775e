// --model, and the sizes of `--model generic`.
#pragma once

#include <cstdint>
#include <string>

#include "cli/command.h"
#include "cli/options.h"
#include "models/graph.h"

namespace fsdp::cli {

// --layers --hidden ... --experts-per-token. add_setup_flags has them, too.
void add_model_flags(const Command&, Flags&);
// The model of --model, and of its sizes where that is generic. What its file says beside it goes to standard error.
[[nodiscard]] ModelGraph model_from_flags(const Flags&, std::int64_t seq_len);
// The sizes that are given, as one would type them again, each with a blank before it.
[[nodiscard]] std::string sizes_text(const Flags&);

}  // namespace fsdp::cli
