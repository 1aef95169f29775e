#include "simulator/predict/bandwidth_sweep.h"

#include <algorithm>
#include <array>
#include <span>

#include "simulator/analysis/breakdown.h"
#include "simulator/engine/engine.h"

namespace fsdp {
namespace {

constexpr std::array kFactors = {0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0};
constexpr std::array kFewFactors = {0.25, 0.5, 1.0, 2.0, 4.0};
constexpr std::size_t kLongStep = 200'000;  // operations of which some hundred thousand are simulated in a second

}  // namespace

BandwidthSweep bandwidth_sweep(const Program& program, const CostContext& c, const Timeline& own) {
  BandwidthSweep sweep;
  sweep.between_nodes = c.cluster.gpus > c.cluster.domain();
  if (c.cluster.host || c.plan.ranks() < 2) return sweep;
  const std::span<const double> factors = program.steady_step.ops.size() > kLongStep
                                              ? std::span<const double>(kFewFactors)
                                              : std::span<const double>(kFactors);
  for (const double factor : factors) {
    ClusterSpec cluster = c.cluster;
    BytesPerSecond& link = sweep.between_nodes ? cluster.inter_bus : cluster.intra_bus;
    link = BytesPerSecond(link.count() * factor);
    const CostContext changed{c.model, c.plan, c.implementation, cluster, c.costs};
    const Timeline t =
        factor == 1 ? own : simulate(program.steady_step, demands_of(program.steady_step, program, changed));
    sweep.points.push_back(
        {factor, link, Seconds(t.duration), exposed_communication(where_time_goes(program.steady_step, t))});
  }
  const auto same = [&](const BandwidthPoint& p) { return p.step.count() == sweep.points.front().step.count(); };
  if (std::all_of(sweep.points.begin(), sweep.points.end(), same)) sweep.points.clear();
  return sweep;
}

}  // namespace fsdp
