#include "models/catalog/topology_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/topology.h"

namespace fsdp {
namespace {

constexpr const char* kMeasure = "; replace it by the bus bandwidth of all_gather_perf on one node";
constexpr const char* kMeasureRemedy =
    "start from `show cluster` of the GPU as a file, and give intra_bus as all_gather_perf measures it";

// One NVLink, one direction, as datasheets count it.
double link_rate(std::int64_t capability) {
  if (capability >= 100) return 50;
  if (capability == 86) return 14.0625;
  return capability >= 70 ? 25 : 20;
}

std::int64_t links_of(const NodeGpu& g) {
  std::int64_t links = g.links_to_switches + g.links_to_cpu;
  for (const auto& [bus, count] : g.links_to_gpus) links += count;
  return links;
}

void check_gpus(const GpuSpec& gpu, const NodeTopology& node, const std::string& where) {
  for (const NodeGpu& g : node.gpus) {
    if (g.compute_capability != gpu.compute_capability)
      throw InputError(where,
                       fmt::format("GPU {} has compute capability {}, and {} has {}", g.bus, g.compute_capability,
                                   gpu.name, gpu.compute_capability),
                       "name the GPU that the node has");
    if (links_of(g) != links_of(node.gpus.front()))
      throw InputError(where,
                       fmt::format("GPU {} has {}, and GPU {} has {}", g.bus, counted(links_of(g), "NVLink"),
                                   node.gpus.front().bus, counted(links_of(node.gpus.front()), "NVLink")),
                       "see with `nvidia-smi nvlink -s` which are down");
    if (g.path.slow && gpu.compute_capability >= 70)
      throw InputError(
          where, fmt::format("GPU {} shows a PCIe link of generation 1 or 2, as idle GPUs do", g.bus),
          "let the GPUs work before the job starts NCCL, or start from `show cluster` of the GPU as a file");
    if (g.links_to_cpu > 0)
      throw InputError(where, "NVLinks lead to a processor, which is not modelled", kMeasureRemedy);
  }
}

// NCCL leaves out links to GPUs that the job does not use. The rate that is counted without switches is that of the
// links among the GPUs of the job.
void check_links_inside(const NodeTopology& node, const std::string& where) {
  std::set<std::string> present;
  for (const NodeGpu& g : node.gpus) present.insert(g.bus);
  for (const NodeGpu& g : node.gpus)
    for (const auto& [bus, count] : g.links_to_gpus)
      if (!present.contains(bus))
        throw InputError(where, fmt::format("NVLinks join GPU {} with {}, which the job did not use", g.bus, bus),
                         "let a job that uses all GPUs of the node write the dump");
}

// How GPUs are joined by NVLink: all with all; only within groups, so that rings leave them over PCIe; not at all.
enum class Joined : std::uint8_t { all, groups, none };

Joined nvlinks(const NodeTopology& node, const std::string& where) {
  if (links_of(node.gpus.front()) == 0) return Joined::none;
  if (node.gpus.front().links_to_switches > 0) return Joined::all;
  check_links_inside(node, where);
  std::set<std::set<std::string>> groups;
  for (const NodeGpu& g : node.gpus) {
    std::set<std::string> group = {g.bus};
    std::set<std::int64_t> counts;
    for (const auto& [bus, count] : g.links_to_gpus) {
      group.insert(bus);
      counts.insert(count);
    }
    if (counts.size() > 1)
      throw InputError(where, fmt::format("NVLinks join GPU {} with some GPUs more than with others", g.bus),
                       kMeasureRemedy);
    groups.insert(group);
  }
  std::size_t members = 0;
  for (const auto& group : groups) members += group.size();
  if (members != node.gpus.size())  // groups overlap
    throw InputError(where, "NVLinks join the GPUs neither all with all nor in groups", kMeasureRemedy);
  if (groups.size() == node.gpus.size()) return Joined::none;
  return groups.size() == 1 ? Joined::all : Joined::groups;
}

// Of processors that have GPUs.
std::set<std::size_t> processors_with_gpus(const NodeTopology& node) {
  std::set<std::size_t> cpus;
  for (const NodeGpu& g : node.gpus) cpus.insert(g.cpu);
  return cpus;
}

std::string way_out(const NodeGpu& g) { return g.path.bridges.empty() ? g.bus : g.path.bridges.back(); }

// Does a ring pass from one way into a processor to another of the same processor?
bool passes_host_bridge(const NodeTopology& node, std::size_t cpu) {
  std::set<std::string> ways;
  for (const NodeGpu& g : node.gpus)
    if (g.cpu == cpu) ways.insert(way_out(g));
  return ways.size() > 1;
}

void add_pcie_ring(NodeFacts& f, const NodeTopology& node, Joined joined) {
  const std::string inside = joined == Joined::groups ? "NVLink joins the GPUs in groups only, between which rings go "
                                                      : "no NVLink is shown, and rings go ";
  if (f.gpu.peer_link == PeerLink::host_memory) {
    f.intra_bus = counted_intra_bus(f.gpu, node.cpus.front().vendor, static_cast<std::int64_t>(node.gpus.size()));
    f.intra_source = "assumed: " + inside +
                     "through the host's memory: NCCL's log of 8 RTX 4090 on two processors "
                     "(nccl-tests issue 307)" +
                     kMeasure;
    return;
  }
  double narrowest = 1e18;
  std::string where = "its PCIe links";
  bool known = true;
  const std::set<std::size_t> cpus = processors_with_gpus(node);
  for (const NodeGpu& g : node.gpus) {
    double rate = g.path.narrowest.count();
    // NCCL counts 6/5 of the traffic between two ways into an Intel processor.
    if (node.cpus[g.cpu].vendor == CpuVendor::intel && passes_host_bridge(node, g.cpu)) rate *= 5.0 / 6;
    narrowest = std::min(narrowest, rate);
    known = known && g.path.known;
  }
  if (cpus.size() > 1)
    for (const std::size_t cpu : cpus)
      if (node.cpus[cpu].between.count() < narrowest) {
        narrowest = node.cpus[cpu].between.count();
        where = "the link between its processors";
      }
  f.intra_bus = ring_rate(f.gpu, BytesPerSecond(narrowest));
  f.intra_source = fmt::format("{}topology dump: {}over PCIe; the narrowest part is {}, {:g} GB/s as NCCL counts it{}",
                               known ? "" : "assumed, since the dump leaves out speeds of PCIe links; ", inside, where,
                               narrowest / kGiga, kMeasure);
}

void add_links(NodeFacts& f, const NodeTopology& node, const std::string& where) {
  const Joined joined = nvlinks(node, where);
  const std::int64_t links = links_of(node.gpus.front());
  f.has_nvlink = joined == Joined::all;
  if (!f.has_nvlink) {
    if (f.gpu.nvlink.count() > 0)
      f.nvlink = joined == Joined::none ? "the topology dump shows none" : "the topology dump shows groups only";
    f.gpu.nvlink = {};
    if (f.gpu.peer_link == PeerLink::other)
      throw InputError(where, "NCCL's model does not know the links of " + f.gpu.name, kMeasureRemedy);
    add_pcie_ring(f, node, joined);
    return;
  }
  const BytesPerSecond rate(static_cast<double>(links) * link_rate(f.gpu.compute_capability) * kGiga);
  if (f.gpu.nvlink.count() <= 0 || rate / f.gpu.nvlink > 1.02 || rate / f.gpu.nvlink < 0.98) {
    f.gpu.nvlink = rate;
    f.nvlink = fmt::format("topology dump: {} of each GPU", counted(links, "link"));
  }
  f.intra_bus = counted_intra_bus(f.gpu, node.cpus.front().vendor, static_cast<std::int64_t>(node.gpus.size()));
  f.intra_source = fmt::format("topology dump: {} of each GPU {}, as NCCL counts them{}", counted(links, "NVLink"),
                               node.gpus.front().links_to_switches > 0 ? "to switches" : "to the other GPUs", kMeasure);
}

void add_host_link(NodeFacts& f, const NodeTopology& node) {
  BytesPerSecond slot(1e18);
  for (const NodeGpu& g : node.gpus) {
    if (!g.path.known) return;
    slot = std::min(slot, g.path.slot);
  }
  if (f.gpu.host_link.count() > 130e9) return;  // a chip-to-chip link, which is no slot
  if (const double ratio = slot / f.gpu.host_link; ratio > 0.97 && ratio < 1.03) return;
  f.gpu.host_link = BytesPerSecond(std::round(slot.count() / 1e8) * 1e8);
  f.host_link = "topology dump: speed and width of the GPUs' PCIe links";
}

bool shares_a_switch(const NodeCard& card, const NodeTopology& node) {
  return std::any_of(node.gpus.begin(), node.gpus.end(), [&](const NodeGpu& g) {
    return std::find_first_of(card.path.bridges.begin(), card.path.bridges.end(), g.path.bridges.begin(),
                              g.path.bridges.end()) != card.path.bridges.end();
  });
}

// NCCL takes the fastest cards; those behind the GPUs' own switches before others (storage, management).
void add_cards(NodeFacts& f, const NodeTopology& node) {
  std::vector<const NodeCard*> near, all;
  for (const NodeCard& c : node.cards) {
    all.push_back(&c);
    if (shares_a_switch(c, node)) near.push_back(&c);
  }
  const std::vector<const NodeCard*>& candidates = near.empty() ? all : near;
  if (candidates.empty()) return;
  const auto rate = [](const NodeCard* c) {
    return c->path.narrowest.count() > 0 ? std::min(c->speed, c->path.narrowest) : c->speed;
  };
  BytesPerSecond fastest;
  for (const NodeCard* c : candidates) fastest = std::max(fastest, rate(c));
  BytesPerSecond nominal;
  std::int64_t nearby = 0;
  for (const NodeCard* c : candidates) {
    if (rate(c) < fastest) continue;
    ++f.cards;
    nominal = std::max(nominal, c->speed);
    nearby += shares_a_switch(*c, node) ? 1 : 0;
  }
  f.card = fastest;
  f.card_source = fmt::format(
      "topology dump: {} of {:g} Gb/s{}{} for {}", counted(f.cards, "network card"), nominal.count() * 8 / kGiga,
      fastest < nominal ? fmt::format(", of which their PCIe links carry {:g},", fastest.count() * 8 / kGiga) : "",
      nearby > 0 ? " behind the GPUs' switches" : "", counted(static_cast<std::int64_t>(node.gpus.size()), "GPU"));
}

void add_shared(NodeFacts& f, const NodeTopology& node) {
  std::map<std::string, std::int64_t> gpus, cards;
  for (const NodeGpu& g : node.gpus)
    if (!g.path.bridges.empty()) ++gpus[g.path.bridges.back()];
  for (const NodeCard& c : node.cards)
    if (!c.path.bridges.empty()) ++cards[c.path.bridges.back()];
  std::int64_t most = 0, most_cards = 0;
  for (const auto& [bridge, n] : gpus) {
    most = std::max(most, n);
    if (const auto card = cards.find(bridge); card != cards.end()) most_cards = std::max(most_cards, card->second);
  }
  f.shared = fmt::format("topology dump: {} on {}", counted(static_cast<std::int64_t>(node.gpus.size()), "GPU"),
                         counted(static_cast<std::int64_t>(processors_with_gpus(node).size()), "NUMA node"));
  if (most > 1 || most_cards > 0)
    f.shared += fmt::format("; up to {}{} share a switch's link to the processor", counted(most, "GPU"),
                            most_cards > 0 ? " and " + counted(most_cards, "network card") : "");
}

}  // namespace

NodeFacts node_facts(const GpuSpec& catalog, const NodeTopology& node, const std::string& where) {
  check_gpus(catalog, node, where);
  NodeFacts f;
  f.gpu = catalog;
  add_host_link(f, node);
  add_links(f, node, where);
  add_cards(f, node);
  add_shared(f, node);
  return f;
}

}  // namespace fsdp
