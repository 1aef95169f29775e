// The catalog: parameter counts are exact, and every file in it loads.
#include "models/catalog.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <string>

#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"
#include "models/topology.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Count {
  const char* name;
  std::int64_t parameters;
};

// Published counts (model cards and safetensors headers), each storage once. The Mosaic benchmark models follow
// vocab * d + positions * d + layers * (12 d^2 + 13 d) + 2 d: per block a fused qkv (3 d^2 + 3 d), an output projection
// (d^2 + d), a feed-forward of 4 d (8 d^2 + 5 d) and two LayerNorms (4 d); one LayerNorm (2 d) at the end; tied head.
constexpr std::int64_t mosaic(std::int64_t layers, std::int64_t d, std::int64_t positions) {
  return 50368 * d + positions * d + layers * (12 * d * d + 13 * d) + 2 * d;
}
static_assert(mosaic(32, 4096, 2048) == 6'658'859'008);

// tiny-llama: 2 * 1024 * 128 embedding and head; per layer 2 * 128 * 128 (q, o) + 2 * 128 * 64 (k, v) + 3 * 128 * 352 +
// 2 * 128; 128.
constexpr std::int64_t kTiny = 2 * 1024 * 128 + 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 352 + 2 * 128) + 128;
// small-llama: the same with vocab 8192, hidden 384, kv 128, ffn 1024, 8 layers.
constexpr std::int64_t kSmall = 2 * 8192 * 384 + 8 * (2 * 384 * 384 + 2 * 384 * 128 + 3 * 384 * 1024 + 2 * 384) + 384;

// tiny-mixtral: tiny-llama with a router of 4 experts (4 * 128), each 3 * 128 * 176, for each feed-forward.
constexpr std::int64_t kTinyMixtral = kTiny + 4 * (4 * 128 + 4 * 3 * 128 * 176 - 3 * 128 * 352);

