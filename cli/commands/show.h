// The five things that `show` looks into, one file each where they are long.
#pragma once

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"

namespace fsdp::cli {

struct ShowFlags {
  Flags shared;
  Text name;             // of the model or cluster, or the plan file
  Text emit;             // show plan
  Text which, first;     // show step
  Text topology;         // show cluster: a dump of NCCL's
  bool costs = false;    // show model
  bool file = false;     // show cluster
  bool layout = false;   // show plan
  bool graph = false;    // show plan
  bool buffers = false;  // show step
  bool json = false;
};

void add_show_model(const Command& show);
void add_show_cluster(const Command& show);
void add_show_plan(const Command& show);
void add_show_step(const Command& show);
void add_show_trace(const Command& show);

}  // namespace fsdp::cli
