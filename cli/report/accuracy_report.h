// How the errors of published runs read: on a terminal, in docs/accuracy.md, as a picture.
#pragma once

#include <cstddef>
#include <string>

#include "simulator/published/accuracy.h"

namespace fsdp::cli {

// The `worst` rows that are furthest off (all of them, in the file's order, if there are no more), the summary, what
// was assumed, what was skipped. `assumed`: also row by row.
[[nodiscard]] std::string accuracy_text(const AccuracyReport&, std::size_t worst, bool assumed);
// What was assumed where rows say nothing, and for how many of them; empty if nothing was.
[[nodiscard]] std::string assumptions_text(const AccuracyReport&);
// "note: nothing is read from the column "seqlen" (did you mean "seq_len"?)"; empty for none.
[[nodiscard]] std::string ignored_columns_text(const AccuracyReport&);

// "Nothing was predicted: all 5 rows are skipped."
[[nodiscard]] std::string nothing_predicted(const AccuracyReport&);
// The summary as a Markdown table.
[[nodiscard]] std::string accuracy_markdown(const AccuracyReport&);
// Measured against predicted step times, an SVG document.
[[nodiscard]] std::string accuracy_plot(const AccuracyReport&);

[[nodiscard]] std::string errors_line(const ErrorSummary&);  // "mean 4.1 %, median 2.9 %, worst 18.3 %"

}  // namespace fsdp::cli
