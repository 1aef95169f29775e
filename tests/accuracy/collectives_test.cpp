// Published NCCL measurements beside NCCL's model as we price it, row by row: `accuracy_collectives_test -s` prints
// what is left out and why, and the errors by size, by collective and by machine.
//
// The rows (tests/accuracy/collectives.csv, each with its source) are mostly nccl-tests, which start a collective when
// the last one has ended: the skew of a training step is no part of them. Machines are described by their data sheets,
// the model is NCCL's, the fabric gives its 0.95 or 0.90, and no number was fitted to these rows but the latencies of
// three networks, read off messages of 1 KB and less (TCPX: of 1 MB). One rule was made
// after seeing some of them: NVLink SHARP in domains of more than 8 GPUs counts 8 heads, because the 72 GPUs of a GB200
// rack measure what 8 B200 do (models/topology.cpp; NVLS trees are capped likewise in
// planner/costs/collectives/nccl.cpp). Rows of GB200 are no independent check of it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "planner/costs/collectives/model.h"
#include "tests/accuracy/csv_rows.h"
#include "tests/accuracy/recorded_table.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

using Row = CsvRow;

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Gb/s of one NIC, NICs of a node, processors, by the machine's name; what is not said is as cluster_of assumes.
struct Machine {
  const char* hardware;
  const char* gpu;
  double nic_gbps;
  std::int64_t nics;
  CpuVendor cpu;
  bool sharp = false;
  double inter_latency_us = 0;  // Simple's, of a hop between nodes; 0: as NCCL's own constants
};
const std::vector<Machine> kMachines = {
    {"AWS p4de", "a100-sxm-80", 100, 4, CpuVendor::intel},
    {"AWS p5en", "h200-sxm", 400, 8, CpuVendor::intel},
    {"AWS p5.", "h100-sxm-80", 400, 8, CpuVendor::amd, false, 58},
    {"AWS P6-B200", "b200", 400, 8, CpuVendor::intel},
    {"Azure ND_A100_v4", "a100-sxm-80", 200, 8, CpuVendor::amd},
    {"Azure ND_H100_v5", "h100-sxm-80", 400, 8, CpuVendor::intel},
    {"Azure ND_H200_v5", "h200-sxm", 400, 8, CpuVendor::intel},
    {"CoreWeave GB200", "gb200", 400, 4, CpuVendor::arm},
    {"CoreWeave H100 HGX with SHARP", "h100-sxm-80", 400, 8, CpuVendor::intel, true},
    {"GCP a3-highgpu", "h100-sxm-80", 200, 4, CpuVendor::intel, false, 900},
    {"GCP a3-megagpu", "h100-sxm-80", 200, 8, CpuVendor::intel, false, 120},
    {"GCP A3 Ultra", "h200-sxm", 400, 8, CpuVendor::intel},  // or B200: between nodes the same
    {"GCP A4", "b200", 400, 8, CpuVendor::intel},
    {"Nebius", "h100-sxm-80", 400, 8, CpuVendor::intel},  // or H200: the same links
    {"nebius", "h100-sxm-80", 400, 8, CpuVendor::intel},
    {"OCI BM.GPU.B4.8", "a100-sxm-40", 200, 8, CpuVendor::amd},  // 16 x 100 Gb/s
    {"A100-40GB, 4x HDR", "a100-sxm-40", 200, 4, CpuVendor::amd},
    {"8x A100 node", "a100-sxm-80", 200, 8, CpuVendor::amd},
    {"H200", "h200-sxm", 400, 8, CpuVendor::intel},
    {"H100", "h100-sxm-80", 400, 8, CpuVendor::intel},
};

struct Asked {
  ClusterSpec cluster;
  CollectiveCall call;
  bool ring_only = false;
};

std::optional<CollectiveKind> kind_of(const std::string& name) {
  if (name == "all_gather") return CollectiveKind::all_gather;
  if (name == "reduce_scatter") return CollectiveKind::reduce_scatter;
  if (name == "all_reduce") return CollectiveKind::all_reduce;
  return {};
}

