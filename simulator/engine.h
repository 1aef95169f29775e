// Turns demands into time: a fluid simulation of one rank's streams.
//
// An operation starts when the host has issued it, the one before it on its stream has finished, the operations it waits
// for have finished, and its communicator is free (one collective at a time, in issue order). While it runs it advances at
// rate r <= 1 of its speed alone; rates are max-min fair under sum_i r_i * use_i[k] <= 1 for every resource k, operations that
// hold compute (collectives) being served first. Ties are broken by time, then stream, then index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/costs.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

struct EngineOptions {
  bool share = true;                         // false: every operation runs at its own speed (exact timing goldens)
  int steps = 3;                             // steady steps simulated; the period is between the ends of the last two
};

// Period and timeline of the last step. The host runs ahead; read_loss blocks it.
[[nodiscard]] Timeline simulate(const Step&, std::span<const Demand>, const EngineOptions& = {});

// Max-min fair rates of operations that run together; the sharing model by itself, for tests. rates[i] in (0, 1].
void share_rates(std::span<const Demand* const> running, std::span<double> rates);

}  // namespace fsdp
