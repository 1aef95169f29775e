// Bounded robust least squares for a few positive constants, with priors: the solver behind `calibrate --runs`. It
// knows nothing of runs or of costs; simulator/published/fit_runs.h does.
//
// All in logarithms: x_v = log of constant v. Minimises
//
//   sum over blocks b, rows i of  w_i rho(r_i / s_b)   +   1/2 sum over priors ((x_a - x_c - log m) / width)^2,
//   lower <= x <= upper
//
// where r_i is what the block's function returns (log predicted - log measured, say), rho is Huber's loss (quadratic
// to 1.345, then linear: P. J. Huber, Robust Estimation of a Location Parameter, 1964) and s_b the block's own
// spread, 1.4826 times the median of |r|, drawn towards that of all blocks where rows are few, and never below `noise`.
// So one wild row pulls as hard as a row that is 1.3 spreads off, and a block that the model describes badly has less
// say over what blocks share. Levenberg-Marquardt steps on the reweighted problem; a constant at a bound that the
// gradient pushes outwards is left out of the step.
//
// The uncertainty is the inverse curvature at the solution, priors included: a standard error of 0.05 is five per cent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

struct FitVariable {
  std::string name;                        // for error messages
  double start = 1, lower = 0, upper = 0;  // 0 < lower <= start <= upper, in natural units
  bool search = false;  // try starts far away first: rows may not feel the constant until it is far from its start
};
// log x_variable ~ Normal(log(median) + log(x_other), width); without `other`: Normal(log(median), width).
struct FitPrior {
  int variable = 0;
  std::optional<int> other;
  double median = 1, width = 0.1;
};
// Rows that depend on the same constants: residuals(values of `variables`, in that order) has `rows` entries. Weights:
// one per row, or none for 1 each.
struct FitBlock {
  std::vector<int> variables;
  std::size_t rows = 0;
  std::vector<double> weights;
  std::function<std::vector<double>(std::span<const double>)> residuals;
  std::vector<double>
      derivatives{};  // of the residuals by the logarithms, near the start, row by row; empty: found by differences
};
struct FitProblem {
  std::vector<FitVariable> variables;
  std::vector<FitPrior> priors;
  std::vector<FitBlock> blocks;
};

struct FitOptions {
  double noise = 0.01;  // what rows differ by when everything is right: the floor of every spread
  int iterations = 20;
  double tolerance = 1e-4;   // stops when no constant moves by more than this fraction
  double difference = 0.01;  // of a constant, for derivatives
  int keep_derivatives = 1;  // steps per Jacobian: more is faster where the start is near the end
  std::function<void(int iteration, double spread)> progress{};
};

struct FitResult {
  std::vector<double> values, standard_errors;  // per variable; the error is relative (of the logarithm)
  std::vector<bool> at_bound;
  std::vector<std::vector<double>> residuals;  // per block and row, at `values`
  std::vector<double> spreads;                 // per block: s_b
  int iterations = 0;
  bool converged = false;
};

// Throws InputError for a problem that makes no sense (bounds out of order, an index out of range, widths that are not
// positive, residuals that are not finite at the start).
[[nodiscard]] FitResult fit(const FitProblem&, const FitOptions& = {});

}  // namespace fsdp
