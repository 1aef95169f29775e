// Pictures of records: Perfetto / Chrome trace and terminal charts. Records in, text out.
#pragma once

#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/breakdown.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/records/measurement.h"
#include "simulator/records/prediction.h"

namespace fsdp {

// One Chrome trace JSON: process "predicted", and one process per measured rank ("measured rank 0"), a thread per
// stream, an allocated-bytes counter for each. Opens in ui.perfetto.dev. Either may be null.
[[nodiscard]] std::string trace_json(const Step& steady, const Program&, const ShardingPlan&, const ModelGraph&,
                                     const Prediction*, const Measurement*);

// Allocated bytes over one step, about `width` x `height` characters, with the peak and the limit marked.
[[nodiscard]] std::string memory_chart(const MemoryTimeline&, Bytes limit, int width = 72, int height = 10);
// One bar: where the step time goes, with a legend that carries seconds and percent.
[[nodiscard]] std::string time_bar(const Breakdown&, Seconds step, int width = 72);

// The loss of each step, as many columns as steps up to `width`: a column stands for the mean of its steps; '?': one of
// them is NaN or infinite.
[[nodiscard]] std::string loss_chart(const std::vector<double>& losses, int width = 72, int height = 8);

// A text table with aligned columns. Numbers right-aligned (a column is numeric when its header starts with '>').
[[nodiscard]] std::string table(const std::vector<std::string>& header,
                                const std::vector<std::vector<std::string>>& rows);

}  // namespace fsdp
