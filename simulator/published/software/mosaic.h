// What Mosaic's published runs ran on. Their tables seldom say; the histories of mosaicml/examples, llm-foundry and
// Composer do.
#pragma once

#include <string_view>

#include "simulator/published/software/run_software.h"

namespace fsdp {

// Sets what is not as today. `generation`: "torch-2.1", or empty.
void set_mosaic(const PublishedRun&, std::string_view generation, RunImplementation&);

}  // namespace fsdp
