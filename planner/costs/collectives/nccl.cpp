#include "planner/costs/collectives/nccl.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "models/input/names.h"
#include "models/topology.h"
#include "planner/costs/collectives/nccl_table.h"

namespace fsdp {

namespace {

constexpr std::size_t index(NcclAlgorithm a) { return static_cast<std::size_t>(a); }
constexpr std::size_t index(NcclProtocol p) { return static_cast<std::size_t>(p); }
constexpr std::int64_t kPessimisticNodes = 16;

std::size_t generation(std::int64_t capability) {
  if (capability >= 100) return 3;
  if (capability >= 90) return 2;
  return capability >= 80 ? 1 : 0;
}

// The cluster's stated latency over NCCL's constant; 1 where it states none.
double scale(std::optional<Seconds> stated, double usual_us) { return stated ? stated->count() * 1e6 / usual_us : 1; }

constexpr std::string_view text(NcclAlgorithm a) {
  switch (a) {
    case NcclAlgorithm::tree: return "Tree";
    case NcclAlgorithm::ring: return "Ring";
    case NcclAlgorithm::collnet_direct: return "CollNetDirect";
    case NcclAlgorithm::collnet_chain: return "CollNetChain";
    case NcclAlgorithm::nvls: return "NVLS";
    case NcclAlgorithm::nvls_tree: return "NVLSTree";
    case NcclAlgorithm::pat: return "PAT";
  }
  return {};
}
static_assert(names_all<NcclAlgorithm>(text, kNcclAlgorithms));
static_assert(nccl::kBaseLatency.size() == kNcclAlgorithms);  // a row each, in all tables of nccl_table.h

constexpr std::string_view text(NcclProtocol p) {
  switch (p) {
    case NcclProtocol::ll: return "LL";
    case NcclProtocol::ll128: return "LL128";
    case NcclProtocol::simple: return "Simple";
  }
  return {};
}
static_assert(names_all<NcclProtocol>(text, kNcclProtocols));
static_assert(nccl::ByProtocol{}.size() == kNcclProtocols);

}  // namespace

std::string_view name(NcclAlgorithm a) { return text(a); }
std::string_view name(NcclProtocol p) { return text(p); }

// Fills the tables of a model: latencies in microseconds, bandwidths in GB/s.
struct NcclModel::Builder {
  NcclModel& model;
  const ClusterSpec& cluster;
  double n, nodes, p;       // ranks, nodes, ranks per node
  std::size_t gen, column;  // rows and columns of the tables
  Channels ring, nvls;
  bool nvlink, ll128;
  double bus, per_channel, nvls_speed;  // GB/s

  Builder(NcclModel& m, const ClusterSpec& c, std::int64_t ranks_per_node, bool pessimistic)
      : model(m),
        cluster(c),
        n(static_cast<double>(m.ranks_)),
        nodes(static_cast<double>(m.nodes_)),
        p(static_cast<double>(ranks_per_node)),
        gen(generation(c.gpu.compute_capability)),
        column(static_cast<std::size_t>(std::min<std::int64_t>(m.nodes_, 3) - 1)),
        ring(ring_channels(c, ranks_per_node, m.nodes_)),
        nvls(nvls_channels(c, ranks_per_node, m.nodes_)),
        nvlink(has_nvlink(c)),
        ll128(nvlink && !(pessimistic && m.nodes_ >= kPessimisticNodes)),
        bus(static_cast<double>(ring.count) * ring.speed / 1e9),
        per_channel(ring.speed / 1e9),
        nvls_speed(nvls.speed / 1e9) {}

  void add(CollectiveKind kind, NcclAlgorithm a, NcclProtocol proto, double latency_us, double algorithm_bandwidth,
           std::int64_t ctas) {
    if (!(algorithm_bandwidth > 0)) return;
    model.ways_[static_cast<std::size_t>(kind)].push_back(
        {a, proto, latency_us * 1e-6, 1e-9 / algorithm_bandwidth, ctas});
  }

