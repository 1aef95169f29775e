#include "models/cluster.h"

#include "models/input/digest.h"

namespace fsdp {
namespace {

void add(Digest& d, const GpuSpec& g) {
  d.add("gpu", g.name);
  for (FlopsPerSecond f : {g.fp32, g.tf32, g.bf16, g.fp8}) d.add("peak", f.count());
  for (Bytes b : {g.memory, g.usable_memory, g.l2}) d.add("bytes", b.count());
  for (BytesPerSecond r : {g.memory_bandwidth, g.host_link, g.nvlink}) d.add("rate", r.count());
  for (double e : {g.matmul_efficiency, g.fp8_matmul_efficiency, g.attention_forward_efficiency,
                   g.attention_backward_efficiency, g.memory_efficiency, g.sustained_clock})
    d.add("efficiency", e);
  for (const AttentionCeiling& a : g.attention) {
    d.add("attention", a.forward);
    d.add("attention", a.backward);
  }
  d.add("sms", g.sms);
  d.add("capability", g.compute_capability);
}

}  // namespace

std::string ClusterSpec::digest() const {
  Digest d;
  d.add("cluster", name);
  fsdp::add(d, gpu);
  for (std::int64_t n : {gpus, gpus_per_node, nvlink_domain, nics_per_node, collective_sms, fixed_memory.count()})
    d.add("count", n);
  for (BytesPerSecond r : {intra_bus, inter_bus}) d.add("bus", r.count());
  for (Seconds s : {intra_latency, inter_latency, collective_base_latency}) d.add("latency", s.count());
  d.add("cpu", static_cast<std::int64_t>(cpu));
  d.add("sharp", sharp);
  d.add("oversubscription", oversubscription);
  d.add("rail_optimized", rail_optimized);
  d.add("host", host);
  return d.text();
}

}  // namespace fsdp
