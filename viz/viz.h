// Pictures of records: Perfetto / Chrome trace and terminal charts. Records in, text out.
#pragma once

#include <cstdint>
#include <optional>
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
// stream, an allocated-bytes counter for each. Opens in ui.perfetto.dev. Either may be null. Long steps are cut.
[[nodiscard]] std::string trace_json(const Step& steady, const Program&, const ShardingPlan&, const ModelGraph&,
                                     const Prediction*, const Measurement*);

// Of a step with more operations than anyone looks at, a trace draws the first and the last micro-batches. `first` and
// `last`: how many of them; nullopt: the whole step is drawn.
struct TraceCut {
  std::int64_t first = 0, last = 0, all = 0;
};
[[nodiscard]] std::optional<TraceCut> trace_cut(const Step& steady);
// "micro-batches 1 to 8 and 1,017 to 1,024 of 1,024".
[[nodiscard]] std::string describe(const TraceCut&);

// Allocated bytes over one step, about `width` x `height` characters, with the peak and the limit marked.
[[nodiscard]] std::string memory_chart(const MemoryTimeline&, Bytes limit, int width = 72, int height = 10);
// One bar: where the step time goes, with a legend that carries seconds and percent.
[[nodiscard]] std::string time_bar(const Breakdown&, Seconds step, int width = 72);

// The loss of each step, as many columns as steps up to `width`: a column stands for the mean of its steps; '?': one of
// them is NaN or infinite.
[[nodiscard]] std::string loss_chart(const std::vector<double>& losses, int width = 72, int height = 8);

// A text table with aligned columns. Numbers right-aligned (a column is numeric when its header starts with '>'). A
// table that is wider than `width` has its texts, never its numbers, broken into several lines, as far as that helps.
[[nodiscard]] std::string table(const std::vector<std::string>& header,
                                const std::vector<std::vector<std::string>>& rows, std::optional<int> width = {});

}  // namespace fsdp
