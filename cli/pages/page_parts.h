// What the pages of several commands begin with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/pages/pages.h"
#include "viz/report.h"

namespace fsdp::cli {

// With the command line and the program's version.
[[nodiscard]] ReportPage page_of(std::string command, const CalledWith&);
[[nodiscard]] std::vector<std::string> lines_of(std::string_view text);

// The step of a plan with what is shown beside it: its units, what its memory is made of. Of the first one only; of the
// others the step alone.
void add_step(ReportPage&, std::string name, const Timeline&, const Program&, const ShardingPlan&, const Setup&);

}  // namespace fsdp::cli
