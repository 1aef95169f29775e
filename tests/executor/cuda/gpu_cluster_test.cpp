// Which cluster a run on GPUs claims.
#include "executor/cuda/gpu_cluster.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "models/catalog.h"
#include "models/input/error.h"

using namespace fsdp;
using namespace fsdp::cuda;

namespace {

const GpuFacts kH100{"NVIDIA H100 80GB HBM3", Bytes(85'029'158'912), Bytes(52'428'800), 132, 90};

std::string refusal(const ClusterSpec& named, const ClusterSpec& found) {
  try {
    check_names_these_gpus(named, found);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("GPUs that nobody has named are described by the driver's facts, and no rate is made up") {
  const ClusterSpec c = cluster_of_gpus({kH100}, 16, 8);
  CHECK(c.name == "NVIDIA H100 80GB HBM3");
  CHECK_FALSE(c.host);
  CHECK(c.gpus == 16);
  CHECK(c.nodes() == 2);
  CHECK(c.gpu.sms == 132);
  CHECK(c.gpu.memory == kH100.memory);
  CHECK(c.gpu.usable_memory == kH100.memory);
  CHECK(c.gpu.l2 == kH100.l2);
  CHECK(c.gpu.compute_capability == 90);
  CHECK(c.gpu.memory_bandwidth.count() == 0);
  CHECK(c.intra_bus.count() == 0);
  GpuFacts other = kH100;
  other.name = "NVIDIA A100-SXM4-80GB";
  CHECK(cluster_of_gpus({kH100, other, kH100}, 3, 3).name == "NVIDIA H100 80GB HBM3 and NVIDIA A100-SXM4-80GB");
  CHECK(cluster_of_gpus({kH100}, 1, 1).digest() != cluster_of_gpus({other}, 1, 1).digest());
}

TEST_CASE("a named cluster must have the multiprocessors and the memory that are there") {
  const ClusterSpec found = cluster_of_gpus({kH100}, 8, 8);
  CHECK(refusal(load_cluster("dgx-h100", 8), found) == "");
  CHECK(refusal(load_cluster("dgx-a100-80", 8), found).find("has 108 multiprocessors, but NVIDIA H100") !=
        std::string::npos);
  CHECK(refusal(load_cluster("dgx-h200", 8), found).find("of memory, but NVIDIA H100") != std::string::npos);
  CHECK(refusal(load_cluster("host", 8), found).find("'host' has no GPUs") != std::string::npos);
}

TEST_CASE("memory may differ by ECC and by what the driver keeps, not by as much as two kinds of one GPU") {
  const ClusterSpec named = load_cluster("dgx-h100", 8);
  const auto with_memory = [&](double share) {
    GpuFacts gpu = kH100;
    gpu.memory = Bytes(std::llround(share * static_cast<double>(named.gpu.usable_memory.count())));
    return refusal(named, cluster_of_gpus({gpu}, 8, 8));
  };
  for (const double share : {0.92, 15.0 / 16, 1.0, 16.0 / 15, 1.08}) CHECK(with_memory(share) == "");
  for (const double share : {0.88, 1.12})
    CHECK(with_memory(share).find("of memory, but NVIDIA H100") != std::string::npos);

  std::size_t kinds = 0;  // of one GPU, in the catalog
  for (const std::string& a : gpu_names())
    for (const std::string& b : gpu_names()) {
      CAPTURE(a);
      CAPTURE(b);
      ClusterSpec wanted, found;
      wanted.gpu = load_gpu(a, "gpu");
      found.gpu = load_gpu(b, "gpu");
      if (wanted.gpu.sms != found.gpu.sms) continue;
      const bool alike = wanted.gpu.memory == found.gpu.memory;
      found.gpu.memory = found.gpu.usable_memory;  // as a driver states it
      CHECK((refusal(wanted, found) == "") == alike);
      kinds += alike ? 0 : 1;
    }
  CHECK(kinds >= 8);
}
