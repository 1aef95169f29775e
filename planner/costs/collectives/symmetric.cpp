#include "planner/costs/collectives/symmetric.h"

#include <algorithm>
#include <cmath>

#include "models/topology.h"
#include "planner/costs/rates.h"

namespace fsdp {
namespace {

constexpr double kGiBPerMicrosecond = 1073741824.0 / 1e6;  // of a GiB/s
constexpr double kLowLatencyBytes = 9;        // an LL kernel is priced at nine times its bytes: flags, and no unrolling
constexpr double kLowLatencyMulticast = 1.1;  // so that multicast wins over plain LL
constexpr int kMaxBlocks = 64;

struct Kernel {
  double bus_bytes = 0, gain = 1;
  bool low_latency = false;
  int max_blocks = kMaxBlocks;
  double peak_gib = 0;
};

struct Constants {
  double base_low_latency, base, sm_gib, peak_gib, multicast_peak_gib;
};

// Hopper and before: 4.5 us for LL kernels, 7.8 for others; Blackwell: 8.5 (all-gather) or 11, and 13.0 or 19.5
// (all-reduce).
Constants constants(CollectiveKind kind, bool blackwell) {
  const bool reduce_all = kind == CollectiveKind::all_reduce;
  if (blackwell) return {kind == CollectiveKind::all_gather ? 8.5 : 11, reduce_all ? 19.5 : 13.0, 55, 600, 1000};
  return {4.5, 7.8, reduce_all ? 65.0 : 44.0, 320, 480};
}

double softplus(double x) { return x > 100 ? x : std::log1p(std::exp(x)); }

// min(x, ceiling) with a rounded corner as wide as one SM's bandwidth. (exp(c/s) - 1) exp(-x/s) is written to stay
// finite.
double smooth_min(double x, double ceiling, double width) {
  return ceiling - width * std::log1p(std::exp((ceiling - x) / width) - std::exp(-x / width));
}

double microseconds(const Kernel& k, const Constants& c, int blocks) {
  const double sm = c.sm_gib * kGiBPerMicrosecond;
  const double bandwidth = smooth_min(blocks * sm * k.gain, k.peak_gib * kGiBPerMicrosecond, sm);
  return (k.low_latency ? c.base_low_latency : c.base) + softplus(k.bus_bytes / bandwidth - 1);
}

}  // namespace

SymmetricPrice symmetric_price(CollectiveKind kind, Bytes bytes, std::int64_t ranks, const ClusterSpec& cluster) {
  const bool blackwell = cluster.gpu.compute_capability >= 100, multicast = nvls_channels(cluster, ranks, 1).count > 0;
  const Constants c = constants(kind, blackwell);
  const double n = static_cast<double>(ranks), full = static_cast<double>(bytes.count());
  const int multicast_blocks = static_cast<int>(((blackwell ? 32 : 16) + ranks - 1) / ranks);
  const bool reduce_all = kind == CollectiveKind::all_reduce;
  const double low = kLowLatencyBytes * full * (reduce_all ? n : 1);
  const double direct = full * (n - 1) / n * (reduce_all ? 2 : 1);
  Kernel kernels[4] = {{low, 1, true, kMaxBlocks, c.peak_gib}, {direct, 1, false, kMaxBlocks, c.peak_gib}};
  int count = 2;
  if (multicast) {
    if (kind != CollectiveKind::reduce_scatter)
      kernels[count++] = {low, kLowLatencyMulticast, true, kMaxBlocks, c.peak_gib};
    if (reduce_all) kernels[count++] = {full / n + full, n, false, multicast_blocks, c.multicast_peak_gib};
    else kernels[count++] = {direct, 0.55 * n, false, multicast_blocks, c.peak_gib};
  }
  SymmetricPrice best;
  double least = 0;
  for (int i = 0; i < count; ++i) {
    const Kernel& k = kernels[i];
    const double with_all = microseconds(k, c, k.max_blocks);
    int blocks = 1;
    while (blocks < k.max_blocks && microseconds(k, c, blocks) > 1.025 * with_all) ++blocks;
    const double time = microseconds(k, c, blocks), penalized = time * (1 + 0.025 * blocks);
    if (i > 0 && penalized >= least) continue;
    least = penalized;
    best = {Seconds(time * 1e-6), blocks};
  }
  return best;
}

Seconds symmetric_barrier(const ClusterSpec& cluster) {
  const bool blackwell = cluster.gpu.compute_capability >= 100;
  return Seconds(constants(CollectiveKind::all_gather, blackwell).base_low_latency * 1e-6);
}

SymmetricPrice copy_engine_price(Bytes bytes, std::int64_t ranks, const ClusterSpec& cluster) {
  const double barrier = symmetric_barrier(cluster).count();
  const double wire = static_cast<double>(bytes.count()) * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  return {Seconds(2 * barrier + wire / cluster.intra_bus.count()), 0};
}

}  // namespace fsdp