// The call of a row, or why there is none.
std::optional<Asked> asked(const Row& row, std::string& reason) {
  const auto kind = kind_of(row.at("collective"));
  if (!kind) return reason = "collective that FSDP does not use: " + row.at("collective"), std::nullopt;
  if (has(row.at("gpu"), "MI300")) return reason = "RCCL on AMD: other constants than NCCL's", std::nullopt;
  if (has(row.at("hardware"), "unstated")) return reason = "hardware not stated", std::nullopt;
  if (row.at("time_us").empty() || std::stod(row.at("time_us")) <= 0) return reason = "no time", std::nullopt;
  const auto machine = std::find_if(kMachines.begin(), kMachines.end(),
                                    [&](const Machine& m) { return has(row.at("hardware"), m.hardware); });
  if (machine == kMachines.end()) return reason = "unknown machine: " + row.at("hardware"), std::nullopt;
  const std::int64_t ranks = std::stoll(row.at("n_gpus")), nodes = std::stoll(row.at("n_nodes"));
  const GpuSpec gpu = load_gpu(machine->gpu, "test");
  const std::int64_t per_node = gpu.name == "gb200" ? 4 : 8;
  Asked a;
  a.cluster = cluster_of(gpu, ranks, per_node);
  a.cluster.cpu = machine->cpu;
  a.cluster.sharp = machine->sharp;
  if (machine->inter_latency_us > 0) a.cluster.inter_latency = Seconds(machine->inter_latency_us * 1e-6);
  a.cluster.nics_per_node = machine->nics;
  // As NCCL counts NICs: 12 GB/s for 100 Gb/s (and for 800 Gb/s: 96).
  a.cluster.inter_bus =
      BytesPerSecond(machine->nic_gbps * 0.12e9 * static_cast<double>(machine->nics) / static_cast<double>(per_node));
  const std::int64_t domains = gpu.name == "gb200" ? (ranks + 71) / 72 : nodes;
  a.call = {*kind, Bytes(std::stoll(row.at("size_bytes"))), ranks, ranks / domains, 1};
  a.ring_only = has(row.at("notes"), "NVLS_ENABLE=0");
  return a;
}

double predicted_us(const Asked& a) {
  Costs costs = default_costs(a.cluster);
  costs.collective_skew = Seconds(0);
  if (!a.ring_only)
    return CollectiveModel(a.call, a.cluster, costs).price(a.call.kind, a.call.bytes).seconds.count() * 1e6;
  const NcclModel model(a.cluster, a.call.ranks, a.call.ranks_per_node, false);
  double best = 1e30;
  for (const NcclProtocol p : {NcclProtocol::ll, NcclProtocol::ll128, NcclProtocol::simple})
    best = std::min(best, model.price(NcclAlgorithm::ring, p, a.call.kind, a.call.bytes).seconds().count() * 1e6);
  return best;
}

std::string decade(double bytes) {
  if (bytes < 64e3) return "1: below 64 kB";
  if (bytes < 1e6) return "2: 64 kB to 1 MB";
  if (bytes < 10e6) return "3: 1 to 10 MB";
  if (bytes < 100e6) return "4: 10 to 100 MB";
  return bytes < 1e9 ? "5: 100 MB to 1 GB" : "6: 1 GB and more";
}

// Errors are |ln(predicted / measured)|, so that twice too fast and twice too slow weigh the same.
struct Errors {
  std::vector<double> logs;
  void add(double predicted, double measured) { logs.push_back(std::log(predicted / measured)); }
  [[nodiscard]] double median() const { return quantile(0.5); }
  [[nodiscard]] double quantile(double q) const {
    std::vector<double> sizes;
    for (const double l : logs) sizes.push_back(std::exp(std::abs(l)) - 1);
    std::sort(sizes.begin(), sizes.end());
    return sizes.empty() ? 0 : sizes[static_cast<std::size_t>(q * static_cast<double>(sizes.size() - 1))];
  }
  [[nodiscard]] double bias() const {
    double sum = 0;
    for (const double l : logs) sum += l;
    return std::exp(sum / static_cast<double>(logs.size())) - 1;
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{:4} rows  median {:6.1f} %  p90 {:7.1f} %  bias {:+6.1f} %", logs.size(), 100 * median(),
                       100 * quantile(0.9), 100 * bias());
  }
};

}  // namespace

