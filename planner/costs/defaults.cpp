// Costs of a platform without measurements: the GPU's datasheet and published efficiencies.
#include "models/input/error.h"
#include "planner/costs.h"

namespace fsdp {

namespace {

// Kernels that follow one another on a stream leave the GPU idle for 1 to 2 microseconds each (launch latency of CUDA).
constexpr double kKernelOverhead = 2e-6;
// cudaLaunchKernel takes 4 to 6 microseconds of CPU; what a framework adds per launch is the implementation's.
constexpr double kHostPerOperation = 5e-6;
// Reduce-scatter copy-in (_chunk_cat) on H100: 500 Gelem/s bf16 to bf16 = 2.0 TB/s read and written of 3.35 (pytorch's
// benchmark).
constexpr double kCopyEfficiency = 0.60;
// The same with a cast, bf16 to fp32: 278 Gelem/s * 6 B = 1.67 TB/s of 3.35.
constexpr double kCastEfficiency = 0.50;
// Fused AdamW: 28 bytes per parameter at 0.8 of the memory bandwidth.
constexpr double kOptimizerEfficiency = 0.80;

// A collective of an eager step begins when the last rank has launched it: starts 10 to 30 microseconds apart are
// reported, and small all-reduces between 15 and 60 above NCCL's own line (nccl-tests on 8 A100). Within both.
constexpr double kCollectiveSkew = 20e-6;
// NCCL's model gives LL128 rings of 16 to 256 MiB over 16 nodes and more up to twice the bandwidth that SimAI measured
// for them (64 MiB, 64 nodes: 0.128 of the NICs' against 0.051); without LL128 it is within 20 % from 256 MiB on
// (accuracy_collectives_test).
constexpr bool kPessimisticCollectives = true;

}  // namespace

Costs default_costs(const ClusterSpec& cluster) {
  if (cluster.host)
    throw InputError(setting("costs"), "cluster host has no costs",
                     "run `fsdp-plan calibrate --backend host -o costs.json` and pass --costs costs.json");
  const GpuSpec& gpu = cluster.gpu;
  Costs c;
  c.platform = gpu.name;
  c.source = "datasheet and published efficiencies";
  c.matmul_efficiency = gpu.matmul_efficiency;
  c.fp8_matmul_efficiency = gpu.fp8_matmul_efficiency;
  c.sustained_clock = gpu.sustained_clock;
  c.attention_forward_efficiency = gpu.attention_forward_efficiency;
  c.attention_backward_efficiency = gpu.attention_backward_efficiency;
  c.memory_efficiency = gpu.memory_efficiency;
  c.kernel_overhead = Seconds(kKernelOverhead);
  c.host_per_operation = Seconds(kHostPerOperation);
  const auto at = [&](double efficiency) {
    return KernelRate{Seconds(kKernelOverhead), FlopsPerSecond(0), gpu.memory_bandwidth * efficiency};
  };
  c.collective_skew = Seconds(kCollectiveSkew);
  c.pessimistic_collectives = kPessimisticCollectives;
  c.copy = at(kCopyEfficiency);
  c.cast = at(kCastEfficiency);
  c.optimizer = at(kOptimizerEfficiency);
  c.norm = at(gpu.memory_efficiency);
  return c;
}

}  // namespace fsdp
