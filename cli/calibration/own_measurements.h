// `calibrate --from`: costs moved to what `fsdp-plan run` or a recorder of PyTorch measured of the user's own plans.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace fsdp::cli {

struct OwnMeasurements {
  std::vector<std::string> measurements, plans;  // files; which plan a measurement is of is found by digest
  Flags shared;                                  // --model, its sizes, --lora, --implementation, --compile
  Text cluster, costs;
};

struct OwnCosts {
  Costs costs;
  std::string tables;              // what moved, and the errors, for people
  std::vector<std::string> notes;  // reasons to doubt
};

// Throws InputError: files that cannot be read, measurements of other models or of plans that are not given, without
// step times, or of different platforms.
[[nodiscard]] OwnCosts costs_from_measurements(const OwnMeasurements&);

}  // namespace fsdp::cli