constexpr Count kCounts[] = {
    {"llama3-8b", 8'030'261'248},
    {"llama3-70b", 70'553'706'496},
    {"llama3.1-405b", 405'853'388'800},
    {"llama2-7b", 6'738'415'616},
    {"llama2-13b", 13'015'864'320},
    {"llama2-70b", 68'976'648'192},
    {"mistral-7b", 7'241'732'096},
    {"qwen2.5-7b", 7'615'616'512},
    {"qwen2.5-0.5b", 494'032'768},
    {"qwen3-0.6b", 596'049'920},
    {"qwen3-8b", 8'190'735'360},
    {"qwen3-32b", 32'762'123'264},
    {"mixtral-8x7b", 46'702'792'704},
    {"qwen3-30b-a3b", 30'532'122'624},
    {"olmoe-1b-7b", 6'919'161'856},
    {"glm-4.5-air", 106'852'245'504},  // without the layer of multi-token prediction, as transformers builds them
    {"deepseek-v2", 235'741'434'880},
    {"deepseek-v2-lite", 15'706'484'224},
    {"deepseek-v3", 671'026'404'352},
    {"gpt-oss-20b", 20'914'757'184},
    {"gpt-oss-120b", 116'829'156'672},
    {"gpt2", 124'439'808},
    {"gpt2-xl", 1'557'611'200},
    {"mpt-7b", 6'649'286'656},
    {"mpt-125m-bench", mosaic(12, 768, 2048)},
    {"mpt-350m-bench", mosaic(24, 1024, 2048)},
    {"mpt-760m-bench", mosaic(24, 1536, 2048)},
    {"mpt-1b-bench", mosaic(24, 2048, 2048)},
    {"mpt-3b-bench", mosaic(32, 2560, 2048)},
    {"mpt-7b-bench", mosaic(32, 4096, 2048)},
    {"mpt-13b-bench", mosaic(40, 5120, 2048)},
    {"mpt-30b-bench", mosaic(48, 7168, 2048)},
    {"mpt-70b-bench", mosaic(80, 8192, 2048)},
    {"tiny-llama", kTiny},
    {"small-llama", kSmall},
    {"tiny-mixtral", kTinyMixtral},
};

struct TempFolder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("fsdp-plan-test-" + std::to_string(std::random_device()()));
  TempFolder() { std::filesystem::create_directories(path); }
  ~TempFolder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("parameter counts are exact, for every model of the catalog") {
  for (const Count& c : kCounts) {
    CAPTURE(c.name);
    CHECK(load_model(c.name).parameter_count() == c.parameters);
  }
  CHECK(model_names().size() == std::size(kCounts));
}

TEST_CASE("benchmark models have one learned position per position of the run") {
  CHECK(load_model("mpt-7b-bench", 512).parameter_count() == mosaic(32, 4096, 512));
  CHECK(load_model("mpt-7b-bench", 65536).parameter_count() == mosaic(32, 4096, 65536));
  CHECK(load_model("mpt-7b", 512).parameter_count() == load_model("mpt-7b").parameter_count());  // ALiBi: no table
  CHECK(load_model("gpt2", 512).parameter_count() ==
        load_model("gpt2").parameter_count());  // n_positions rows, whatever the run
}

TEST_CASE("a config.json, its folder and the catalog give the same model") {
  const TempFolder folder;
  const auto config = folder.path / "config.json";
  std::ofstream(config) << embedded_file("configs/llama3-8b.json");
  const ModelGraph catalog = load_model("llama3-8b");
  const ModelGraph file = load_model(config.string()), in_folder = load_model(folder.path.string());
  CHECK(file == in_folder);
  CHECK(file.name == folder.path.filename().string());
  CHECK(file.digest() == catalog.digest());
  CHECK(catalog.name == "llama3-8b");
  CHECK(load_model("llama2-7b").digest() != load_model("llama2-13b").digest());
}

TEST_CASE("unknown names are refused with the nearest ones") {
  CHECK(load_model("llama3-8B").name == "llama3-8b");
  CHECK(load_model("LLAMA3-8B").name == "llama3-8b");
  CHECK(nearest("H100", {"b200", "b300", "h100-sxm-80"}).front() == "h100-sxm-80");
  CHECK(nearest("h101", gpu_names()).front().starts_with("h100"));
  CHECK(nearest("abc1", {"xbc1", "abc2"}) == std::vector<std::string>{"abc2", "xbc1"});  // they begin alike
  CHECK(holds(refusal([] { return load_model("zzzzzz"); }), "use one of: deepseek-v2, deepseek-v2-lite, deepseek-v3"));
  CHECK(holds(refusal([] { return load_model(""); }), "not in the catalog"));
  CHECK(holds(refusal([] { return load_model("no/such/config.json"); }), "no such file"));
  CHECK(holds(refusal([] { return load_cluster("dgx-h10"); }), "\"dgx-h100\""));
  CHECK(holds(refusal([] { return load_gpu("h100", "here"); }), "h100-sxm-80"));
  const TempFolder empty;
  CHECK(holds(refusal([&] { return load_model(empty.path.string()); }), "holds no config.json"));
}

TEST_CASE("every GPU of the catalog is plausible") {
  CHECK(gpu_names().size() == 25);
  for (const std::string& name : gpu_names()) {
    CAPTURE(name);
    const GpuSpec g = load_gpu(name, "test");
    CHECK(g.name == name);
    CHECK(g.usable_memory <= g.memory);
    CHECK(g.usable_memory.count() > 0.9 * static_cast<double>(g.memory.count()));
    CHECK(g.bf16.count() >= g.fp32.count());
    CHECK((g.fp8.count() == 0 || g.fp8 >= g.bf16));
    CHECK(g.matmul_efficiency > 0.3);
  }
  // Peak = clock * FMA per clock and tensor core * tensor cores * 2: 1830 MHz * 512 * (132 * 4) * 2 = 989.4 TFLOP/s.
  CHECK(load_gpu("h100-sxm-80", "test").bf16.count() == doctest::Approx(1830e6 * 512 * 132 * 4 * 2).epsilon(0.001));
  // A100: 1410 MHz * 256 * (108 * 4) * 2 = 311.9 TFLOP/s.
  CHECK(load_gpu("a100-sxm-80", "test").bf16.count() == doctest::Approx(1410e6 * 256 * 108 * 4 * 2).epsilon(0.001));
}

TEST_CASE("clusters: node types of any size in whole nodes") {
  CHECK(cluster_names() == std::vector<std::string>{"dgx-a100-40", "dgx-a100-80", "dgx-b200", "dgx-h100", "dgx-h200",
                                                    "host", "jupiter", "leonardo", "marenostrum5", "p4d", "p5"});
  for (const std::string& name : cluster_names()) {
    CAPTURE(name);
    CHECK(load_cluster(name).name == name);
  }
  const ClusterSpec one = load_cluster("dgx-h100"), many = load_cluster("dgx-h100", 64);
  CHECK(one.gpus == 8);
  CHECK(many.nodes() == 8);
  CHECK(one.digest() != many.digest());
  CHECK(many.digest() == load_cluster("dgx-h100", 64).digest());
  CHECK(load_cluster("dgx-h100", 3).nodes() == 1);
  CHECK(holds(refusal([] { return load_cluster("dgx-h100", 12); }), "use 8 or 16"));
  CHECK(holds(refusal([] { return load_cluster("dgx-h100", -8); }), "gpus: -8"));
  CHECK(holds(refusal([] { return load_cluster("dgx-h100", std::int64_t{1} << 40); }), "out of range"));
}

TEST_CASE("host: cores and memory of this machine, rates left to calibration") {
  const ClusterSpec host = load_cluster("host"), eight = load_cluster("host", 8);
  CHECK(host.host);
  CHECK(host.gpus >= 1);
  CHECK(host.gpu.memory.count() > 0);
  CHECK(eight.gpus == 8);
  CHECK(eight.nodes() == 1);
  CHECK(eight.gpu.memory.count() * 8 <= host.gpu.memory.count() * host.gpus + 8);
  CHECK(host.gpu.bf16.count() == 0);
  CHECK(holds(refusal([] { return load_cluster("host", 100'000); }), "gpus: 100000"));
}

TEST_CASE("cluster files are strict") {
  const std::string good = std::string(embedded_file("clusters/dgx-h100.json"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const auto load = [](const std::string& text, std::int64_t gpus = 0) {
    return refusal([&] { return cluster_from_json(text, "c.json", gpus); });
  };
  CHECK(load(good).empty());
  CHECK(holds(load(with("\"360GB/s\"", "\"360\"")), "c.json: intra_bus"));
  CHECK(holds(load(with("\"360GB/s\"", "360")), "expected a text in quotes"));
  CHECK(holds(load(with("\"360GB/s\"", "\"0GB/s\"")), "is zero"));
  CHECK(holds(load(with("\"360GB/s\"", "\"-1GB/s\"")), "expected a rate"));
  CHECK(holds(load(with("\"gpus_per_node\": 8", "\"gpus_per_node\": 0")), "c.json: gpus_per_node"));
  CHECK(holds(load(with("\"intra_bus\"", "\"intra_buss\"")), "did you mean \"intra_bus\""));
  CHECK(holds(load(with("\"gpus_per_node\": 8", "\"gpus_per_node\": 8, \"gpus_pernode\": 4")),
              "did you mean \"gpus_per_node\""));
  CHECK(holds(load(with("h100-sxm-80", "h100-sxm-81")), "c.json: gpu"));
  CHECK(holds(load(with("cluster/1", "cluster/2")), "expected \"fsdp-plan/cluster/1\""));
  CHECK(holds(load(good.substr(0, good.size() / 2)), "ends too early"));
  // An inline GPU, and a file that states its nodes.
  const std::string inline_gpu = with("\"h100-sxm-80\"", std::string(embedded_file("gpus/h100-sxm-80.json")));
  CHECK(load(inline_gpu).empty());
  CHECK(cluster_from_json(inline_gpu, "c.json") == cluster_from_json(good, "c.json"));
  const std::string two_nodes = with("\"gpus_per_node\": 8", "\"gpus_per_node\": 8, \"nodes\": 2");
  CHECK(cluster_from_json(two_nodes, "c.json").gpus == 8);
  CHECK(cluster_from_json(two_nodes, "c.json", 16).gpus == 16);
  CHECK(holds(load(two_nodes, 24), "use at most 16"));
}

TEST_CASE("a cluster file names all that it lacks at once") {
  const auto load = [](const std::string& text) { return refusal([&] { return cluster_from_json(text, "c.json"); }); };
  CHECK(holds(load(R"({"schema": "fsdp-plan/cluster/1"})"), R"(lacks "name", "gpu" and "gpus_per_node")"));
  CHECK(holds(load(R"({"schema": "fsdp-plan/cluster/1", "name": "c", "gpu": {"name": "g", "memory": "8GiB"},
                       "gpus_per_node": 1})"),
              R"(gpu: lacks "fp32", "usable_memory", "memory_bandwidth", "sms", "l2" and "host_link")"));
}

TEST_CASE("what a cluster file leaves out follows from its GPU and its NICs, and is said") {
  const auto load = [](const std::string& fields, std::int64_t gpus) {
    return cluster_from_json(R"({"schema": "fsdp-plan/cluster/1", "name": "c", )" + fields + "}", "c.json", gpus);
  };
  // The catalog's DGX H100 states what NCCL counts there: 12 channels of 30 GB/s, one NIC of 400 Gb/s per GPU.
  const ClusterSpec h100 = load(R"("gpu": "h100-sxm-80", "gpus_per_node": 8)", 16), dgx = load_cluster("dgx-h100", 16);
  CHECK(h100.intra_bus == dgx.intra_bus);
  CHECK(h100.inter_bus == dgx.inter_bus);
  REQUIRE(h100.assumed.size() == 3);
  CHECK(holds(h100.assumed[0], "intra_bus 360 GB/s: as NCCL counts rings over NVLink"));
  CHECK(holds(h100.assumed[1], "8 NICs of 400 Gb/s for the 8 GPUs of a node"));
  CHECK(holds(h100.assumed[2], "fixed_memory 1.10 GiB"));
  CHECK(dgx.assumed.empty());
  // Between nodes only where there are several.
  CHECK(load(R"("gpu": "h100-sxm-80", "gpus_per_node": 8)", 8).assumed.size() == 2);
  // A nominal NIC in place of inter_bus: NCCL counts 12 GB/s of 100 Gb/s, here for 4 GPUs.
  const ClusterSpec nic = load(R"("gpu": "a100-sxm-80", "gpus_per_node": 4, "nics_per_node": 1, "nic": "100Gb/s")", 8);
  CHECK(nic.inter_bus == BytesPerSecond(3e9));
  CHECK(nic.assumed.size() == 2);
  CHECK(holds(refusal([&] {
                return load(R"("gpu": "a100-sxm-80", "gpus_per_node": 4, "nic": "100Gb/s",
                                          "inter_bus": "12GB/s")",
                            8);
              }),
              "inter_bus: is given beside \"nic\""));
  // As many cards as GPUs are assumed where the file gives only their rate.
  CHECK(holds(load(R"("gpu": "a100-sxm-80", "gpus_per_node": 4, "nic": "100Gb/s")", 8).assumed.at(1),
              "4 NICs of 100 Gb/s"));
  CHECK(holds(load(R"("gpu": "a100-pcie-80", "gpus_per_node": 4)", 4).assumed.at(0), "two intel processors"));
  // Bytes for bits; a whole card's bandwidth for a GPU's share of it.
  CHECK(holds(refusal([&] { return load(R"("gpu": "a100-sxm-80", "gpus_per_node": 4, "nic": "100GB/s")", 8); }),
              "nic: 100 GB/s is more than the PCIe slot"));
  CHECK(holds(refusal([&] {
                return load(R"("gpu": "a100-sxm-80", "gpus_per_node": 4, "nics_per_node": 1,
                                          "inter_bus": "12GB/s")",
                            8);
              }),
              "12.0 GB/s for each of 4 GPUs is 48.0 GB/s through each of 1 NICs"));
  // NCCL's own log of 8 RTX 4090, whose driver refuses direct access: one channel of 5 GB/s (nccl-tests issue 307).
  CHECK(load(R"("gpu": "rtx-4090", "gpus_per_node": 8)", 8).intra_bus == BytesPerSecond(5e9));
  // A link of 48 GB/s to each other GPU: seven inside a node of 8, three of them between 4 of its GPUs.
  const ClusterSpec mesh = load(R"("gpu": "mi300x", "gpus_per_node": 8)", 8);
  CHECK(mesh.intra_bus == BytesPerSecond(7 * 48e9));
  CHECK(intra_bus_of(mesh, 8) == mesh.intra_bus);
  CHECK(intra_bus_of(mesh, 4).count() == doctest::Approx(3 * 48e9));
  CHECK(intra_bus_of(load(R"("gpu": "h100-sxm-80", "gpus_per_node": 8)", 8), 2) ==
        load(R"("gpu": "h100-sxm-80", "gpus_per_node": 8)", 8).intra_bus);
  // Links that nothing is known of are not guessed.
  CHECK(holds(refusal([&] { return load(R"("gpu": "mi250x", "gpus_per_node": 8)", 8); }), "intra_bus: is missing"));
}

TEST_CASE("every GPU of the catalog makes a cluster of two nodes from its name alone, or says what to measure") {
  for (const std::string& gpu : gpu_names()) {
    CAPTURE(gpu);
    const std::string text =
        R"({"schema": "fsdp-plan/cluster/1", "name": "c", "gpu": ")" + gpu + R"(", "gpus_per_node": 8)";
    const auto load = [&](const std::string& more) { return cluster_from_json(text + more + "}", "c.json", 16); };
    const std::string refused = refusal([&] { return load(""); });
    const bool links_known = gpu != "mi250x";
    CHECK((links_known ? refused.empty() : holds(refused, "intra_bus: is missing")));
    const ClusterSpec c = load(links_known ? "" : R"(, "intra_bus": "300GB/s")");
    CHECK(c.inter_bus.count() > 0);
    CHECK(nic_rate(c).count() <= c.gpu.host_link.count() * (c.gpu.compute_capability >= 100 ? 2 : 1));
  }
  // 16 V100s of two nodes: DGX-2's NICs.
  CHECK(holds(cluster_from_json(R"({"schema": "fsdp-plan/cluster/1", "name": "c", "gpu": "v100-sxm2-32",
                                    "gpus_per_node": 8})",
                                "c.json", 16)
                  .assumed.at(1),
              "8 NICs of 100 Gb/s"));
}

TEST_CASE("a file can be written for every cluster and GPU of the catalog, and read back") {
  for (const std::string& name : cluster_names())
    if (name != "host") CHECK(cluster_from_json(cluster_file(name), name, 16) == load_cluster(name, 16));
  for (const std::string& name : gpu_names()) {
    CAPTURE(name);
    const std::string text = cluster_file(name);
    if (name == "mi250x") {
      CHECK(holds(refusal([&] { return cluster_from_json(text, "c.json"); }), "intra_bus: is missing"));
      continue;
    }
    const ClusterSpec c = cluster_from_json(text, "c.json");
    CHECK(c.gpu == load_gpu(name, setting("gpu")));
    CHECK(c.gpus == 8);
    CHECK(c.assumed.empty());  // the file holds every number, and says which of them are assumed
    CHECK(holds(text, "assumed: "));
  }
  CHECK(holds(refusal([] { return cluster_file("rtx-4091"); }), "did you mean \"rtx-4090\""));
}

TEST_CASE("docs/clusters-and-costs.md has a row for every field of a cluster file") {
  const std::string root = std::string(FSDP_TESTS_DIR) + "/../";
  const std::string source = read_file(root + "models/catalog/clusters.cpp", setting("test"));
  const std::string docs = read_file(root + "docs/clusters-and-costs.md", setting("test"));
  const std::regex field("(?:\\(o, |o\\.[a-z_]+\\(|fraction\\()\"([a-z0-9_]+)\"");
  std::set<std::string> fields;
  for (std::sregex_iterator m(source.begin(), source.end(), field), end; m != end; ++m) fields.insert((*m)[1]);
  fields.erase("schema");
  CHECK(fields.size() >= 35);
  for (const std::string& name : fields) {
    CAPTURE(name);
    CHECK(std::regex_search(docs, std::regex("\\n\\| [^|]*`" + name + "`[^|]*\\|")));
  }
}

// A saved plan has the digest of its model: what a new family adds to an importer must not change those of others.
TEST_CASE("digests of models stay, so that plans that were saved for them do") {
  CHECK(load_model("llama3-8b").digest() == "bcef2283a5838b31");
  CHECK(load_model("glm-4.5-air").digest() == "cdc9b1f0e9f2dffc");
  CHECK(load_model("deepseek-v3").digest() == "442b70ad28dd14c6");
}
