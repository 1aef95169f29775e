// The step of one plan on clusters that differ in one link's bandwidth.
#pragma once

#include <string>
#include <vector>

#include "models/units.h"
#include "planner/costs.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

struct BandwidthPoint {
  double factor = 1;  // of the cluster's own bandwidth
  BytesPerSecond bandwidth;
  Seconds step, exposed_communication;
};
struct BandwidthSweep {
  bool between_nodes = false;          // else inside a node
  std::vector<BandwidthPoint> points;  // by factor; empty: one GPU, or costs that do not ask the cluster for bandwidth
};
// Each point is simulated, but for the cluster's own bandwidth, whose steady step is `own`. Memory is the same at all
// of them. Long steps have fewer points.
[[nodiscard]] BandwidthSweep bandwidth_sweep(const Program&, const CostContext&, const Timeline& own);

}  // namespace fsdp
