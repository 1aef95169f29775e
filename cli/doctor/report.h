// How an examination reads: on a terminal, and as one JSON object ("fsdp-plan/doctor/1").
#pragma once

#include <string>

#include "cli/doctor/examination.h"

namespace fsdp::cli {

[[nodiscard]] std::string examination_verdict(const Examination&);  // one line
[[nodiscard]] std::string examination_tables(const Examination&);
[[nodiscard]] std::string examination_json(const Examination&);

}  // namespace fsdp::cli
