// plan --max and --min: the largest sequence or micro-batch, or the fewest GPUs, with which a plan fits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/questions/search_how.h"

namespace fsdp::cli {

struct SizeQuestion {
  Text max, min;  // of --max and --min
};
void add_size_question(const Command&, SizeQuestion&);

// What a plan is then picked for: the flags with the size that was found, or, where none fits, with the one
// of those that were searched that comes nearest.
struct SizeAnswer {
  Flags flags;
  std::string text;  // a line: the answer, the next size, which is not one, and the number of searches
  std::string flag;  // "--seq-len"
  std::optional<std::int64_t> answer, next;  // none: none fits; no next size exists
  std::string why_not_next;                  // "tight", "does not fit", or the rule that it breaks
  int searches = 0;
};
// Nothing without --max and --min. Throws InputError for sizes that are given, too, and where every size is refused.
[[nodiscard]] std::optional<SizeAnswer> answer_size_question(const SizeQuestion&, const Flags&, const SearchHow&);
[[nodiscard]] nlohmann::ordered_json size_json(const SizeAnswer&);

}  // namespace fsdp::cli
