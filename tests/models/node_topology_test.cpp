// Topology dumps of NCCL to cluster files: nodes whose numbers the catalog has from elsewhere, and what is refused.
#include "models/catalog/node_topology.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "models/catalog.h"
#include "models/input/error.h"
#include "models/topology.h"

using namespace fsdp;

namespace {

std::string dump(const std::string& name) {
  std::ifstream file(FSDP_TESTS_DIR "/fuzz/corpus/topology_dump_fuzz/" + name);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}
NodeTopology node_of(const std::string& name) { return parse_node_topology(dump(name), name); }
std::string file_of(const std::string& gpu, const std::string& name) { return cluster_file(gpu, node_of(name), name); }
ClusterSpec cluster_from(const std::string& gpu, const std::string& name) {
  return cluster_from_json(file_of(gpu, name), "mine.json");
}

template <class Action>
std::string refusal_of(Action action) {
  try {
    (void)action();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}
bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// What the two clusters are to NCCL.
void check_same_links(const ClusterSpec& a, const ClusterSpec& b) {
  CHECK(a.gpus_per_node == b.gpus_per_node);
  CHECK(a.intra_bus == b.intra_bus);
  CHECK(a.inter_bus == b.inter_bus);
  CHECK(a.nics() == b.nics());
  CHECK(a.cpu == b.cpu);
  CHECK(a.gpu == b.gpu);
}

}  // namespace

TEST_CASE("the dump of a DGX H100 gives the catalog's DGX H100, whose rates were measured") {
  check_same_links(cluster_from("h100-sxm-80", "dgx-h100.xml"), load_cluster("dgx-h100"));
}

TEST_CASE("the dump of a DGX A100 gives the catalog's, without the card for storage") {
  const NodeTopology node = node_of("dgx-a100.xml");
  CHECK(node.cards.size() == 9);
  CHECK(node.gpus[0].links_to_switches == 12);
  CHECK(node.gpus[0].path.bridges.size() == 2);
  CHECK(node.gpus[0].path.narrowest == BytesPerSecond(24e9));
  check_same_links(cluster_from("a100-sxm-80", "dgx-a100.xml"), load_cluster("dgx-a100-80"));
  CHECK(says(file_of("a100-sxm-80", "dgx-a100.xml"), "up to 2 GPUs and 2 network cards share"));
}

TEST_CASE("eight RTX 4090 on two processors have the ring of NCCL's log, and share one card") {
  const ClusterSpec c = cluster_from("rtx-4090", "rtx-4090.xml");
  CHECK(c.intra_bus == BytesPerSecond(5e9));  // nccl-tests issue 307
  CHECK(c.nics() == 1);
  CHECK(c.inter_bus == BytesPerSecond(12e9 / 8));  // NCCL counts 12 GB/s of 100 Gb/s
  CHECK(says(file_of("rtx-4090", "rtx-4090.xml"), "assumed: no NVLink is shown"));
}

TEST_CASE("over PCIe the narrowest part of the ring decides") {
  const GpuSpec gpu = load_gpu("a100-pcie-80", "test");
  // 24 GB/s of generation 4 x16; 16 GB/s between AMD's processors.
  CHECK(cluster_from("a100-pcie-80", "a100-pcie.xml").intra_bus == counted_intra_bus(gpu, CpuVendor::amd, 8));
  // 5/6 of 24 GB/s through an Intel processor, 22 GB/s between two of them (Sapphire Rapids).
  CHECK(cluster_from("a100-pcie-80", "a100-pcie-intel.xml").intra_bus == BytesPerSecond(20e9));
  // One slot with four lanes: 6 GB/s, and 5/6 of it.
  const std::string narrow = replaced(dump("a100-pcie-intel.xml"), "link_width=\"16\"", "link_width=\"4\"");
  const auto c = cluster_from_json(cluster_file("a100-pcie-80", parse_node_topology(narrow, "n"), "n"), "mine.json");
  CHECK(c.intra_bus == BytesPerSecond(5e9));
  CHECK(c.gpu.host_link.count() == doctest::Approx(7.9e9));
}

TEST_CASE("bridges between pairs leave the ring on PCIe, a full mesh does not") {
  const ClusterSpec pairs = cluster_from("a100-pcie-80", "a100-bridges.xml");
  CHECK(pairs.intra_bus == BytesPerSecond(10e9));  // between two Intel processors before Sapphire Rapids
  CHECK(pairs.gpu.nvlink.count() == 0);
  const ClusterSpec mesh = cluster_from("a100-sxm-80", "mesh-a100.xml");
  CHECK(mesh.gpus_per_node == 4);
  CHECK(mesh.intra_bus == counted_intra_bus(load_gpu("a100-sxm-80", "test"), CpuVendor::amd, 8));
}

TEST_CASE("fewer links than the catalog's GPU has are the node's own") {
  std::string xml = dump("mesh-a100.xml");
  for (std::size_t at = xml.find("count=\"4\""); at != std::string::npos; at = xml.find("count=\"4\""))
    xml[at + 7] = '2';
  const std::string file = cluster_file("a100-sxm-80", parse_node_topology(xml, "n"), "n");
  const ClusterSpec c = cluster_from_json(file, "mine.json");
  CHECK(c.gpu.nvlink == BytesPerSecond(150e9));  // 6 links of 25 GB/s
  CHECK(c.intra_bus == BytesPerSecond(120e9));   // NCCL counts 20 of each
  CHECK(says(file, "topology dump: 6 links of each GPU"));
}

TEST_CASE("links to GPUs that the job did not use are no links of its rings") {
  std::string xml = dump("mesh-a100.xml");
  const std::size_t second = xml.find("<pci busid=\"0000:02:00.0\""), end = xml.find("</cpu>");
  xml.erase(second, end - second);  // two GPUs of four; their links to the others are still there
  CHECK(
      refusal_of([&] { return cluster_file("a100-sxm-80", parse_node_topology(xml, "n"), "n"); }) ==
      "n: NVLinks join GPU 0000:00:00.0 with 0000:02:00.0, which the job did not use; let a job that uses all GPUs of "
      "the node write the dump");
}

TEST_CASE("a node needs the name of a GPU, not of a cluster") {
  CHECK(says(refusal_of([&] { return cluster_file("dgx-h100", node_of("dgx-h100.xml"), "n"); }),
             "topology: \"dgx-h100\" is not a known GPU"));
}

TEST_CASE("a virtual machine hides switches, speeds and cards, and what is assumed then says so") {
  const NodeTopology node = node_of("vm-h100.xml");
  CHECK_FALSE(node.gpus[0].path.known);
  const ClusterSpec c = cluster_from("h100-sxm-80", "vm-h100.xml");
  CHECK(c.intra_bus == load_cluster("dgx-h100").intra_bus);
  CHECK(c.gpu == load_gpu("h100-sxm-80", "test"));  // no slot is known to differ
  CHECK(c.nics() == 1);
  const std::string without = replaced(dump("vm-h100.xml"), "speed=\"100000\"", "speed=\"-1\"");
  const std::string file = cluster_file("h100-sxm-80", parse_node_topology(without, "n"), "n");
  CHECK(says(file, "assumed: the topology dump shows no network card"));
  CHECK(cluster_from_json(file, "mine.json").inter_bus == load_cluster("dgx-h100").inter_bus);
}

TEST_CASE("what is no dump of one node is refused by name, with what to do") {
  const auto refused = [](const std::string& xml, const std::string& words) {
    const std::string said = refusal_of([&] { return parse_node_topology(xml, "node.xml"); });
    CHECK_MESSAGE((says(said, "node.xml") && says(said, words)), said);
  };
  refused("", "no XML");
  refused("{}", "no XML");
  refused(dump("cut.xml"), "no XML");
  refused("<graph/>", "no <system>");
  refused(dump("for-nccl.xml"), "a file for NCCL");
  refused(dump("deep.xml"), "more than 64 deep");
  refused(dump("numbers.xml"), "not a whole number");
  refused("<system>" + std::string(std::size_t{5} << 20, ' ') + "</system>", "larger than 4 MiB");
  refused(replaced(dump("dgx-h100.xml"), "host_hash=\"0xabc\"", "host_hash=\"0xdef\""), "several machines");
  refused(replaced(dump("dgx-h100.xml"), "sm=\"90\" ", ""), "has no sm");
}

TEST_CASE("a dump of other GPUs than the named ones, or of links that are no ring, makes no file") {
  const auto refused = [](const std::string& gpu, const NodeTopology& node, const std::string& words) {
    const std::string said = refusal_of([&] { return cluster_file(gpu, node, "node.xml"); });
    CHECK_MESSAGE(says(said, words), said);
  };
  refused("a100-sxm-80", node_of("dgx-h100.xml"), "compute capability 90");
  refused("h900", node_of("dgx-h100.xml"), "not a known GPU");
  refused("v100-sxm2-16", node_of("dgx-1.xml"), "neither all with all nor in groups");
  const std::string idle = replaced(dump("rtx-4090.xml"), "class=\"0x030000\" link_speed=\"16.0 GT/s",
                                    "class=\"0x030000\" link_speed=\"2.5 GT/s");
  refused("rtx-4090", parse_node_topology(idle, "n"), "as idle GPUs do");
  const std::string down = replaced(dump("dgx-h100.xml"), "count=\"4\"", "count=\"3\"");
  refused("h100-sxm-80", parse_node_topology(down, "n"), "nvidia-smi nvlink -s");
}

TEST_CASE("entities of a document type are not expanded") {
  const NodeTopology node = node_of("entities.xml");
  CHECK(node.gpus.size() == 1);
  CHECK(node.gpus[0].bus.size() < 10);
}
