// The goodput of a long run on a terminal, and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/price.h"
#include "simulator/goodput/goodput.h"
#include "simulator/records/step_time.h"

namespace fsdp::cli {

struct GoodputAnswer {
  LongRun run;
  std::optional<StepTimeDistribution> steps;  // where asked for; then the run's step is their mean
  std::int64_t ranks = 1, checkpoint_bytes = 0;
  bool fits = true;  // false: out of memory; all the rest is then of a machine with more
  bool async_save = false;
  double written = 0;  // seconds in which the storage takes a checkpoint
  // At --save-every, else at the best interval. With spares, simulated waiting replaces that of the closed form.
  Goodput goodput, expected;
  std::optional<SimulatedGoodput> simulated;
  BestInterval best;  // as `goodput`
  std::uint64_t seed = 0;
  std::optional<TrainingCost> cost;      // where a price is known: of tokens that `goodput` keeps
  std::vector<std::string> assumptions;  // one sentence each
};
[[nodiscard]] std::string goodput_text(const GoodputAnswer&);
// "fsdp-plan/goodput/1".
[[nodiscard]] std::string goodput_json(const GoodputAnswer&);

}  // namespace fsdp::cli
