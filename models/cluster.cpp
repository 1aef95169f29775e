#include "models/cluster.h"

#include "models/input/digest.h"
#include "models/input/names.h"

namespace fsdp {
namespace {

void add(Digest& d, const GpuSpec& g) {
  d.add("gpu", g.name);
  for (FlopsPerSecond f : {g.fp32, g.tf32, g.bf16, g.fp8}) d.add("peak", f.count());
  for (Bytes b : {g.memory, g.usable_memory, g.l2}) d.add("bytes", b.count());
  for (BytesPerSecond r : {g.memory_bandwidth, g.host_link, g.nvlink}) d.add("rate", r.count());
  if (g.mesh_link.count() > 0) d.add("mesh_link", g.mesh_link.count());
  for (double e : {g.matmul_efficiency, g.fp8_matmul_efficiency, g.attention_forward_efficiency,
                   g.attention_backward_efficiency, g.memory_efficiency, g.sustained_clock})
    d.add("efficiency", e);
  for (const auto& a : g.attention) {
    d.add("attention", a ? a->forward : 0);
    d.add("attention", a ? a->backward : 0);
  }
  d.add("sms", g.sms);
  d.add("capability", g.compute_capability);
}

constexpr std::string_view text(AttentionKernel k) {
  switch (k) {
    case AttentionKernel::flash1: return "flash1";
    case AttentionKernel::flash2: return "flash2";
    case AttentionKernel::cudnn: return "cudnn";
    case AttentionKernel::flash3: return "flash3";
    case AttentionKernel::sdpa: return "sdpa";
    case AttentionKernel::sdpa_before_2_11: return "sdpa-before-2.11";
    case AttentionKernel::math: return "math";
    case AttentionKernel::masked: return "masked";
    case AttentionKernel::triton: return "triton";
    case AttentionKernel::flex: return "flex";
  }
  return {};
}
static_assert(names_all<AttentionKernel>(text, kAttentionKernels));

constexpr std::string_view text(CpuVendor v) {
  switch (v) {
    case CpuVendor::intel: return "intel";
    case CpuVendor::amd: return "amd";
    case CpuVendor::arm: return "arm";
  }
  return {};
}
static_assert(names_all<CpuVendor>(text, kCpuVendors));

constexpr std::string_view text(PeerLink l) {
  switch (l) {
    case PeerLink::pcie: return "pcie";
    case PeerLink::host_memory: return "host-memory";
    case PeerLink::other: return "other";
  }
  return {};
}
static_assert(names_all<PeerLink>(text, kPeerLinks));

}  // namespace

std::string_view name(PeerLink l) { return text(l); }
std::string_view name(AttentionKernel k) { return text(k); }
std::string_view name(CpuVendor v) { return text(v); }

std::string ClusterSpec::digest() const {
  Digest d;
  d.add("cluster", name);
  fsdp::add(d, gpu);
  for (std::int64_t n : {gpus, gpus_per_node, nvlink_domain.value_or(0), nics_per_node.value_or(0),
                         collective_sms.value_or(0), fixed_memory.count(), communicator_memory.count()})
    d.add("count", n);
  if (host_memory) d.add("host_memory", host_memory->count());
  for (BytesPerSecond r : {intra_bus, inter_bus}) d.add("bus", r.count());
  for (const auto& s : {intra_latency, inter_latency, collective_base_latency})
    d.add("latency", s.value_or(Seconds()).count());
  d.add("cpu", static_cast<std::int64_t>(cpu));
  d.add("sharp", sharp);
  d.add("oversubscription", oversubscription);
  d.add("rail_optimized", rail_optimized);
  d.add("host", host);
  return d.text();
}

}  // namespace fsdp
