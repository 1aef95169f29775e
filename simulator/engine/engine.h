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
//   (1 - h) (1 - 0.65 m)    bound by arithmetic: it shares caches and memory with the collective's copies
//
// times its share among the kernels. The factor 0.65: on 8 A100, a matmul slows from 1.18 to 2.08 ms and attention from
// 0.18 to 0.33 ms beside an all-gather (NCCL issue 1428) that holds 24 of 108 multiprocessors and moves 3 bytes of
// memory traffic for each byte on the wire: h = 0.22, m = 3 * 235 GB/s / (0.82 * 2039 GB/s) = 0.42, which gives 0.64
// for the matmul and 0.71 for attention.
//
// A collective that keeps a part b of its speed beside kernels (Demand::beside; 1 unless costs state it) advances at
// 1 - (1 - b) u, u: the largest part of compute or memory that one of them uses. It moves less memory then, and holds
// its multiprocessors longer.
//
// A stream's queue holds 1024 launches (Demand::launches): the host waits for room. That keeps it from running ahead by
// more than some layers, which decides how much memory waits to be used again where it comes back with the device.
//
// A persistent kernel (Demand::resident) puts a CTA on each of its multiprocessors and gives every CTA its tiles at the
// start. The operation that starts first decides:
//   - The kernel runs first: it keeps its multiprocessors. A collective that finds too few free ones starts when the
//     kernel has ended, and before the next kernel.
//   - The collective runs first: CTAs that find no place start when other CTAs of the kernel end or when the collective
//     ends, and do all of their work then: the kernel takes up to r of its time longer (Demand::second_round, from
//     second_round() in planner/costs/matmul.h), seconds = alone + r min(alone, what the collective still needs).
//     (PyTorch issue 143988: 80 % of the peak alone, 47 % beside 24 CTAs of an all-gather that lasts longer: r = 0.70.)
// So a collective that is shorter than the kernels around it costs its own time at most. A ratio from microbenchmarks
// with endless collectives would charge every kernel of the step instead.
//
// Streams that are threads (Demand::wake and the fields after it; hosts only): a thread looks for work for 20 us before
// it sleeps. An operation on a stream that has slept starts `wake` later, or `wake_beside` later if another stream of
// the rank is working (sooner if all others stop, because the core is free then), and uses nothing meanwhile. A
// collective first waits for the slowest rank: skew + skew_share times the time since the last collective ended, at
// most skew_most. The host is woken likewise when it reads the loss.
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
[[nodiscard]] Timeline simulate(const Step&, const Demands&, const EngineOptions& = {});

// Rates of operations that run together; the sharing model by itself, for tests. rates[i] in (0, 1]. Persistent kernels
// are taken to have their multiprocessors.
void share_rates(std::span<const Demand* const> running, std::span<double> rates);

}  // namespace fsdp
