#include "models/topology.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMaxChannels = 64;  // NCCL's MAXCHANNELS since 2.25

// Speeds per channel that the search tries, GB/s, falling: inside a node, and between nodes.
constexpr std::array kIntraOld = {40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0};
constexpr std::array kIntraHopper = {60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0};
constexpr std::array kIntraBlackwell = {90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0};
constexpr std::array kInterOld = {48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0,
                                  7.0,  6.0,  5.0,  4.0,  3.0,  2.4,  1.2,  0.24, 0.12};
constexpr std::array kInterHopper = {48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5,
                                     15.0, 12.0, 6.0,  3.0,  2.4,  1.2,  0.24, 0.12};
constexpr std::array kInterBlackwell = {96.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0,
                                        17.5, 15.0, 12.0, 6.0,  3.0,  2.4,  1.2,  0.24, 0.12};

std::span<const double> intra_speeds(std::int64_t capability) {
  if (capability >= 100) return kIntraBlackwell;
  if (capability >= 90) return kIntraHopper;
  return kIntraOld;
}
std::span<const double> inter_speeds(std::int64_t capability) {
  if (capability >= 100) return kInterBlackwell;
  if (capability >= 90) return kInterHopper;
  return kInterOld;
}

struct Choice {
  std::int64_t count = 1;
  double speed = 0;  // GB/s
};

// The channels with the largest count * speed that `total` GB/s holds; of equal ones the faster. Speeds below half of
// the best found so far are not tried. A link slower than the slowest speed has one channel.
Choice search(std::span<const double> speeds, double total) {
  Choice best{1, 0};
  for (const double s : speeds) {
    if (s < 0.49 * best.speed) break;
    const auto count = std::min(kMaxChannels, static_cast<std::int64_t>(std::floor(total / s * (1 + 1e-9))));
    if (static_cast<double>(count) * s > static_cast<double>(best.count) * best.speed * (1 + 1e-9)) best = {count, s};
  }
  return best.speed > 0 ? best : Choice{1, total};
}

// Twice the channels at half the speed, where one channel is fast enough to keep two CTAs busy.
void duplicate(Choice& c, std::int64_t capability) {
  if (c.speed < 25 || (capability > 80 && c.speed < 50 && c.count > 4)) return;
  c = {2 * c.count, c.speed / 2};
}

// The rate that NCCL counts for the NVLinks of a GPU, of the datasheet's: 20 of 25 GB/s per link up to Ampere, 20.6 of
// 25 on Hopper, 40.1 of 50 on Blackwell.
double counted_links(const GpuSpec& gpu) {
  const double part = gpu.compute_capability >= 100 ? 40.1 / 50 : gpu.compute_capability >= 90 ? 20.6 / 25 : 20.0 / 25;
  return gpu.nvlink.count() / kGiga * part;
}

// 12 of 15.75, 24 of 31.5, 48 of 63 GB/s: PCIe x16 of generations 3, 4, 5 as NCCL counts it.
double counted_pcie(const GpuSpec& gpu) { return gpu.host_link.count() / kGiga * (48.0 / 63); }

}  // namespace

bool has_nvlink(const ClusterSpec& c) {
  return c.gpu.nvlink.count() > 0 || c.intra_bus.count() > 64e9;  // faster than PCIe 5 x16
}

BytesPerSecond intra_bus_of(const ClusterSpec& c, std::int64_t ranks_per_node) {
  if (c.gpu.mesh_link.count() <= 0 || ranks_per_node >= c.gpus_per_node || ranks_per_node < 2) return c.intra_bus;
  return c.intra_bus * (static_cast<double>(ranks_per_node - 1) / static_cast<double>(c.gpus_per_node - 1));
}

bool has_symmetric_memory(const ClusterSpec& c) { return has_nvlink(c) && c.gpu.mesh_link.count() <= 0; }

