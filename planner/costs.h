// What an operation demands: the one place with cost formulas. A demand is not a duration; the simulator's engine turns
// demands into time by sharing what the machine has.
//
//   Costs costs = default_costs(cluster);                      // datasheet, published efficiencies
//   Demand d = demand_of(op, program.steady_step, program, model, plan, impl, cluster, costs);
//
// Where: costs/demands.cpp (an operation's price), costs/kernels.cpp with matmul.* and attention.*,
// costs/collectives/collectives.cpp with model.*, nccl.* and symmetric.*, costs/defaults.cpp (before anybody measured),
// costs/costs.cpp (the Costs value as JSON), costs/fitted.cpp (fitted to runs). Formulas, constants and their sources:
// docs/costs.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cluster.h"
#include "models/dtype.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "models/units.h"
#include "planner/costs/demand.h"
#include "planner/program.h"

namespace fsdp {

// A measured or assumed line: seconds = overhead + max(flops / flops_rate, bytes / byte_rate).
struct KernelRate {
  Seconds overhead;
  FlopsPerSecond flops_rate;  // 0: not bound by arithmetic
  BytesPerSecond byte_rate;
  friend bool operator==(const KernelRate&, const KernelRate&) = default;
};
// One calibrated point of a size-dependent rate (matmuls: flops -> seconds per flop, log-log interpolated).
struct CurvePoint {
  double size = 0, seconds = 0;
  friend bool operator==(const CurvePoint&, const CurvePoint&) = default;
};

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce };
inline constexpr int kCollectiveKinds = static_cast<int>(CollectiveKind::all_reduce) + 1;
[[nodiscard]] std::string_view name(CollectiveKind);  // "all_gather"

// What moves the bytes. The other two need one NVLink domain (and buffers registered with NCCL); elsewhere NCCL's own
// kernels do.
enum class CollectiveVariant : std::uint8_t {
  nccl,              // NCCL's kernels, chosen by its model (costs/collectives/nccl.h)
  symmetric_memory,  // NCCL's kernels for symmetric memory windows (from 2.27): few SMs, low latency
  copy_engine,       // all-gathers by copy engines, no SM (NCCL 2.28; PyTorch's set_symm_mem_for_comm); else as above
};
inline constexpr int kCollectiveVariants = static_cast<int>(CollectiveVariant::copy_engine) + 1;

// What nccl-tests measured: full-tensor bytes -> seconds, for one shape of group.
struct CollectiveCurve {
  CollectiveKind kind{};
  std::int64_t ranks = 0, ranks_per_node = 0;
  std::vector<CurvePoint> points;  // sizes increase
  friend bool operator==(const CollectiveCurve&, const CollectiveCurve&) = default;
};

// What threads cost that share a host's cores; all measured with Costs::collective_ranks ranks at once. A thread that
// sleeps is woken: `wake` while its rank does nothing else, `wake_beside` while another of its threads works (it queues
// for the core); for a collective, all of whose threads must get a core, `collective_beside`. Ranks that do the same
// for d seconds reach a collective min(skew + skew_share d, skew_most) apart (the last one, over their mean): ranks
// that take turns on a core are soon as far apart as they get.
struct HostThreads {
  std::int64_t cores = 1;  // that those ranks had
  Seconds wake, wake_beside, collective_beside, skew, skew_most;
  double skew_share = 0;
  friend bool operator==(const HostThreads&, const HostThreads&) = default;
};

