// The plan that a framework's configuration is: the reverse of planner/emit.h, as settings of a plan.
//
//   const ReadConfig c = read_config(text, "accelerate.yaml", model);
//   c.settings                   // {"wrap", "class:LlamaDecoderLayer", "fsdp_config.fsdp_transformer_..."}, ...
//   c.unread                     // keys that are not known here, and may change the plan
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct ConfigSetting {
  std::string name;   // of the plan: "wrap", "reshard_after_forward", "gpus"; "units": how many it lists
  std::string value;  // as that setting is typed
  std::string key;    // of the configuration; empty: what the framework does where nothing is said
};

struct ReadConfig {
  std::string format = {};                      // "Accelerate", "torchtitan", ...
  std::string implementation = {};              // whose kernels train: "hf", "torchtitan"
  std::vector<ConfigSetting> settings = {};     // each name once
  std::optional<std::vector<Unit>> units = {};  // instead of "wrap" and "reshard_after_forward": no flags say these
  bool compile = false, async_tensor = false;
  bool one_dtype = false;                // kept, computed and reduced in one type, which the script decides
  bool loss_parallel = true;             // TensorPlan::loss_parallel: no flag says it
  std::vector<std::string> notes = {};   // what stands for something else here
  std::vector<std::string> unread = {};  // "fsdp_config.fsdp_foo (line 7)"
};

// Accelerate's YAML, NeMo AutoModel's, torchtitan's Python, arguments ("--parallelism.data_parallel_shard_degree 8") or
// TOML, transformers' DistributedConfig as Python or its fsdp_plan as JSON: told apart by what is in the text. Throws
// InputError for what is none of them, for values that their framework does not know, and for choices that no plan here
// holds (pipelines, context parallelism), by name; and for texts of more than 256 KiB or 10,000 keys.
[[nodiscard]] ReadConfig read_config(std::string_view text, std::string_view where, const ModelGraph&);

}  // namespace fsdp