  [[nodiscard]] double base(NcclAlgorithm a, NcclProtocol proto) const {
    return nccl::kBaseLatency[index(a)][index(proto)] * scale(cluster.collective_base_latency, 8.4);
  }
  [[nodiscard]] double intra(NcclAlgorithm a, NcclProtocol proto) const {
    const auto& table = nvlink ? nccl::kNvlinkLatency : nccl::kPciLatency;
    return table[index(a)][index(proto)] * scale(cluster.intra_latency, nvlink ? 3.4 : 5.7);
  }
  // One rank per node: NCCL takes the tree's row for every algorithm. What a network is slower by is added as NCCL adds
  // its plugin's latency: once, and twice for Simple, which waits for an answer.
  [[nodiscard]] double inter(NcclAlgorithm a, NcclProtocol proto) const {
    constexpr double kSimple = 14;
    const std::size_t row = index(p == 1 ? NcclAlgorithm::tree : a);
    const double own = nccl::kNetLatency[row][index(proto)],
                 slower = cluster.inter_latency ? cluster.inter_latency->count() * 1e6 - kSimple : 0;
    if (slower > 0) return own + slower * (proto == NcclProtocol::simple ? 1 : 0.5);
    return own * scale(cluster.inter_latency, kSimple);
  }
  [[nodiscard]] double net_overhead(NcclProtocol proto) const {
    if (nodes == 1) return 0;
    const double once = cluster.cpu == CpuVendor::amd ? nccl::kNetOverheadAmd : nccl::kNetOverhead;
    return proto == NcclProtocol::simple ? 3 * once : once;
  }
  // LL's ceiling goes by the GPU inside a node, by the processor between nodes.
  [[nodiscard]] double ll_ceiling() const {
    const std::size_t row = nodes == 1 ? gen : cluster.cpu == CpuVendor::amd ? 1 : 0;
    return nccl::kLlMaxBus[row][column];
  }
  [[nodiscard]] double depth() const { return std::floor(std::log2(nodes)); }
  [[nodiscard]] double count() const { return static_cast<double>(ring.count); }

  void add_ring(CollectiveKind kind) {
    const double passes = kind == CollectiveKind::all_reduce ? 2 : 1, steps = passes * (n - 1),
                 crossings = passes * (nodes - 1);
    for (const NcclProtocol proto : {NcclProtocol::ll, NcclProtocol::ll128, NcclProtocol::simple}) {
      if (proto == NcclProtocol::ll128 && !ll128) continue;
      double width = bus;
      if (proto == NcclProtocol::ll) width = std::min(ll_ceiling(), bus / 2);
      if (proto == NcclProtocol::ll128) width = std::min(0.92 * bus, count() * nccl::kRingLl128PerChannel[gen][column]);
      const double latency = base(NcclAlgorithm::ring, proto) +
                             (steps - crossings) * std::max(intra(NcclAlgorithm::ring, proto), net_overhead(proto)) +
                             crossings * inter(NcclAlgorithm::ring, proto);
      add(kind, NcclAlgorithm::ring, proto, latency, width * n / steps, ring.ctas);
    }
  }

  void add_tree() {
    constexpr auto kTree = NcclAlgorithm::tree;
    const double simple = std::min(0.92 * bus, count() * nccl::kTreePerChannel[gen][column]);
    for (const NcclProtocol proto : {NcclProtocol::ll, NcclProtocol::ll128, NcclProtocol::simple}) {
      if (proto == NcclProtocol::ll128 && !ll128) continue;
      double width = simple;
      if (proto == NcclProtocol::ll) width = std::min(simple / 3.8, ll_ceiling());
      if (proto == NcclProtocol::ll128)
        width =
            std::min(simple * (nodes == 1 ? 7.0 / 9 : 120.0 / 128), count() * nccl::kTreeLl128PerChannel[gen][column]);
      const double latency = base(kTree, proto) + 2 * ((p - 1) * intra(kTree, proto) + depth() * inter(kTree, proto));
      add(CollectiveKind::all_reduce, kTree, proto, latency, width / 2, ring.ctas);
    }
  }

