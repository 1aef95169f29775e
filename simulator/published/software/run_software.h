// The software behind a published row: whose it is, the month it is from, and the implementation that models it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cluster.h"
#include "models/implementation.h"
#include "models/units.h"
#include "planner/plan.h"
#include "simulator/published/reading/published_runs.h"

namespace fsdp {

enum class Stack : std::uint8_t { foundry, titan, modalities, prime, automodel, atorch, hf };
[[nodiscard]] Stack stack_of(const PublishedRun&);

// Months are counted from year 0: year * 12 + month - 1.
[[nodiscard]] constexpr int month(int year, int of_year) { return year * 12 + of_year - 1; }
// Month of the software, from the first "2024-08" or "202408" in `software`, then `source_ref`, then `notes`; else of
// its release ("torch-2.8"), else the middle of its `software_generation` ("2024").
[[nodiscard]] std::optional<int> month_of(const PublishedRun&);

// transformers 4 whose mixtures of experts are known: it says so, and is older than 4.51.
[[nodiscard]] bool loops_over_experts(const PublishedRun&);

[[nodiscard]] bool uses_float8(const PublishedRun&);
// torchao's float8 linear layers, compiled by torchtitan or in models of transformers' form; no recipe for a row
// without any, nothing for one whose products are others': TransformerEngine's but for those of llm-foundry, and
// experts'.
[[nodiscard]] std::optional<Float8Plan> float8_of(const PublishedRun&);

struct RunImplementation {
  const Implementation* implementation = nullptr;  // one of the program's constants, or `variant`
  std::shared_ptr<const Implementation> variant;   // of one, as the row's cells have it
  Bytes kernels_loaded;                            // that this software never runs, in each GPU's CUDA context
  bool connects_trees = false;                     // NCCL before 2.22: a communicator holds trees' buffers, too
  TorchVersion torch;                              // of its FullyShardedDataParallel, where not the newest's
  bool reduces_as_computed = false;                // in param_dtype, whatever the row has for reduce_dtype
  bool loss_in_model = false;                      // LoopPlan's
  bool reentrant = false;                          // the Trainer's gradient_checkpointing before transformers 5.0
  std::vector<std::string> assumptions;            // of what the row does not say, or says otherwise
};
// What of its model decides about prime-rl's kernels.
struct RunModel {
  bool experts = false, adapted_experts = false;
  bool grouped_adapters = false;  // in one product; else one after the other
  std::int64_t rank = 0;          // of its adapters
};
// Throws InputError for what no implementation models.
[[nodiscard]] RunImplementation implementation_of(const PublishedRun&, Stack, int of_month, const RunModel&);
// Of an offloaded run's ranks, as LoopPlan has them; 0: torchrun's default. Throws InputError for notes that say
// nonsense.
[[nodiscard]] int host_threads_of(const PublishedRun&, std::vector<std::string>& assumptions);
// What else of the plan and of the device's memory follows from the software. Where check() refuses its FSDP beside
// the rest of the plan, the newest's stays.
void set_release(const RunImplementation&, const ModelGraph&, ShardingPlan&, ClusterSpec&);

}  // namespace fsdp
