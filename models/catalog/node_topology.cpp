// Facts from NCCL 2.28: src/graph/xml.cc writes the dump, src/graph/topo.cc and topo.h count its links.
#include "models/catalog/node_topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <pugixml.hpp>
#include <set>

#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "models/topology.h"

namespace fsdp {
namespace {

constexpr const char* kDumpRemedy = "let a job that uses all GPUs of the node write it: NCCL_TOPO_DUMP_FILE=node.xml";

// A lane of each generation, one direction: what PCIe carries after its encoding, and what NCCL counts; GB/s.
struct Lane {
  double transfers, carried, counted;  // GT/s
};
constexpr std::array kLanes = {Lane{2.5, 0.25, 15 / 80.0},
                               Lane{5, 0.5, 30 / 80.0},
                               Lane{8, 8 * 128 / 130.0 / 8, 60 / 80.0},
                               Lane{16, 16 * 128 / 130.0 / 8, 120 / 80.0},
                               Lane{32, 32 * 128 / 130.0 / 8, 240 / 80.0},
                               Lane{64, 126 / 16.0, 480 / 80.0}};
constexpr const Lane& kUnknownLane = kLanes[2];
constexpr std::int64_t kUnknownWidth = 16;

// Between two processors, as NCCL counts it: GB/s.
double between(CpuVendor vendor, std::int64_t family, std::int64_t model) {
  if (vendor == CpuVendor::amd) return 16;
  if (vendor == CpuVendor::arm) return 6;
  if (family != 6 || model < 0x55) return 6;            // Broadwell and before
  return model >= 0xCF ? 40 : model >= 0x8F ? 22 : 10;  // Emerald Rapids, Sapphire Rapids, Skylake
}

class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  NodeTopology read(std::string_view xml) {
    if (static_cast<std::int64_t>(xml.size()) > kMaxTopologyBytes)
      refuse("is larger than 4 MiB", "give the dump of one node");
    pugi::xml_document document;
    const pugi::xml_parse_result parsed = document.load_buffer(xml.data(), xml.size(), pugi::parse_minimal);
    if (!parsed) refuse(fmt::format("is no XML: {} at byte {}", parsed.description(), parsed.offset), kDumpRemedy);
    const pugi::xml_node system = document.child("system");
    if (!system) refuse("has no <system>", kDumpRemedy);
    for (const pugi::xml_node cpu : system.children("cpu")) read_cpu(cpu);
    if (hosts_.size() > 1) refuse("describes several machines", "give the dump of a job on one node");
    if (node_.gpus.empty()) refuse("names no <gpu>: it is a file for NCCL, not one by NCCL", kDumpRemedy);
    return std::move(node_);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem, const std::string& remedy) const {
    throw InputError(where_, problem, remedy);
  }
  [[nodiscard]] static std::string text(const pugi::xml_node& node, const char* name) {
    return printable(node.attribute(name).value());
  }
  [[nodiscard]] std::optional<std::int64_t> integer(const pugi::xml_node& node, const char* name, std::int64_t least,
                                                    std::int64_t most) const {
    const std::string_view value = node.attribute(name).value();
    if (value.empty()) return std::nullopt;
    std::int64_t number = 0;
    const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (problem != std::errc() || end != value.data() + value.size() || number < least || number > most)
      refuse(fmt::format("{} of <{}> is '{}', not a whole number from {} to {}", name, node.name(), printable(value),
                         least, most),
             kDumpRemedy);
    return number;
  }
  [[nodiscard]] std::int64_t required(const pugi::xml_node& node, const char* name, std::int64_t least,
                                      std::int64_t most) const {
    const auto number = integer(node, name, least, most);
    if (!number) refuse(fmt::format("a <{}> has no {}", node.name(), name), kDumpRemedy);
    return *number;
  }

