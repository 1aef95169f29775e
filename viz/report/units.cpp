// The rows of the table of units.
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "models/index.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"
#include "viz/memory_walk.h"
#include "viz/report.h"
#include "viz/unit_facts.h"

namespace fsdp {
namespace {

// By unit, and last what belongs to none: allocated bytes at the highest moment of the steady step. A buffer without a
// unit belongs to that of the operation that allocates it.
MemoryStack bytes_at_peak(const StepPicture& p) {
  const auto none = static_cast<std::int64_t>(p.plan.units.size());
  std::vector<std::int64_t> unit_of(p.program.buffers.size(), none);
  for (const Step* step : {&p.program.init, &p.program.first_step, &p.program.steady_step}) {
    const std::vector<std::int32_t> units = units_of_operations(*step, p.plan, p.model);
    for (std::size_t i = 0; i < step->ops.size(); ++i)
      memory_events(
          *step, step->ops[i],
          [&](std::int32_t b) {
            const std::int32_t own = p.program.buffers[at(b)].unit;
            const std::int32_t unit = own >= 0 ? own : units[i];
            if (unit >= 0) unit_of[at(b)] = unit;
          },
          [](std::int32_t) {});
  }
  MemoryStack peak;
  std::int64_t most = -1;
  const auto look = [&](const MemoryStack& s) {
    const std::int64_t total = std::accumulate(s.begin(), s.end(), std::int64_t{0});
    if (total <= most) return;
    most = total;
    peak = s;
  };
  walk_memory(p.program, unit_of, p.plan.units.size() + 1, look, [&](std::size_t, const MemoryStack& s) { look(s); });
  return peak;
}

struct UnitSeconds {
  double compute = 0, all_gather = 0, reduce_scatter = 0, all_reduce = 0;
};

std::vector<UnitSeconds> seconds_by_unit(const StepPicture& p) {
  std::vector<UnitSeconds> rows(p.plan.units.size() + 1);
  const Step& step = p.program.steady_step;
  const std::vector<std::int32_t> units = units_of_operations(step, p.plan, p.model);
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (!runs_on_a_stream(step.ops[i])) continue;
    UnitSeconds& row = units[i] < 0 ? rows.back() : rows[at(units[i])];
    const double seconds = p.timeline.spans[i].end - p.timeline.spans[i].start;
    switch (step.ops[i].action) {
      case Action::all_gather: row.all_gather += seconds; break;
      case Action::reduce_scatter: row.reduce_scatter += seconds; break;
      case Action::all_reduce:
      case Action::clip_reduce:
      case Action::reduce_largest:
      case Action::reduce_loss: row.all_reduce += seconds; break;
      default: row.compute += seconds;
    }
  }
  return rows;
}

}  // namespace

std::string report_units(const StepPicture& p) {
  const std::vector<UnitSeconds> seconds = seconds_by_unit(p);
  const MemoryStack peak = bytes_at_peak(p);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (std::size_t u = 0; u <= p.plan.units.size(); ++u) {
    nlohmann::ordered_json row;
    if (u < p.plan.units.size()) {
      const Unit& unit = p.plan.units[u];
      const UnitLayout& layout = p.program.layouts[u];
      row = {{"unit", u},
             {"modules", modules_text(p.plan, static_cast<std::int32_t>(u))},
             {"reshard_after_forward", fsdp::name(unit.reshard_after_forward)},
             {"recomputed", recomputes(unit, p.plan)},
             {"parameters", layout.numel},
             {"parameters_per_shard", layout.shard_elements}};
    } else {
      row = {{"unit", nullptr}, {"modules", "no unit (loss, batch, norm)"}};
    }
    row["compute_s"] = seconds[u].compute;
    row["all_gather_s"] = seconds[u].all_gather;
    row["reduce_scatter_s"] = seconds[u].reduce_scatter;
    row["all_reduce_s"] = seconds[u].all_reduce;
    row["peak_bytes"] = peak[u];
    rows.push_back(std::move(row));
  }
  return rows.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace fsdp
