#include "cli/calibration/nccl_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <variant>

#include "cli/files.h"
#include "cli/named.h"
#include "cli/terminal/terminal.h"
#include "models/input/suggest.h"
#include "planner/costs/fitted.h"
#include "simulator/published/nccl_tests.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

NcclLog read_log(const std::string& path, const NcclLogOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw InputError("--nccl-tests", "'" + path + "' is a folder", "give the files in it");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError("--nccl-tests", "'" + path + "' cannot be read", "give a log of nccl-tests");
  return read_nccl_tests(file, path, options);
}

// The GPU of all logs; empty where none says.
std::string device_of(const std::vector<std::pair<std::string, NcclLog>>& logs) {
  std::string device, said_by;
  for (const auto& [path, log] : logs) {
    if (log.device.empty()) continue;
    if (!device.empty() && gpu_of_device(log.device) != gpu_of_device(device))
      throw InputError(
          path, "was measured on '" + printable(log.device) + "', " + said_by + " on '" + printable(device) + "'",
          "calibrate each by itself");
    device = log.device;
    said_by = path;
  }
  return device;
}

ClusterSpec cluster_for(const NcclTestsFlags& f, const std::string& device) {
  const std::string gpu = gpu_of_device(device);
  if (f.cluster) {
    const ClusterSpec cluster = named_cluster(*f.cluster);
    if (cluster.host)
      throw InputError("--cluster", "'host' has no GPUs", "name the cluster that the logs were measured on");
    if (!gpu.empty() && gpu != cluster.gpu.name)
      throw InputError("--cluster",
                       "has " + cluster.gpu.name + ", but the logs were measured on '" + printable(device) + "'",
                       "name their cluster");
    return cluster;
  }
  if (device.empty())
    throw InputError("--cluster", "is missing; the logs do not say which GPUs they were measured on", "give --cluster");
  if (gpu.empty())
    throw InputError("--nccl-tests", "'" + printable(device) + "' is not in the catalog of GPUs",
                     "give --cluster with a file that describes it");
  return cluster_of(load_gpu(gpu, "--nccl-tests"), 8, 8);
}

Costs base_costs(const NcclTestsFlags& f, const ClusterSpec& cluster) {
  if (!f.costs) return default_costs(cluster);
  const auto read = parse_any_costs(read_file(*f.costs), *f.costs);
  Costs costs = std::holds_alternative<FittedCosts>(read) ? costs_for(std::get<FittedCosts>(read), cluster)
                                                          : std::get<Costs>(read);
  if (costs.platform != cluster.gpu.name)
    throw InputError(*f.costs,
                     "holds costs of '" + costs.platform + "', but the logs were measured on " + cluster.gpu.name,
                     "give costs of that GPU");
  return costs;
}

std::string curves_table(const std::vector<CollectiveCurve>& curves) {
  std::vector<std::vector<std::string>> rows;
  for (const CollectiveCurve& c : curves) {
    const double n = static_cast<double>(c.ranks), share = (n - 1) / n * (c.kind == CollectiveKind::all_reduce ? 2 : 1);
    double bus = 0;
    for (const CurvePoint& p : c.points) bus = std::max(bus, p.size * share / p.seconds);
    rows.push_back({std::string(name(c.kind)), std::to_string(c.ranks), std::to_string(c.ranks_per_node),
                    std::to_string(c.points.size()), human(Bytes(static_cast<std::int64_t>(c.points.front().size))),
                    human(Bytes(static_cast<std::int64_t>(c.points.back().size))), human(BytesPerSecond(bus))});
  }
  return fitting_table({"collective", ">ranks", ">per node", ">sizes", ">from", ">to", ">best bus bandwidth"}, rows);
}

}  // namespace

NcclTestsResult costs_from_nccl_tests(const NcclTestsFlags& f) {
  NcclLogOptions options;
  options.ranks = parse_optional_count(f.ranks, "--ranks", 2, 1 << 24);
  options.ranks_per_node = parse_optional_count(f.ranks_per_node, "--ranks-per-node", 1, 1 << 24);
  NcclTestsResult result;
  std::vector<std::pair<std::string, NcclLog>> logs;
  std::vector<NcclSample> samples;
  for (const std::string& path : f.logs) {
    const auto& log = logs.emplace_back(path, read_log(path, options)).second;
    samples.insert(samples.end(), log.samples.begin(), log.samples.end());
    result.notes.insert(result.notes.end(), log.notes.begin(), log.notes.end());
  }
  const std::vector<CollectiveCurve> curves = curves_of(samples);
  if (curves.empty())
    throw InputError("--nccl-tests", "no row of an all-gather, reduce-scatter or all-reduce that can be used",
                     "give such a log");
  result.costs = base_costs(f, cluster_for(f, device_of(logs)));
  // A shape measured anew replaces what the costs had of it.
  auto& kept = result.costs.collective_curves;
  std::erase_if(kept, [&](const CollectiveCurve& old) {
    return std::any_of(curves.begin(), curves.end(), [&](const CollectiveCurve& c) {
      return c.kind == old.kind && c.ranks == old.ranks && c.ranks_per_node == old.ranks_per_node;
    });
  });
  kept.insert(kept.end(), curves.begin(), curves.end());
  result.costs.source += fmt::format("; collectives: nccl-tests, {} log{}", logs.size(), logs.size() == 1 ? "" : "s");
  result.table = curves_table(curves);
  return result;
}

}  // namespace fsdp::cli