std::int64_t nics_of_group(const ClusterSpec& c, std::int64_t ranks_per_node) {
  return std::max<std::int64_t>(1, (c.nics() * std::min(ranks_per_node, c.domain())) / c.gpus_per_node);
}

BytesPerSecond nic_rate(const ClusterSpec& c) {
  return c.inter_bus * (static_cast<double>(c.gpus_per_node) / static_cast<double>(c.nics()));
}

Channels ring_channels(const ClusterSpec& c, std::int64_t ranks_per_node, std::int64_t nodes) {
  const std::int64_t capability = c.gpu.compute_capability;
  Choice found;
  if (nodes <= 1) {
    const double total = intra_bus_of(c, ranks_per_node).count() / kGiga;
    found = search(intra_speeds(capability), total);
    found.speed = total / static_cast<double>(found.count);
    duplicate(found, capability);
  } else {
    const double nic = nic_rate(c).count() / kGiga;
    const std::int64_t nics = nics_of_group(c, ranks_per_node);
    found = search(inter_speeds(capability), nic);
    found = {std::min(kMaxChannels, found.count * nics), nic / static_cast<double>(found.count)};
    if (ranks_per_node > 1) {
      // A channel enters a node at one GPU and leaves it at another: the links carry the other p - 1 of p hops.
      const double p = static_cast<double>(ranks_per_node),
                   links = intra_bus_of(c, ranks_per_node).count() / kGiga * p / (p - 1);
      found.speed = std::min(found.speed, links / static_cast<double>(found.count));
      duplicate(found, capability);
    }
  }
  Channels out{found.count, found.speed * kGiga, std::min(kMaxChannels, 2 * found.count)};
  if (capability >= 90 && nodes > 1 && found.speed > 45 && out.ctas < 16) out.ctas *= 2;
  if (c.collective_sms) {
    out.ctas = std::min(out.ctas, *c.collective_sms);
    out.count = std::min(out.count, out.ctas);
  }
  return out;
}

Channels nvls_channels(const ClusterSpec& c, std::int64_t ranks_per_node, std::int64_t nodes) {
  const std::int64_t capability = c.gpu.compute_capability;
  if (capability < 90 || ranks_per_node < 3 || c.gpu.nvlink.count() <= 0) return {};
  Channels out;
  if (nodes <= 1) {
    // A head's links carry its stream twice: n + 1 times the speed for n GPUs. More than 8 GPUs are counted as 8: 72
    // GB200 in one domain measure 835 GB/s, what 8 B200 do.
    const std::int64_t heads = std::min<std::int64_t>(8, ranks_per_node);
    const Choice found = search(intra_speeds(capability), c.intra_bus.count() / kGiga / static_cast<double>(heads + 1));
    out = {heads,
           (found.count == 1 ? found.speed : c.intra_bus.count() / kGiga / static_cast<double>(heads + 1)) * kGiga, 0};
  } else {
    out = {std::min(ranks_per_node, nics_of_group(c, ranks_per_node)), nic_rate(c).count(), 0};
  }
  out.ctas = capability < 100 ? 16 : nodes <= 1 ? 24 : 32;
  if (c.collective_sms) out.ctas = std::min(out.ctas, *c.collective_sms);
  return out;
}

BytesPerSecond ring_rate(const GpuSpec& gpu, BytesPerSecond narrowest) {
  const Choice found = search(intra_speeds(gpu.compute_capability), narrowest.count() / kGiga);
  return BytesPerSecond(static_cast<double>(found.count) * found.speed * kGiga);
}

bool links_known(const GpuSpec& gpu) {
  return gpu.nvlink.count() > 0 || gpu.mesh_link.count() > 0 || gpu.peer_link != PeerLink::other;
}

