// The goodput of a long run on a terminal, and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/goodput/goodput.h"

namespace fsdp::cli {

struct GoodputAnswer {
  LongRun run;
  std::int64_t ranks = 1, checkpoint_bytes = 0;
  bool async_save = false;
  Goodput expected;            // at --save-every, else at the best interval
  SimulatedGoodput simulated;  // the same
  BestInterval best;
  std::uint64_t seed = 0;
  std::vector<std::string> assumptions;  // one sentence each
  // Monte Carlo decides where the expectation is an approximation.
  [[nodiscard]] const Goodput& goodput() const { return run.spares ? simulated.mean : expected; }
};
[[nodiscard]] std::string goodput_text(const GoodputAnswer&);
// "fsdp-plan/goodput/1".
[[nodiscard]] std::string goodput_json(const GoodputAnswer&);

}  // namespace fsdp::cli