  void read_cpu(const pugi::xml_node& cpu) {
    hosts_.insert(cpu.attribute("host_hash").value());
    const std::string vendor = cpu.attribute("vendor").value();
    NodeCpu c;
    c.numa = integer(cpu, "numaid", -1, 65'535).value_or(0);
    if (vendor.find("AMD") != std::string::npos) c.vendor = CpuVendor::amd;
    if (std::string_view(cpu.attribute("arch").value()).find("arm") != std::string_view::npos ||
        std::string_view(cpu.attribute("arch").value()) == "aarch64")
      c.vendor = CpuVendor::arm;
    c.between = BytesPerSecond(kGiga * between(c.vendor, integer(cpu, "familyid", 0, 65'535).value_or(0),
                                               integer(cpu, "modelid", 0, 65'535).value_or(0)));
    node_.cpus.push_back(c);
    for (const pugi::xml_node pci : cpu.children("pci")) read_pci(pci, {}, 1);
    for (const pugi::xml_node nic : cpu.children("nic")) read_card(nic, {});  // sockets of an unknown card
  }

  // The link of this device or bridge, added to the way that leads up from it.
  [[nodiscard]] PciPath below(const pugi::xml_node& pci, PciPath path) const {
    const auto width = integer(pci, "link_width", 0, 64);
    const std::string_view speed = pci.attribute("link_speed").value();
    double transfers = 0;
    (void)std::from_chars(speed.data(), speed.data() + speed.size(), transfers);
    const auto* lane =
        std::find_if(kLanes.begin(), kLanes.end(), [&](const Lane& l) { return l.transfers == transfers; });
    if (lane == kLanes.end() || width.value_or(0) == 0) path.known = false;
    path.slow = lane != kLanes.end() && lane->transfers < kUnknownLane.transfers;
    if (lane == kLanes.end()) lane = &kUnknownLane;
    const auto lanes = static_cast<double>(width.value_or(0) == 0 ? kUnknownWidth : *width);
    path.slot = BytesPerSecond(kGiga * lanes * lane->carried);
    const BytesPerSecond counted(kGiga * lanes * lane->counted);
    path.narrowest = path.narrowest.count() > 0 ? std::min(path.narrowest, counted) : counted;
    return path;
  }

  void read_pci(const pugi::xml_node& pci, PciPath path, int depth) {
    if (depth > kMaxTopologyDepth) refuse(fmt::format("is nested more than {} deep", kMaxTopologyDepth), kDumpRemedy);
    path = below(pci, path);
    for (const pugi::xml_node gpu : pci.children("gpu")) read_gpu(pci, gpu, path);
    if (const pugi::xml_node nic = pci.child("nic")) read_card(nic, path);
    path.bridges.insert(path.bridges.begin(), text(pci, "busid"));
    for (const pugi::xml_node device : pci.children("pci")) read_pci(device, path, depth + 1);
  }

  void read_gpu(const pugi::xml_node& pci, const pugi::xml_node& gpu, const PciPath& path) {
    if (!gpu.attribute("rank") || integer(gpu, "rank", -1, kMaxInt) == -1) return;  // no part of the job
    NodeGpu g;
    g.bus = text(pci, "busid");
    g.device = integer(gpu, "dev", 0, kMaxInt).value_or(0);
    g.compute_capability = required(gpu, "sm", 10, 1000);
    g.cpu = node_.cpus.size() - 1;
    g.path = path;
    for (const pugi::xml_node link : gpu.children("nvlink")) {
      const std::int64_t count = required(link, "count", 1, 1024);
      const std::string_view kind = link.attribute("tclass").value();
      if (kind.starts_with("0x03")) g.links_to_gpus[text(link, "target")] += count;
      else if (kind == "0x068001") g.links_to_cpu += count;
      else g.links_to_switches += count;  // 0x068000, also where the target is hidden from a virtual machine
    }
    for (const NodeGpu& other : node_.gpus)
      if (other.bus == g.bus) refuse("names GPU " + g.bus + " twice", "share no GPU between ranks of the job");
    node_.gpus.push_back(std::move(g));
    if (static_cast<std::int64_t>(node_.gpus.size()) > kMaxGpusPerNode)
      refuse(fmt::format("names more than {} GPUs", kMaxGpusPerNode), "give the dump of one node");
  }

  void read_card(const pugi::xml_node& nic, const PciPath& path) {
    NodeCard card;
    card.cpu = node_.cpus.size() - 1;
    card.path = path;
    std::int64_t fastest = 0, ports = 0;
    for (const pugi::xml_node net : nic.children("net")) {
      const std::int64_t megabits = integer(net, "speed", -1, 100'000'000).value_or(0);  // Mb/s; -1: not known
      if (megabits > fastest) {
        fastest = megabits;
        ports = 0;
        card.name = text(net, "name");
      }
      ports += megabits == fastest ? 1 : 0;
    }
    if (fastest <= 0) return;
    card.speed = BytesPerSecond(static_cast<double>(fastest * ports) * 1e6 / 8);
    node_.cards.push_back(std::move(card));
  }

  static constexpr std::int64_t kMaxInt = 1 << 30;
  std::string where_;
  NodeTopology node_;
  std::set<std::string> hosts_;
};

}  // namespace

NodeTopology parse_node_topology(std::string_view xml, std::string_view where) { return Reader(where).read(xml); }

}  // namespace fsdp
