// Turns demands into time: a fluid simulation of one rank's streams.
//
// An operation starts when the host has issued it, the one before it on its stream has finished, the operations it
// waits for have finished, and its communicator is free (one collective at a time, in issue order). While it runs it
// advances at rate r <= 1 of its speed alone; rates are max-min fair under sum_i r_i * use_i[k] <= 1 for every resource
// k. Ties are broken by time, then stream, then index.
//
// Beside collectives that hold compute (h of the multiprocessors, m of the memory bandwidth), which are served first, a
// kernel advances at
//
//   (1 - h) (1 - m)         bound by memory: fewer multiprocessors ask for what is left of the bandwidth
//   (1 - h) (1 - 0.6 m)     bound by arithmetic: it shares caches and memory with the collective's copies
//
// times its share among the kernels. 0.6: a product that slows from 1.18 to 2.08 ms and attention from 0.18 to 0.33 ms
// beside an all-gather on 8 A100 (NCCL issue 1428), which holds 24 of 108 and moves 2 to 3 bytes of memory traffic for
// each on the wire.
//
// A persistent kernel (Demand::resident) puts a CTA on each of its multiprocessors and gives every CTA its tiles
// beforehand. What decides is who came first:
//   - it runs already: nobody takes its multiprocessors. A collective that finds too few free starts when it has ended,
//     and before
//     the kernel that follows.
//   - the collective runs already: the CTAs that find no place begin when others of the kernel end, after its whole
//     time, or when the
//     collective ends, and then take that whole time: seconds = alone + min(alone, what the collective still needs).
//     (pytorch issue 143988: 80 % of the peak alone, 47 % beside 24 CTAs of an all-gather that lasts longer.)
// So a collective that is shorter than the kernels around it costs no more than its own time, where the ratio of
// microbenchmarks with endless collectives would charge every kernel of the step.
//
// Streams that are threads (Demand::wake and its like; hosts): an operation whose stream has had nothing to do for 20
// us (threads look for work that long before they sleep) starts `wake` after it could have, or `wake_beside` if another
// stream of the rank is working then (sooner if all others stop: the core is free), and uses nothing meanwhile. A
// collective first waits for the slowest rank: skew + skew_share times what has passed since a collective last ended,
// at most skew_most. The host, too, is woken when it reads the loss.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/costs.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

struct EngineOptions {
  bool share = true;  // false: every operation runs at its own speed (exact timing goldens)
  int steps = 3;      // steady steps simulated; the period is between the ends of the last two
};

// Period and timeline of the last step. The host runs ahead; read_loss blocks it.
[[nodiscard]] Timeline simulate(const Step&, std::span<const Demand>, const EngineOptions& = {});

// Rates of operations that run together; the sharing model by itself, for tests. rates[i] in (0, 1]. Persistent kernels
// are taken to have their multiprocessors.
void share_rates(std::span<const Demand* const> running, std::span<double> rates);

}  // namespace fsdp
