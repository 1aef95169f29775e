// What is predicted of a plan, as a value and as a document.
//
//   Prediction p = parse_prediction(read_file("prediction.json", "prediction"), "prediction.json");
//   p.step_time, p.verdict, memory_of(p, 3)->peak
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/price.h"
#include "models/units.h"
#include "planner/breakdown.h"
#include "planner/program.h"
#include "planner/timeline.h"
#include "planner/verdict.h"
#include "simulator/records/doubt.h"
#include "simulator/records/program_memory.h"
#include "simulator/records/provenance.h"
#include "simulator/records/rows.h"
#include "simulator/records/step_time.h"

namespace fsdp {

struct Prediction {
  Provenance provenance;
  std::int64_t ranks = 1, roles = 1;
  Seconds step_time;  // of ranks that are all alike
  std::optional<StepTimeDistribution>
      step_time_distribution;  // where asked for: ranks that are not (simulator/engine/jitter.h)
  // allocated: what tensors ask for. active: blocks that the allocator cannot reuse yet. reserved: what it has taken
  // from the device, by its model (simulator/allocator/replay.h) without a limit; with a static arena all three are
  // planned. total = reserved + fixed, and on CPU ranks + offloaded buffers (memory.host_peak).
  Bytes peak_allocated, peak_active, peak_reserved_estimate, fixed, peak_total;
  std::int64_t alloc_retries =
      0;  // per steady step under the limit: each stops the device to give memory back. Not fits only
  Bytes memory_limit;
  Verdict verdict{};
  double tokens_per_s = 0, mfu = 0, hfu = 0;
  std::int64_t tokens_per_step = 0;
  Breakdown where;
  Seconds exposed_communication;
  std::array<std::int64_t, kBufferKinds> peak_made_of{};
  std::string peak_at;                     // describe() of the operation at the peak
  std::vector<std::string> critical_path;  // kinds along the longest chain, with their seconds
  std::vector<ActionTime> by_action;
  std::vector<UnitTime> by_unit;        // in the plan's order
  std::vector<OrderedOperation> order;  // stream by stream (simulator/analysis/order.h)
  // Of each operation of a steady step, in host order: its index in `order`; -1: it runs on no stream. Documents of
  // earlier versions have none.
  std::vector<std::int32_t> issued;
  Timeline timeline;     // of a steady step
  ProgramMemory memory;  // of rank 0, which bounds every rank
  // Ranks whose unpadded shards are smaller have smaller optimizer states. Rank r's memory is that of role
  // role_of_rank[r]: role 0 is `memory`, role i is other_roles[i - 1]. Empty (searching, more than 64 ranks): only rank
  // 0's is known.
  std::vector<std::int32_t> role_of_rank;
  std::vector<ProgramMemory> other_roles;
  std::optional<TrainingCost> cost;  // where a price is known: at `tokens_per_s`
  std::optional<Doubt> doubt;        // of GPUs, whose times are not measured; not while searching
  std::optional<HostMemory> host;    // of offloaded plans on GPUs
  // Of tight plans on GPUs whose allocator may have to give memory back. Not in step_time.
  std::optional<RetryStall> retry_stall;
};

// nullptr: not predicted for this rank.
[[nodiscard]] const ProgramMemory* memory_of(const Prediction&, std::int64_t rank);

// "fsdp-plan/prediction/1"; parse(to_json_text(p)) compares equal in every field that is written.
[[nodiscard]] std::string to_json_text(const Prediction&);
[[nodiscard]] Prediction parse_prediction(std::string_view json_text, std::string_view where);

}  // namespace fsdp
