// What the pages of several commands begin with.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cli/pages/pages.h"
#include "viz/report.h"

namespace fsdp::cli {

// With the command line and the program's version.
[[nodiscard]] ReportPage page_of(std::string command, const CalledWith&);
[[nodiscard]] std::vector<std::string> lines_of(std::string_view text);

// The step of a plan, and it with other bandwidths. Of the first one also its units and modules, and what its memory is
// made of.
void add_step(ReportPage&, std::string name, const Timeline&, const Program&, const ShardingPlan&, const Setup&);

// Of a measurement the ranks whose timelines a page holds, by index: those that have one, at most eight.
[[nodiscard]] std::vector<std::size_t> ranks_shown(const Measurement&, std::size_t operations);

}  // namespace fsdp::cli
