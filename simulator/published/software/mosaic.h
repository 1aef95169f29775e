// What Mosaic's published runs ran on. Their tables seldom say; the histories of mosaicml/examples, llm-foundry and
// Composer do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/implementation.h"
#include "models/units.h"
#include "planner/plan.h"
#include "simulator/published/reading/published_runs.h"

namespace fsdp {

struct MosaicRun {
  const Implementation* implementation = nullptr;  // nullptr: as today
  Bytes kernels_loaded;                            // that this software never runs, in each GPU's CUDA context
  TorchVersion torch;                              // of FullyShardedDataParallel, where not the newest's
  bool reduces_as_computed = false;                // gradients travel in param_dtype
  std::vector<std::string> assumptions;            // of what the row does not say, or says otherwise
};

// `generation`: "torch-2.1", or empty.
[[nodiscard]] MosaicRun mosaic_run(const PublishedRun&, std::string_view generation);

}  // namespace fsdp
