// How answers read on a terminal. Text only; every number comes from the record.
#pragma once

#include <string>

#include "models/cluster.h"
#include "models/graph.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/search.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/records/compare.h"
#include "simulator/records/measurement.h"
#include "simulator/records/prediction.h"
#include "simulator/records/step_time.h"

namespace fsdp::cli {

// "fsdp2, wrap block (33 units), reshard auto, activation checkpointing every-2 (16 modules), micro-batch 1 x 2 on each
// of 8 ranks = 16 sequences (131,072 tokens) a step, mesh 1 replica x 8 shards": what distinguishes one plan from
// another. The model, where it is known, names the policy of checkpointing.
// What of a prediction for this plan was never compared with a measurement, that a sequence is longer than the model
// was made for, that attention has no fused kernel in its dtype, and what PyTorch may hold beside; a line each, or
// empty.
[[nodiscard]] std::string caution(const ShardingPlan&, const ModelGraph&, const Implementation&);
[[nodiscard]] std::string optimizer_text(const Optimizer&);  // "sgd with momentum 0.9"
[[nodiscard]] std::string plan_label(const ShardingPlan&, const ModelGraph* model);

// "Fits: step 1.46 s, 44,900 tokens/s (5,612 per GPU), MFU 41.3 %, peak 61.2 GiB of 75.1 GiB, 13.9 GiB to spare."
[[nodiscard]] std::string verdict_line(const Prediction&);

// "Likely (80 %): step 1.01 to 1.28 s, peak 68.3 to 80.2 GiB, out of memory 3 %: as published runs deviate."; empty
// where nothing is known of how far predictions are off.
[[nodiscard]] std::string doubt_line(const Prediction&);

// "Cost: 75.8 USD per 10^9 tokens; 403 USD a day for 8 GPUs at 2.1 USD per GPU hour."; empty where no price is known.
[[nodiscard]] std::string cost_line(const Prediction&);

// "Steps: mean 1.51 s, p50 1.51 s, p95 1.54 s, p99 1.55 s: the slowest of 64 GPUs (...)."
[[nodiscard]] std::string distribution_line(const StepTimeDistribution&, std::int64_t ranks, const Costs&);

// The time bar, the memory chart, what the peak is made of, the critical path.
[[nodiscard]] std::string prediction_report(const Prediction&);

// simulate --memory: parts by phase, the largest buffers at the peak, and what comes on top of the allocated bytes.
[[nodiscard]] std::string memory_text(const MemoryReport&, const Prediction&);

// "llama3-8b, 8,192 tokens per sequence, on 8 GPUs of dgx-h100"
[[nodiscard]] std::string workload(const std::string& model, std::int64_t seq_len, std::int64_t ranks,
                                   const std::string& cluster);
// What the numbers stand on: the workload, the implementation, the costs.
[[nodiscard]] std::string basis(const Prediction&, const ShardingPlan&, const Costs&);

// Where a trace is, and what of the step it shows.
[[nodiscard]] std::string trace_line(const std::string& file, const Step& steady);
[[nodiscard]] std::string snapshot_line(const std::string& file);

// The verdict alone, and the verdict with its table.
[[nodiscard]] std::string validation_line(const ValidationReport&, const Tolerances&);
[[nodiscard]] std::string validation_report(const ValidationReport&, const Tolerances&);

// How sure the steps are, what the machine did, what the process's memory was made of; a line each, as far as the
// record says.
[[nodiscard]] std::string measurement_lines(const Measurement&);

[[nodiscard]] std::string percent(double fraction);  // "41.3 %"

}  // namespace fsdp::cli