  // NVLink SHARP: the switch reduces and multicasts. Over nodes it needs switches that reduce, or a tree between the
  // nodes (all-reduce).
  void add_nvls(CollectiveKind kind) {
    if (nvls.count < 2) return;
    const bool reduce_all = kind == CollectiveKind::all_reduce;
    const double heads = static_cast<double>(nvls.count),
                 links = nvls_speed * nccl::kNvlsEfficiency[gen] * (heads - 1) / heads;
    const double inside = links * (reduce_all ? 2 : (p - 1) / p);
    const double convert = reduce_all ? n / (2 * (n - 1)) : 1;
    constexpr auto kSimple = NcclProtocol::simple;
    const double latency = intra(NcclAlgorithm::nvls, kSimple) + (nodes > 1 ? inter(NcclAlgorithm::nvls, kSimple) : 0);
    const bool one_head_per_nic = nvls.count == static_cast<std::int64_t>(p);
    if (nodes == 1) add(kind, NcclAlgorithm::nvls, kSimple, latency, inside * heads * convert, nvls.ctas);
    else if (cluster.sharp && one_head_per_nic)
      add(kind, NcclAlgorithm::nvls, kSimple, latency, std::min(inside, nvls_speed) * heads * convert, nvls.ctas);
    if (nodes == 1 || !reduce_all) return;
    const double outside = nvls_speed * (nodes <= 2 ? 2 : 1);
    // A domain of many GPUs has more NICs than its own NVLink SHARP could feed: no faster than inside one domain.
    const Channels alone = nvls_channels(cluster, static_cast<std::int64_t>(p), 1);
    const double most =
        static_cast<double>(alone.count - 1) * alone.speed / 1e9 * nccl::kNvlsEfficiency[gen] * 2 / heads;
    const double each = std::min({inside, outside, nccl::kNvlsTreePerChannel[gen][column], most});
    add(kind, NcclAlgorithm::nvls_tree, kSimple,
        intra(NcclAlgorithm::nvls_tree, kSimple) + 2 * depth() * inter(NcclAlgorithm::nvls_tree, kSimple),
        each * heads * convert, nvls.ctas);
  }

  // SHARP in the network switches, one NIC per rank.
  void add_collnet(CollectiveKind kind) {
    if (!cluster.sharp || nodes == 1 ||
        nics_of_group(cluster, static_cast<std::int64_t>(p)) != static_cast<std::int64_t>(p))
      return;
    constexpr auto kDirect = NcclAlgorithm::collnet_direct, kChain = NcclAlgorithm::collnet_chain;
    constexpr auto kSimple = NcclProtocol::simple;
    const double direct =
        2 * (std::min(1.0, p - 1) * intra(kDirect, kSimple) + (p - 1) * 0.4) + inter(kDirect, kSimple);
    if (kind != CollectiveKind::all_reduce)
      return add(kind, kDirect, kSimple, direct, p * per_channel * 0.9, ring.ctas);
    double factor = p / count();
    factor -= (factor - 1) / 2;
    add(kind, kDirect, kSimple, direct, bus / factor * (gen >= 2 ? 0.85 : 1) / 2, ring.ctas);
    add(kind, kChain, kSimple, 2 * (p - 1) * intra(kChain, kSimple) + inter(kChain, kSimple), bus / 2, ring.ctas);
  }