TEST_CASE("published collectives: every row as recorded, errors no larger than they were") {
  std::map<std::string, int> left_out;
  std::map<std::string, Errors> by_size, by_kind, by_machine, large;
  Errors all;
  int rows = 0;
  RecordedTable now("collectives.csv", {"row_id", "predicted_us"});
  for (const Row& row : read_csv_rows("accuracy/collectives.csv")) {
    ++rows;
    std::string reason;
    const auto a = asked(row, reason);
    if (!a) {
      ++left_out[reason];
      now.add(row.at("row_id"), {"skipped"});
      continue;
    }
    const double measured = std::stod(row.at("time_us")), predicted = predicted_us(*a);
    now.add(row.at("row_id"), {decimal(predicted)});
    const double bytes = static_cast<double>(a->call.bytes.count());
    const std::string nodes = a->call.ranks == a->call.ranks_per_node ? "one domain" : "several";
    all.add(predicted, measured);
    by_size[nodes + ", " + decade(bytes)].add(predicted, measured);
    by_kind[row.at("collective") + (bytes >= 10e6 ? ", 10 MB and more" : ", below")].add(predicted, measured);
    by_machine[row.at("hardware").substr(0, 50) + " x" + row.at("n_gpus") +
               (bytes >= 10e6 ? ", 10 MB and more" : ", below")]
        .add(predicted, measured);
    if (bytes >= 100e6) large[nodes + " " + a->cluster.gpu.name.substr(0, 4)].add(predicted, measured);
  }
  CHECK(rows == 995);
  int out = 0;
  std::string text = "\nleft out:\n";
  for (const auto& [reason, count] : left_out) {
    out += count;
    text += fmt::format("  {:4}  {}\n", count, reason);
  }
  text += "all: " + all.text() + "\n";
  for (const auto& [title, table] : {std::pair{"by size", &by_size},
                                     {"by collective", &by_kind},
                                     {"by machine", &by_machine},
                                     {"100 MB and more", &large}}) {
    text += std::string(title) + ":\n";
    for (const auto& [what, errors] : *table) text += fmt::format("  {:74} {}\n", what, errors.text());
  }
  MESSAGE(text);
  CHECK(now.differences() == "");
  CHECK(static_cast<int>(all.logs.size()) + out == rows);
  CHECK(out <= 995 - 868);
  // What was reached, rounded up: a change may make these smaller only. FSDP's collectives are large. Several A100 and
  // B200 nodes are far off: two nodes exchange a tree's halves in both directions at once, so that an all-reduce beats
  // the bus that NCCL's model (and ring) allows. So are GB200 racks, whose fabric is not stated.
  struct Reached {
    const std::map<std::string, Errors>& table;
    const char* group;
    double median, p90;
  };
  const Reached reached[] = {
      {large, "one domain a100", 0.0405, 0.2025},
      {large, "one domain b200", 0.0605, 0.1775},
      {large, "one domain gb20", 0.0665, 0.3875},
      {large, "one domain h100", 0.0355, 0.0975},
      {large, "one domain h200", 0.0145, 0.0745},
      {large, "several a100", 0.4505, 0.6935},
      {large, "several b200", 0.2965, 0.4335},
      {large, "several gb20", 0.5195, 2.1955},
      {large, "several h100", 0.0675, 0.5655},
      {large, "several h200", 0.0885, 0.1555},
      {by_size, "one domain, 6: 1 GB and more", 0.0155, 0.0695},
      {by_size, "several, 6: 1 GB and more", 0.0795, 0.7485},
  };
  for (const Reached& r : reached) {
    CAPTURE(r.group);
    CHECK(r.table.at(r.group).median() < r.median);
    CHECK(r.table.at(r.group).quantile(0.9) < r.p90);
  }
  CHECK(all.median() < 0.1775);
}

// SimAI (aliyun/SimAI) publishes what rings between nodes of 8 GPUs with 400 Gb/s NICs measured, as a fraction of 8
// x 48.5 GB/s.
TEST_CASE("rings of 2 to 128 nodes against SimAI's measured fractions: within 20 % from 256 MiB on") {
  struct Line {
    double mib;
    std::array<double, 7> fraction;  // 2, 4, 8, ... 128 nodes
  };
  const Line lines[] = {{256, {.85, .77, .69, .57, .387, .209, .103}},
                        {1024, {.92, .93, .90, .76, .74, .563, .315}},
                        {4096, {.95, .95, .95, .95, .923, .755, .74}}};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.fraction.size(); ++i) {
      const std::int64_t nodes = std::int64_t{2} << i, ranks = 8 * nodes;
      const ClusterSpec cluster = load_cluster("dgx-h100", ranks);
      Costs costs = default_costs(cluster);
      costs.collective_skew = Seconds(0);
      costs.pessimistic_collectives = true;
      const Bytes bytes(static_cast<std::int64_t>(line.mib * 1048576));
      const double seconds = CollectiveModel({CollectiveKind::all_gather, bytes, ranks, 8}, cluster, costs)
                                 .price(CollectiveKind::all_gather, bytes)
                                 .seconds.count();
      const double n = static_cast<double>(ranks),
                   fraction = static_cast<double>(bytes.count()) * (n - 1) / n / seconds / (8 * 48.5e9);
      CAPTURE(nodes);
      CAPTURE(line.mib);
      CHECK(fraction == relative(line.fraction[i]).epsilon(0.20));
    }
  }
}
