// What a step asks of each serial resource, and the least time in which the engine can do it.
//
//   const Load load = load_of(program.steady_step, demands);
//   least_seconds(load)      // never more than simulate(program.steady_step, demands).duration
//
// The bound. Within the period T of a step the compute stream does all of its kernels, one after the other and none
// faster than alone, and a communicator all of its collectives, likewise (nothing of a step starts before the step
// before has ended). While a collective runs, the compute stream either stands still or runs a kernel that the
// collective slows: one that takes the fraction h of the multiprocessors and m of the memory bandwidth leaves a kernel
// at most (1 - h a)(1 - m b) of its speed (simulator/engine/engine.h), a and b from what the kernel is bound by. So
// each second of the collective costs the compute stream at least
//     kappa(kernel) = 1 - (1 - h a)(1 - m b)       seconds beside that kernel, 1 second beside none.
// A collective that itself runs at a rate r < 1 costs no less than r kappa a second, because the loss is concave in r
// and 0 at r = 0; others that run beside it only add to the loss. With t_k the time of kernel k alone, o_k the time
// that the communicator's N seconds run beside it (at most t_k / (1 - kappa_k)) and the rest beside none,
//     T >= min over o of  sum_k (t_k + kappa_k o_k) + (N - sum_k o_k)
// and by duality, for every beta in [0, 1],
//     T >= beta N + sum_k t_k alpha_k(beta),    alpha_k = 1 - max(0, beta - kappa_k) / (1 - kappa_k).
// beta = 0 is the compute stream alone, beta = 1 the communicator alone. Linear in kernels and collectives, so that a
// bound over many plans is a minimum of sums.
//
// A resident kernel (persistent matmul) keeps its multiprocessors. A collective that finds too few of them left waits
// for its end, and then nothing is hidden; a kernel that starts beside a collective takes a second round, at most
// r times as long as the collective still lasts (Demand::second_round). So beside a collective of at most s seconds a
// kernel of t seconds loses at least the part  min(r, max(r / (1 + r), r t / s))  of the time that they share.
//
// While the compute stream stands still for a collective over tensor ranks, others run beside it at no loss: it counts
// as a kernel with kappa = 0.
//
// Two communicators (gathers over one, reductions over the other; or both over one, and the all-reduces over replicas
// over the other) may run at once. Then a kernel beside both loses at least kappa_1 o_1 + kappa_2 (1 - kappa_1) o_2, a
// resident one at least min(kappa_1, kappa_2) max(o_1, o_2), each o at most the kernel's whole time, and in the same
// way, for beta_1 + beta_2 <= 1,
//     T >= beta_1 N_1 + beta_2 N_2 + sum_k t_k alpha_k,
//     alpha_k = min(1, (1 - beta_1) / (1 - kappa_1), (1 - beta_2) / (1 - kappa_2'), (1 - beta_1 - beta_2) / (1 - both))
// with kappa_2' = kappa_2 (1 - kappa_1) and both = kappa_1 + kappa_2', or kappa_2' = kappa_2 and both the smaller one.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "planner/costs.h"
#include "planner/program.h"

namespace fsdp {

// Kernels that collectives slow alike.
struct KernelShare {
  double slowed_by_holding = 0, slowed_by_moving = 0;  // a and b
  double resident = 0;                                 // of the multiprocessors, those that each one keeps
  double each = 0, second_round = 1;                   // seconds of one, where it is resident, and r
  double seconds = 0;                                  // of all
};

// What a communicator's collectives take of the machine at least.
struct CollectiveShare {
  double compute = 1, memory = 1;  // h and m
  double longest = 0;              // seconds of the longest collective, s
};

// The compute stream's kernels, few and merged.
class KernelLoad {
 public:
  void add(const Demand&);
  void add(const KernelLoad&, double times = 1);
  void add_standstill(double seconds);  // kappa is 0: collectives beside it cost the compute stream nothing more
  [[nodiscard]] double seconds() const;
  [[nodiscard]] const std::vector<KernelShare>& shares() const { return shares_; }

 private:
  void add(const KernelShare&);
  std::vector<KernelShare> shares_;
};

struct CommunicatorLoad {
  double seconds = 0;
  CollectiveShare held;
  void add(const Demand&);
};

// A collective over tensor ranks for which the compute stream stands still: it starts when all before it has been
// computed, and what is computed next waits for it. By operation of the step.
[[nodiscard]] std::vector<char> stops_compute(const Step&);

struct Load {
  KernelLoad compute;
  std::array<CommunicatorLoad, kCommunicators> communicators;
};

[[nodiscard]] Load load_of(const Step&, const Demands&);

// What a second of gathers, of reductions over shards and of all-reduces over replicas weighs, and whether the first
// two share a communicator (then both weigh the same; otherwise one of the three weighs nothing).
struct Weights {
  double gather = 0, reduce = 0, all_reduce = 0;
  bool shared = true;
};
// The weights that are tried: `shared` or not, with all-reduces over replicas or without.
[[nodiscard]] std::span<const Weights> weights(bool shared, bool replicas);

struct CollectiveShares {
  CollectiveShare gathers, reductions, all_reduces;
};

// kappa, and the sum of t_k alpha_k, above.
[[nodiscard]] double loss_beside(const KernelShare&, const CollectiveShare&);
[[nodiscard]] double weighted_seconds(const KernelLoad&, const CollectiveShares&, const Weights&);

[[nodiscard]] double least_seconds(const Load&);

}  // namespace fsdp