  // Parallel aggregated trees: logarithmic in latency, only where every rank is alone on its node.
  void add_pat(CollectiveKind kind) {
    if (p != 1 || nodes == 1) return;
    constexpr auto kPat = NcclAlgorithm::pat;
    constexpr auto kSimple = NcclProtocol::simple;
    add(kind, kPat, kSimple, base(kPat, kSimple) + depth() * inter(kPat, kSimple) / 3.5 + 2.8 * n, 0.75 * bus,
        ring.ctas);
  }
};

NcclModel::NcclModel(const ClusterSpec& cluster, std::int64_t ranks, std::int64_t ranks_per_node, bool pessimistic)
    : ranks_(std::max<std::int64_t>(2, ranks)), nodes_(1) {
  const std::int64_t per_node = std::clamp<std::int64_t>(ranks_per_node, 1, ranks_);
  nodes_ = (ranks_ + per_node - 1) / per_node;
  Builder build(*this, cluster, per_node, pessimistic);
  ring_channels_ = build.ring.count;
  slow_ring_ = build.bus <= 12;
  if (nodes_ > 1) all_reduce_correction_ = cluster.gpu.compute_capability >= 80 ? 1.4 : 1.9;
  for (const CollectiveKind kind :
       {CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_reduce}) {
    ways_[static_cast<std::size_t>(kind)].reserve(10);
    if (kind == CollectiveKind::all_reduce) build.add_tree();
    else build.add_pat(kind);
    build.add_ring(kind);
    build.add_nvls(kind);
    build.add_collnet(kind);
  }
}

NcclChoice NcclModel::priced(const Way& way, CollectiveKind kind, double bytes) const {
  double latency = way.latency, per_byte = way.seconds_per_byte;
  if (kind == CollectiveKind::all_reduce) {
    if (way.algorithm == NcclAlgorithm::tree && bytes >= 64) {
      const auto step = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes / 64)) - 1);
      const auto& table = nccl::kTreeBySize[index(way.protocol)];
      if (step < table.size()) per_byte /= table[step];
    } else if (way.algorithm == NcclAlgorithm::ring && way.protocol == NcclProtocol::simple &&
               bytes >= 64.0 * static_cast<double>(ring_channels_ * ranks_)) {
      latency *= all_reduce_correction_;
    }
  }
  NcclChoice c;
  c.algorithm = way.algorithm;
  c.protocol = way.protocol;
  c.latency = Seconds(latency);
  c.transfer = Seconds(bytes * per_byte);
  c.ctas = way.ctas;
  return c;
}

namespace {

// NCCL drops channels while one would have less than this to do: threads times a threshold per thread.
std::int64_t channels_used(const NcclChoice& c, double bytes, std::int64_t ranks, bool slow_ring) {
  if (c.algorithm == NcclAlgorithm::nvls || c.algorithm == NcclAlgorithm::nvls_tree) return c.ctas;
  double least = 640.0 * 8;  // LL128
  if (c.protocol == NcclProtocol::simple) least = (slow_ring ? 256.0 : 512.0) * 64;
  else if (c.protocol == NcclProtocol::ll)
    least = 512.0 * 8 * (c.algorithm == NcclAlgorithm::ring ? static_cast<double>(ranks) : 1);
  return static_cast<std::int64_t>(std::clamp(std::floor(bytes / least), 1.0, static_cast<double>(c.ctas)));
}

}  // namespace

NcclChoice NcclModel::choose(CollectiveKind kind, Bytes full_tensor) const {
  const auto bytes = static_cast<double>(full_tensor.count());
  NcclChoice best;
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : ways_[static_cast<std::size_t>(kind)]) {
    const NcclChoice c = priced(way, kind, bytes);
    if (const double seconds = c.seconds().count(); seconds < least) {
      least = seconds;
      best = c;
    }
  }
  best.ctas = channels_used(best, bytes, ranks_, slow_ring_);
  return best;
}

NcclChoice NcclModel::price(NcclAlgorithm algorithm, NcclProtocol protocol, CollectiveKind kind,
                            Bytes full_tensor) const {
  const auto bytes = static_cast<double>(full_tensor.count());
  for (const Way& way : ways_[static_cast<std::size_t>(kind)]) {
    if (way.algorithm != algorithm || way.protocol != protocol) continue;
    NcclChoice c = priced(way, kind, bytes);
    c.ctas = channels_used(c, bytes, ranks_, slow_ring_);
    return c;
  }
  NcclChoice never{algorithm, protocol, {}, Seconds(std::numeric_limits<double>::infinity()), 0};
  return never;
}

}  // namespace fsdp