// Constants of one platform, each with a source. Calibrated entries replace the formulas' defaults.
struct Costs {
  std::string platform;  // "h100-sxm-80", "host"
  std::string source;    // "datasheet", "calibrate --backend host, 2 ranks, 2026-11-20"
  // Ceilings, as fractions of the datasheet's peak or bandwidth: what a kernel of the best shape reaches in a short
  // benchmark. Shapes take their part off by themselves (costs/matmul.h, costs/attention.h), power takes
  // `sustained_clock` of matmuls.
  double matmul_efficiency = 0.75, fp8_matmul_efficiency = 0.7;
  double attention_forward_efficiency = 0.5,
         attention_backward_efficiency = 0.4;  // FlashAttention-2, head size 128, long sequences
  double memory_efficiency = 0.85;
  double sustained_clock = 1;  // clock that training holds over that of the ceilings' benchmarks (power, random data)
  double host_scale = 1;       // this host's time to issue work over the times assumed here and by the implementation
  Seconds kernel_overhead;     // per launch, on the device
  Seconds host_per_operation;  // CPU time to issue one operation (added to the implementation's own)
  // What calibrated products and attention computed in. On GPUs those of another dtype are priced by the formulas;
  // empty: not said, they stand for every dtype.
  std::optional<DType> measured_dtype;
  // Calibrated (empty: use the formulas above). Index: 2 * OpKind + (backward ? 1 : 0); an entry with zero rates is
  // absent.
  std::vector<KernelRate> kernels;
  std::vector<CurvePoint>
      matmul_curve[3];  // forward (NT), backward input (NN), backward weight (TN): flops -> seconds, of cubes
  // What a matmul of another shape moves (its operands and its result, once) beyond a cube of as many flops takes so
  // long more. A few rows by a large weight move several times as much. Empty: not measured, or as fast as a cube.
  std::array<std::optional<BytesPerSecond>, 3> matmul_beyond_cube = {};
  KernelRate copy, cast, optimizer, norm;  // copy-in/out, casts, AdamW, gradient norm: byte rates
  std::vector<CurvePoint> all_gather, reduce_scatter,
      all_reduce;                                // full-tensor bytes -> seconds, at `collective_ranks`
  std::optional<std::int64_t> collective_ranks;  // empty: not measured
  std::optional<HostThreads> threads;            // of hosts, whose streams are threads; empty: not measured
  // Collectives on GPUs (costs/collectives/model.h). Fabric: of the NICs' counted bandwidth, on up to 8 nodes and from
  // 16 on.
  double fabric_efficiency = 0.95, fabric_efficiency_at_scale = 0.90;
  Seconds collective_skew;  // per collective of a training step: launch, and waiting for the last rank to come
  bool pessimistic_collectives = false;  // no LL128 on 16 nodes and more
  double collective_beside = 1;          // Demand::beside of collectives
  CollectiveVariant collective_variant = CollectiveVariant::nccl;
  std::vector<CollectiveCurve> collective_curves;  // replace the formula; at most one per kind and shape
  // What makes equal ranks unequal, as standard deviations: GPU to GPU, for good, of the time of products
  // (costs/slowest.h); step to step, of all compute (simulator/engine/jitter.h).
  double gpu_spread = 0.016, step_jitter = 0.01;
  friend bool operator==(const Costs&, const Costs&) = default;
};

[[nodiscard]] Costs default_costs(const ClusterSpec&);  // throws InputError for the host cluster: it needs calibration
[[nodiscard]] std::string to_json_text(const Costs&);   // "fsdp-plan/costs/1"; parse_costs(to_json_text(c), f) == c
[[nodiscard]] Costs parse_costs(std::string_view json_text, std::string_view where);
[[nodiscard]] std::string digest(const Costs&);

// Everything that demands depend on, so that call sites stay short. References only live during the call.
struct CostContext {
  CostContext(const ModelGraph&, const ShardingPlan&, const Implementation&, const ClusterSpec&, const Costs&);

  const ModelGraph& model;
  const ShardingPlan& plan;
  const Implementation& implementation;
  const ClusterSpec& cluster;
  const Costs& costs;
  const double slowest;  // slowest_clock() of the plan's ranks, for the time of products; 1 for CPU ranks
  const double taken;    // multiprocessors that the plan's collectives hold, of its longest rings
};

[[nodiscard]] Demand demand_of(const Operation&, const Step&, const Program&, const CostContext&);
// The same for every operation of a step; repeated layers are priced once, and held once.
[[nodiscard]] Demands demands_of(const Step&, const Program&, const CostContext&);

// A collective over one mesh dimension. `bytes`: the full tensor, as nccl-tests counts it.
struct CollectiveCall {
  CollectiveKind kind{};
  Bytes bytes;
  std::int64_t ranks = 1;           // in the group
  std::int64_t ranks_per_node = 1;  // of the group's ranks
  std::int64_t nodes_apart = 1;     // from one of its nodes to the next
};
[[nodiscard]] Demand collective_demand(const CollectiveCall&, const ClusterSpec&, const Costs&);
// Ranks of a group that share a node, for a communicator of a plan on a cluster.
[[nodiscard]] CollectiveCall call_shape(Communicator, const ShardingPlan&, const ClusterSpec&);
// The same for Communicator::reshard of a unit that keeps its parameters over groups of `ranks` consecutive ranks.
[[nodiscard]] CollectiveCall reshard_shape(std::int64_t ranks, const ShardingPlan&, const ClusterSpec&);

}  // namespace fsdp
