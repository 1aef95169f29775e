#include "planner/costs/rates.h"

#include <algorithm>
#include <string>

#include "models/input/error.h"

namespace fsdp {

double memory_rate(const ClusterSpec& cluster, const Costs& costs) {
  return cluster.host ? 0 : costs.memory_efficiency * cluster.gpu.memory_bandwidth.count();
}

double host_copy_rate(const GpuSpec& gpu) {
  constexpr double kAbovePcie4 = 40e9, kMostPcie = 130e9;  // between them PCIe 5 and 6; above links between chips
  const double link = gpu.host_link.count(), other = 0.79 * link;
  return link > kAbovePcie4 ? std::max(other, 0.88 * std::min(link, kMostPcie)) : other;
}

double matrix_peak(DType type, const GpuSpec& gpu) {
  switch (type) {
    case DType::bf16:
    case DType::f16: return gpu.bf16.count() > 0 ? gpu.bf16.count() : gpu.fp32.count();
    case DType::f32: return gpu.fp32.count();
    case DType::f64:
    case DType::i64:
    case DType::f8: break;
  }
  return gpu.fp32.count() / 2;
}

void require_calibrated(bool present, std::string_view what, const Costs& costs) {
  if (!present)
    throw InputError("costs of platform '" + costs.platform + "'", "no entry for " + std::string(what),
                     "run `fsdp-plan calibrate` and pass its file with --costs");
}

KernelRate rate_or_default(const KernelRate& calibrated, std::string_view what, const ClusterSpec& cluster,
                           const Costs& costs) {
  if (calibrated.byte_rate.count() > 0) return calibrated;
  require_calibrated(!cluster.host && memory_rate(cluster, costs) > 0, what, costs);
  return {costs.kernel_overhead, FlopsPerSecond(0), BytesPerSecond(memory_rate(cluster, costs))};
}

KernelRate copy_rate(const ClusterSpec& cluster, const Costs& costs) {
  return rate_or_default(costs.copy, "copies", cluster, costs);
}

Demand traffic_demand(double bytes, const KernelRate& rate, const ClusterSpec& cluster, const Costs& costs) {
  Demand d;
  d.alone = Seconds(rate.overhead.count() + bytes / rate.byte_rate.count());
  const double capacity = memory_rate(cluster, costs);
  if (cluster.host) d.use[static_cast<int>(Resource::compute)] = 1;  // one core per rank
  else if (capacity > 0 && d.alone.count() > 0)
    d.use[static_cast<int>(Resource::memory)] = std::min(1.0, bytes / d.alone.count() / capacity);
  return d;
}

double crowding(std::int64_t ranks, const Costs& costs) {
  if (!costs.threads) return 1;
  return std::max(1.0, static_cast<double>(ranks) / static_cast<double>(costs.threads->cores));
}

void crowd(Demand& d, bool collective, const ClusterSpec& cluster, const Costs& costs) {
  if (!cluster.host || !costs.threads) return;
  const HostThreads& threads = *costs.threads;
  const double slower = crowding(cluster.gpus, costs) / crowding(costs.collective_ranks.value_or(1), costs);
  d.alone = d.alone * slower;
  d.host = d.host * slower;
  double& use = d.use[static_cast<int>(Resource::compute)];
  use = std::min(use, static_cast<double>(cluster.gpus) / static_cast<double>(threads.cores));
  d.wake = threads.wake;
  d.wake_beside = collective ? threads.collective_beside : threads.wake_beside;
  if (!collective || cluster.gpus < 2) return;
  d.skew = threads.skew;
  d.skew_share = threads.skew_share;
  d.skew_most = threads.skew_most;
}

}  // namespace fsdp