BytesPerSecond counted_intra_bus(const GpuSpec& gpu, CpuVendor cpu, std::int64_t gpus_per_node) {
  // As many rings as links, each over another one of them.
  if (gpu.mesh_link.count() > 0)
    return gpu.mesh_link * static_cast<double>(std::max<std::int64_t>(gpus_per_node - 1, 1));
  double total = counted_links(gpu);
  // Through the host's memory: 8 RTX 4090 on two processors get one channel of 5 GB/s (NCCL's log in nccl-tests issue
  // 307).
  if (total <= 0 && gpu.peer_link == PeerLink::host_memory) return BytesPerSecond(5 * kGiga);
  if (total <= 0) {
    // Over PCIe and, between the halves of a node, over the link of its two processors: 16 GB/s AMD, 22 Intel (Sapphire
    // Rapids), 6 Arm.
    const double processors = cpu == CpuVendor::amd ? 16 : cpu == CpuVendor::arm ? 6 : 22;
    total = std::min(counted_pcie(gpu), processors);
  }
  return ring_rate(gpu, BytesPerSecond(total * kGiga));
}

BytesPerSecond counted_inter_bus(const GpuSpec& gpu, BytesPerSecond nic, std::int64_t nics, std::int64_t gpus) {
  // A NIC is no faster than its PCIe slot, of the GPU's generation (a GPU's chip-to-chip link is none: its NICs have
  // PCIe 5).
  const double slot = gpu.host_link.count() > 130e9 ? 48 : counted_pcie(gpu);
  const Choice found = search(inter_speeds(gpu.compute_capability), std::min(nic.count() / kGiga, slot));
  const double each = static_cast<double>(found.count) * found.speed;
  return BytesPerSecond(each * kGiga * static_cast<double>(nics) / static_cast<double>(gpus));
}

constexpr double kGibPerChannel = 0.0125;  // of a ring

BytesPerSecond reference_nic(const GpuSpec& gpu) {
  const std::int64_t capability = gpu.compute_capability;
  return BytesPerSecond(capability >= 90 ? 50e9 : capability >= 80 ? 25e9 : 12.5e9);
}

Bytes counted_communicator_memory(const ClusterSpec& c) {
  const std::int64_t ranks = std::min(c.gpus, c.domain());
  const double gib = kGibPerChannel * static_cast<double>(ring_channels(c, ranks, 1).ctas);
  return Bytes(static_cast<std::int64_t>(std::llround(gib * 1024)) * (std::int64_t{1} << 20));
}

Bytes counted_fixed_memory(const ClusterSpec& c) {
  const std::int64_t ranks = std::min(c.gpus, c.domain());
  const double channels = static_cast<double>(ring_channels(c, ranks, 1).ctas);
  const double gib = 0.55 + kGibPerChannel * channels + (nvls_channels(c, ranks, 1).count > 0 ? 0.25 : 0);
  return Bytes(static_cast<std::int64_t>(std::llround(gib * 1024)) * (std::int64_t{1} << 20));
}

ClusterSpec cluster_of(const GpuSpec& gpu, std::int64_t gpus, std::int64_t gpus_per_node,
                       std::optional<BytesPerSecond> fabric) {
  if (gpus < 1 || gpus_per_node < 1)
    throw InputError("cluster", "GPUs and GPUs per node must be at least 1", "give both");
  const std::int64_t capability = gpu.compute_capability;
  ClusterSpec c;
  c.name = gpu.name;
  c.gpu = gpu;
  c.gpus = gpus;
  c.gpus_per_node = gpus_per_node;
  if (gpu.name.starts_with("gb")) {
    c.cpu = CpuVendor::arm;
    c.nvlink_domain = 72;
  } else if (capability == 80) {
    c.cpu = CpuVendor::amd;
  }
  const BytesPerSecond nic = fabric.value_or(reference_nic(gpu));
  c.intra_bus = counted_intra_bus(gpu, c.cpu, gpus_per_node);
  c.inter_bus = counted_inter_bus(gpu, nic, gpus_per_node, gpus_per_node);
  c.fixed_memory = counted_fixed_memory(c);
  c.communicator_memory = counted_communicator_memory(c);
  return c;
}

}  // namespace fsdp
