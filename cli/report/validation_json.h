// A validation as one JSON document: "fsdp-plan/validation/1".
#pragma once

#include <string>

#include "simulator/records/compare.h"

namespace fsdp::cli {

[[nodiscard]] std::string validation_json(const ValidationReport&, const Tolerances&);

}  // namespace fsdp::cli
