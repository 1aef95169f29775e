// Clusters and GPUs: JSON to values. The formats are those of models/clusters/*.json and models/gpus/*.json.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "models/catalog.h"
#include "models/cluster.h"
#include "models/host.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "models/topology.h"

namespace fsdp {
namespace {

// What GPUs, memories and links have, with room: today 5e12 to 5e15 FLOP/s, and 1e9 to 8e12 B/s.
constexpr FlopsPerSecond kLeastPeak(1e9), kMostPeak(1e17);
constexpr BytesPerSecond kLeastRate(1e6), kMostRate(1e15);

FlopsPerSecond peak(JsonObject& o, std::string_view key) {
  const auto text = o.optional_text(key);
  if (!text) return {};
  const FlopsPerSecond value = parse_flops_rate(*text, o.where(key));
  if (value.count() != 0 && (value < kLeastPeak || value > kMostPeak))
    o.refuse(key, "\"" + printable(*text) + "\" is out of range",
             fmt::format("give the dense peak of a real GPU, from {} to {}", human(kLeastPeak), human(kMostPeak)));
  return value;
}

template <class Q>
Q positive(Q value, const JsonObject& o, std::string_view key) {
  if (!(value.count() > 0)) o.refuse(key, "is zero", "give a positive value");
  return value;
}

Bytes size(JsonObject& o, std::string_view key) {
  const Bytes value = positive(parse_bytes(o.text(key), o.where(key)), o, key);
  if (value.count() > kMaxGpuBytes)
    o.refuse(key, human(value) + " is out of range",
             "give the size of a real memory, at most " + human(Bytes(kMaxGpuBytes)));
  return value;
}
BytesPerSecond rate(JsonObject& o, std::string_view key) {
  const std::string text = o.text(key);
  const BytesPerSecond value = positive(parse_rate(text, o.where(key)), o, key);
  if (value < kLeastRate || value > kMostRate)
    o.refuse(key, "\"" + printable(text) + "\" is out of range",
             fmt::format("give the rate of a real memory or link, from {} to {}", human(kLeastRate), human(kMostRate)));
  return value;
}

// Absent, or 0 as in files of before: NCCL's own.
std::optional<Seconds> latency(JsonObject& o, std::string_view key) {
  if (!o.has(key)) return {};
  const Seconds value = parse_seconds(o.text(key), o.where(key));
  if (value.count() > 1) o.refuse(key, "is longer than 1 s", "give the latency of a real link, such as \"14us\"");
  if (value.count() > 0) return value;
  return {};
}

std::string nonempty(JsonObject& o, std::string_view key) {
  std::string text = o.text(key);
  if (text.empty()) o.refuse(key, "is empty", "give a name");
  return text;
}

// "source": where the numbers come from, in words: one text, or one per field.
void read_source(JsonObject& o) {
  const auto source = o.find("source");
  if (!source || source->is_text()) return;
  JsonObject by_field = source->object();
  for (const std::string& key : by_field.keys()) (void)by_field.text(key);
}

// "attention": {"cudnn": [0.66, 0.58], ...}: forward and backward.
void read_attention(JsonObject& o, GpuSpec& g) {
  auto kernels = o.optional_object("attention");
  if (!kernels) return;
  for (std::size_t k = 0; k < g.attention.size(); ++k) {
    const auto kernel = static_cast<AttentionKernel>(k);
    const std::string_view key = name(kernel);
    if (!has_ceiling(kernel) || !kernels->has(key)) continue;
    const std::vector<double> pair = kernels->numbers(key, 0.001, 1);
    if (pair.size() != 2) kernels->refuse(key, "expected a pair [forward, backward]");
    g.attention[k] = {pair[0], pair[1]};
  }
  kernels->finish();
}

template <class Enum>
Enum one_of(JsonObject& o, std::string_view key, int count, Enum usual) {
  const std::string text = o.optional_text(key).value_or(std::string(name(usual)));
  std::vector<std::string> known;
  for (int i = 0; i < count; ++i) {
    known.emplace_back(name(static_cast<Enum>(i)));
    if (text == known.back()) return static_cast<Enum>(i);
  }
  o.refuse(key, "\"" + printable(text) + "\" is not known", suggestion(text, known));
}

GpuSpec gpu_from(JsonObject o) {
  o.require({"name", "fp32", "memory", "usable_memory", "memory_bandwidth", "sms", "l2", "host_link"},
            "give the datasheet's numbers");
  GpuSpec g;
  g.name = nonempty(o, "name");
  g.fp32 = positive(peak(o, "fp32"), o, "fp32");
  g.tf32 = peak(o, "tf32");
  g.bf16 = peak(o, "bf16");
  g.fp8 = peak(o, "fp8");
  g.memory = size(o, "memory");
  g.usable_memory = size(o, "usable_memory");
  if (g.usable_memory > g.memory) o.refuse("usable_memory", "is more than \"memory\"", "correct one of them");
  g.memory_bandwidth = rate(o, "memory_bandwidth");
  g.sms = o.integer("sms", 1, 100'000);
  g.l2 = size(o, "l2");
  g.host_link = rate(o, "host_link");
  if (o.has("nvlink")) g.nvlink = rate(o, "nvlink");
  g.peer_link = one_of(o, "peer_link", kPeerLinks, g.peer_link);
  if (o.has("mesh_link")) g.mesh_link = rate(o, "mesh_link");
  g.compute_capability = o.optional_integer("compute_capability", 10, 1000).value_or(g.compute_capability);
  const auto fraction = [&](std::string_view key, double usual) {
    return o.optional_number(key, 0.001, 1).value_or(usual);
  };
  g.matmul_efficiency = fraction("matmul_efficiency", g.matmul_efficiency);
  g.fp8_matmul_efficiency = fraction("fp8_matmul_efficiency", g.fp8_matmul_efficiency);
  g.sustained_clock = fraction("sustained_clock", g.sustained_clock);
  g.attention_forward_efficiency = fraction("attention_forward_efficiency", g.attention_forward_efficiency);
  g.attention_backward_efficiency = fraction("attention_backward_efficiency", g.attention_backward_efficiency);
  g.memory_efficiency = fraction("memory_efficiency", g.memory_efficiency);
  read_attention(o, g);
  o.ignore("schema");  // an inline object may be a pasted gpus/*.json
  read_source(o);
  o.finish();
  return g;
}

GpuSpec gpu_of(JsonObject& cluster) {
  const JsonValue value = cluster.at("gpu");
  return value.is_text() ? load_gpu(value.text(), value.where()) : gpu_from(value.object());
}

// Fields that files may leave out; ClusterSpec says what holds then.
void read_fabric(JsonObject& o, ClusterSpec& c) {
  c.nvlink_domain = o.optional_integer("nvlink_domain", 1, kGpus.most);
  if (c.domain() % c.gpus_per_node != 0)
    o.refuse("nvlink_domain", "is not whole nodes", "give a multiple of \"gpus_per_node\"");
  c.nics_per_node = o.optional_integer("nics_per_node", 1, kMaxGpusPerNode);
  c.cpu = one_of(o, "cpu", kCpuVendors, c.cpu);
  c.sharp = o.optional_boolean("sharp").value_or(false);
  c.oversubscription = o.optional_number("oversubscription", 1, 1000).value_or(1);
  c.rail_optimized = o.optional_boolean("rail_optimized").value_or(true);
  c.intra_latency = latency(o, "intra_latency");
  c.inter_latency = latency(o, "inter_latency");
  c.collective_base_latency = latency(o, "collective_base_latency");
  c.collective_sms = o.optional_integer("collective_sms", 0, c.gpu.sms);
  if (c.collective_sms == 0) c.collective_sms.reset();  // as in NCCL_MAX_CTAS: no limit
}

// The most that the PCIe slot of a network card carries: the GPUs' own generation, or the one after it from Blackwell
// on (800 Gb/s cards). A chip-to-chip link says nothing of the slots: PCIe 6 then.
BytesPerSecond slot_rate(const GpuSpec& gpu) {
  if (gpu.host_link.count() > 130e9) return BytesPerSecond(126e9);
  return gpu.compute_capability >= 100 ? gpu.host_link * 2.0 : gpu.host_link;
}

// What rings inside a node carry, between nodes, and what lies outside of the allocator. A file may leave them out:
// then they follow from the GPU and the NICs as NCCL counts them, and `assumed` says so.
void read_rates(JsonObject& o, ClusterSpec& c) {
  if (o.has("intra_bus")) {
    c.intra_bus = rate(o, "intra_bus");
  } else if (!links_known(c.gpu)) {
    o.refuse("intra_bus", "is missing, and NCCL's model does not know the links of " + c.gpu.name,
             "measure all-gather on one node and give its bus bandwidth");
  } else {
    c.intra_bus = counted_intra_bus(c.gpu, c.cpu, c.gpus_per_node);
    const std::string links = c.gpu.nvlink.count() > 0      ? "over NVLink"
                              : c.gpu.mesh_link.count() > 0 ? "over the link between each two GPUs"
                              : c.gpu.peer_link == PeerLink::host_memory
                                  ? "through the host's memory (8 RTX 4090)"
                                  : fmt::format("over PCIe and between two {} processors", name(c.cpu));
    if (c.domain() > 1)
      c.assumed.push_back(fmt::format("intra_bus {}: as NCCL counts rings {}", human(c.intra_bus), links));
  }
  if (o.has("nic") && o.has("inter_bus"))
    o.refuse("inter_bus", "is given beside \"nic\", from which it follows", "give one of the two");
  if (o.has("inter_bus")) {
    c.inter_bus = rate(o, "inter_bus");
  } else {
    const bool given = o.has("nic");
    const BytesPerSecond nic = given ? rate(o, "nic") : reference_nic(c.gpu);
    if (given && nic > slot_rate(c.gpu))
      o.refuse("nic", human(nic) + " is more than the PCIe slot of a network card carries",
               "give its nominal rate in bits, such as \"400Gb/s\"");
    c.inter_bus = counted_inter_bus(c.gpu, nic, c.nics(), c.gpus_per_node);
    if (c.gpus > c.domain() && !(given && c.nics_per_node))
      c.assumed.push_back(
          fmt::format("inter_bus {}: {} NIC{} of {:g} Gb/s for the {} GPUs of a node, as in the vendor's "
                      "reference design",
                      human(c.inter_bus), c.nics(), c.nics() == 1 ? "" : "s", nic.count() * 8 / 1e9, c.gpus_per_node));
  }
  if (c.nics_per_node && nic_rate(c) > slot_rate(c.gpu))
    o.refuse("inter_bus",
             fmt::format("{} for each of {} GPUs is {} through each of {} NICs, more than a PCIe slot "
                         "carries",
                         human(c.inter_bus), c.gpus_per_node, human(nic_rate(c)), c.nics()),
             "divide the bus bandwidth between whole nodes by the GPUs of a node");
  if (o.has("fixed_memory")) {
    c.fixed_memory = parse_bytes(o.text("fixed_memory"), o.where("fixed_memory"));
  } else {
    c.fixed_memory = counted_fixed_memory(c);
    c.assumed.push_back(fmt::format("fixed_memory {}: a CUDA context with PyTorch's kernels and NCCL's buffers",
                                    human(c.fixed_memory)));
  }
  c.communicator_memory =
      o.has("communicator_memory") ? size(o, "communicator_memory") : counted_communicator_memory(c);
  if (o.has("host_memory")) c.host_memory = size(o, "host_memory");
  if (c.fixed_memory > c.gpu.usable_memory)
    o.refuse("fixed_memory", human(c.fixed_memory) + " is more than the GPU's usable " + human(c.gpu.usable_memory),
             "give what a process holds outside of the allocator, such as \"1.5GiB\"");
}

// How many GPUs: what was asked for, one node by default. `nodes`, where the file states them, are the most.
std::int64_t gpu_count(std::int64_t asked, const ClusterSpec& c, std::optional<std::int64_t> nodes,
                       std::string_view where) {
  const Origin gpus = setting("gpus");
  if (asked == 0) return c.gpus_per_node;
  if (!kGpus.holds(asked))
    throw InputError(gpus, fmt::format("{} is out of range", asked), fmt::format("use 1 to {}", kGpus.most));
  if (nodes && asked > *nodes * c.gpus_per_node) {
    const std::int64_t all = *nodes * c.gpus_per_node;
    throw InputError(gpus, fmt::format("{} GPUs are more than the {} that {} has", asked, all, where),
                     fmt::format("use at most {}", all));
  }
  if (asked > c.gpus_per_node && asked % c.gpus_per_node != 0) {
    throw InputError(gpus,
                     fmt::format("{} GPUs do not fill whole nodes of {} (cluster {})", asked, c.gpus_per_node, c.name),
                     fmt::format("use {} or {}", asked / c.gpus_per_node * c.gpus_per_node,
                                 (asked / c.gpus_per_node + 1) * c.gpus_per_node));
  }
  return asked;
}

}  // namespace

GpuSpec load_gpu(std::string_view name, const Origin& where) {
  const std::string file = fmt::format("gpus/{}.json", name);
  const std::string_view text = embedded_file(file);
  if (text.empty())
    throw InputError(where, "\"" + printable(name) + "\" is not a known GPU", suggestion(name, gpu_names()));
  const JsonDocument document = parse_document(text, file, "fsdp-plan/gpu/1");
  return gpu_from(document.root());
}

ClusterSpec cluster_from_json(std::string_view json_text, std::string_view where, std::int64_t gpus) {
  const JsonDocument document = parse_document(json_text, where, "fsdp-plan/cluster/1");
  JsonObject o = document.root();
  o.require({"name", "gpu", "gpus_per_node"}, "start from what `fsdp-plan show cluster` writes as a file");
  ClusterSpec c;
  c.name = nonempty(o, "name");
  c.gpu = gpu_of(o);
  c.gpus_per_node = o.integer("gpus_per_node", 1, kMaxGpusPerNode);
  const auto nodes = o.optional_integer("nodes", 1, kGpus.most / c.gpus_per_node);
  read_fabric(o, c);
  c.gpus = gpu_count(gpus, c, nodes, where);
  read_rates(o, c);
  if (const auto price = o.find("price"))
    c.price = price->is_text() ? parse_price(price->text(), price->where())
                               : checked_price(price->number(-1e300, 1e300), price->where());
  read_source(o);
  o.finish();
  return c;
}

ClusterSpec load_cluster(std::string_view spec, std::int64_t gpus) {
  if (spec == "host") return host_cluster(gpus);
  const std::string catalog = fmt::format("clusters/{}.json", spec);
  if (const std::string_view text = embedded_file(catalog); !text.empty())
    return cluster_from_json(text, catalog, gpus);
  const std::string path(spec);
  std::error_code error;
  if (std::filesystem::exists(path, error) || path.find('/') != std::string::npos || path.ends_with(".json")) {
    return cluster_from_json(read_file(path, setting("cluster")), path, gpus);
  }
  throw InputError(setting("cluster"), "\"" + printable(spec) + "\" is not in the catalog, nor a file",
                   suggestion(spec, cluster_names()));
}

}  // namespace fsdp
