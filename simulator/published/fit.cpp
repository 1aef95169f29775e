#include "simulator/published/fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "models/input/error.h"

namespace fsdp {

namespace {

constexpr double kHuber = 1.345;           // 95 % of least squares' efficiency on normal errors
constexpr double kMedianToSigma = 1.4826;  // of a normal distribution
constexpr double kRowsOfOthers = 5;        // how many rows the spread of all blocks counts for in one block's

using Vector = Eigen::VectorXd;
using Matrix = Eigen::MatrixXd;
using Residuals = std::vector<std::vector<double>>;

double huber(double z) {
  const double a = std::abs(z);
  return a <= kHuber ? a * a / 2 : kHuber * (a - kHuber / 2);
}
double huber_weight(double z) {
  const double a = std::abs(z);
  return a <= kHuber ? 1 : kHuber / a;
}

void require(bool good, const std::string& what) {
  if (!good) throw InputError("fit", what);
}

void check(const FitProblem& p, const FitOptions& o) {
  const int n = static_cast<int>(p.variables.size());
  for (const FitVariable& v : p.variables)
    require(std::isfinite(v.upper) && v.lower > 0 && v.lower <= v.start && v.start <= v.upper,
            "'" + v.name + "' does not start within its bounds, which must be positive");
  for (const FitPrior& q : p.priors)
    require(q.variable >= 0 && q.variable < n && (!q.other || (*q.other >= 0 && *q.other < n)) && q.median > 0 &&
                q.width > 0,
            "a prior names no constant, or its median or width is not positive");
  for (const FitBlock& b : p.blocks) {
    require(b.weights.empty() || b.weights.size() == b.rows, "a block has as many weights as rows, or none");
    require(b.derivatives.empty() || b.derivatives.size() == b.rows * b.variables.size(),
            "a block's derivatives are not rows times constants");
    for (const int v : b.variables) require(v >= 0 && v < n, "a block names no constant");
  }
  require(o.noise > 0 && o.difference > 0, "noise and difference must be positive");
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Solver {
 public:
  Solver(const FitProblem& problem, const FitOptions& options)
      : p_(problem), o_(options), n_(static_cast<int>(p_.variables.size())) {
    x_.resize(n_);
    lower_.resize(n_);
    upper_.resize(n_);
    for (int i = 0; i < n_; ++i) {
      const FitVariable& v = p_.variables[static_cast<std::size_t>(i)];
      x_[i] = std::log(v.start);
      lower_[i] = std::log(v.lower);
      upper_[i] = std::log(v.upper);
    }
  }

  FitResult solve() {
    FitResult result;
    r_ = residuals_at(x_);
    for (const auto& block : r_)
      for (const double r : block) require(std::isfinite(r), "a residual is not finite at the start");
    set_spreads();
    search();
    double damping = 1e-3;
    int age = take_given_derivatives() ? 0 : o_.keep_derivatives;
    for (; result.iterations < o_.iterations && !result.converged; ++result.iterations) {
      if (o_.progress) o_.progress(result.iterations, overall_);
      if (age >= o_.keep_derivatives) {
        differentiate();
        age = 0;
      }
      ++age;
      result.converged = step(damping);
    }
    finish(result);
    return result;
  }

 private:
  [[nodiscard]] std::vector<double> values_of(const FitBlock& b, const Vector& x) const {
    std::vector<double> values;
    values.reserve(b.variables.size());
    for (const int v : b.variables) values.push_back(std::exp(x[v]));
    return values;
  }

  [[nodiscard]] std::vector<double> evaluate(const FitBlock& b, const std::vector<double>& values) const {
    std::vector<double> r = b.residuals(values);
    require(r.size() == b.rows, "a block returned another number of residuals than it has rows");
    return r;
  }

  [[nodiscard]] Residuals residuals_at(const Vector& x) const {
    Residuals all;
    all.reserve(p_.blocks.size());
    for (const FitBlock& b : p_.blocks) all.push_back(evaluate(b, values_of(b, x)));
    return all;
  }

  void set_spreads() {
    std::vector<double> all;
    std::vector<double> own;
    for (const auto& block : r_) {
      std::vector<double> sizes;
      for (const double r : block) sizes.push_back(std::abs(r));
      all.insert(all.end(), sizes.begin(), sizes.end());
      own.push_back(kMedianToSigma * median(sizes));
    }
    overall_ = std::max(o_.noise, kMedianToSigma * median(all));
    spreads_.clear();
    for (std::size_t b = 0; b < r_.size(); ++b) {
      const double rows = static_cast<double>(r_[b].size());
      spreads_.push_back(std::max(o_.noise, (rows * own[b] + kRowsOfOthers * overall_) / (rows + kRowsOfOthers)));
    }
  }

  [[nodiscard]] double weight(std::size_t b, std::size_t row) const {
    return p_.blocks[b].weights.empty() ? 1 : p_.blocks[b].weights[row];
  }

  [[nodiscard]] double objective(const Vector& x, const Residuals& r) const {
    double sum = 0;
    for (std::size_t b = 0; b < r.size(); ++b)
      for (std::size_t i = 0; i < r[b].size(); ++i) sum += weight(b, i) * huber(r[b][i] / spreads_[b]);
    for (const FitPrior& q : p_.priors) sum += prior_residual(q, x) * prior_residual(q, x) / 2;
    return sum;
  }

  static double prior_residual(const FitPrior& q, const Vector& x) {
    return (x[q.variable] - (q.other ? x[*q.other] : 0) - std::log(q.median)) / q.width;
  }

  // How unlikely all this is: the objective, and what the spreads that it is measured in cost themselves.
  [[nodiscard]] double unlikeliness() const {
    double sum = objective(x_, r_);
    for (std::size_t b = 0; b < r_.size(); ++b)
      for (std::size_t i = 0; i < r_[b].size(); ++i) sum += weight(b, i) * std::log(spreads_[b]);
    return sum;
  }

  // One constant after the other at factors of its start; what makes the rows likeliest is kept.
  void search() {
    for (int v = 0; v < n_; ++v) {
      if (!p_.variables[static_cast<std::size_t>(v)].search) continue;
      const Vector start = x_;
      Vector best_x = x_;
      Residuals best_r = r_;
      double best = unlikeliness();
      for (const double factor : {0.25, 0.35, 0.5, 0.7, 1.4, 2.0}) {
        x_ = start;
        x_[v] += std::log(factor);
        if (x_[v] < lower_[v] || x_[v] > upper_[v]) continue;
        r_ = residuals_at(x_, v, best_r);
        set_spreads();
        const double now = unlikeliness();
        if (!(now < best)) continue;
        best = now;
        best_x = x_;
        best_r = r_;
      }
      x_ = best_x;
      r_ = std::move(best_r);
      set_spreads();
    }
  }

  // Blocks that do not have the variable keep their residuals.
  [[nodiscard]] Residuals residuals_at(const Vector& x, int variable, const Residuals& known) const {
    Residuals all = known;
    for (std::size_t b = 0; b < p_.blocks.size(); ++b) {
      const auto& own = p_.blocks[b].variables;
      if (std::find(own.begin(), own.end(), variable) != own.end())
        all[b] = evaluate(p_.blocks[b], values_of(p_.blocks[b], x));
    }
    return all;
  }

  bool take_given_derivatives() {
    const auto given = [](const FitBlock& b) { return b.derivatives.size() == b.rows * b.variables.size(); };
    if (!std::all_of(p_.blocks.begin(), p_.blocks.end(), given)) return false;
    using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    for (const FitBlock& b : p_.blocks)
      jacobians_.emplace_back(Eigen::Map<const RowMajor>(b.derivatives.data(), static_cast<Eigen::Index>(b.rows),
                                                         static_cast<Eigen::Index>(b.variables.size())));
    return true;
  }

  // Forward differences, backward where forward would leave the bounds.
  void differentiate() {
    jacobians_.clear();
    for (std::size_t b = 0; b < p_.blocks.size(); ++b) {
      const FitBlock& block = p_.blocks[b];
      Matrix j(static_cast<Eigen::Index>(block.rows), static_cast<Eigen::Index>(block.variables.size()));
      const std::vector<double> at = values_of(block, x_);
      for (std::size_t v = 0; v < at.size(); ++v) {
        const int variable = block.variables[v];
        const double h = x_[variable] + o_.difference > upper_[variable] ? -o_.difference : o_.difference;
        std::vector<double> values = at;
        values[v] *= std::exp(h);
        const std::vector<double> there = evaluate(block, values);
        for (std::size_t i = 0; i < block.rows; ++i)
          j(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(v)) = (there[i] - r_[b][i]) / h;
      }
      jacobians_.push_back(std::move(j));
    }
  }

  // Gradient and curvature of the objective with the weights of the residuals as they are.
  void assemble() {
    gradient_ = Vector::Zero(n_);
    curvature_ = Matrix::Zero(n_, n_);
    for (std::size_t b = 0; b < p_.blocks.size(); ++b) {
      const auto& variables = p_.blocks[b].variables;
      Vector w(jacobians_[b].rows()), r(jacobians_[b].rows());
      for (std::size_t i = 0; i < r_[b].size(); ++i) {
        const auto at = static_cast<Eigen::Index>(i);
        r[at] = r_[b][i];
        w[at] = weight(b, i) * huber_weight(r_[b][i] / spreads_[b]) / (spreads_[b] * spreads_[b]);
      }
      const Matrix weighted = w.asDiagonal() * jacobians_[b];
      const Vector g = weighted.transpose() * r;
      const Matrix h = weighted.transpose() * jacobians_[b];
      for (std::size_t i = 0; i < variables.size(); ++i) {
        gradient_[variables[i]] += g[static_cast<Eigen::Index>(i)];
        for (std::size_t k = 0; k < variables.size(); ++k)
          curvature_(variables[i], variables[k]) += h(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(k));
      }
    }
    for (const FitPrior& q : p_.priors) {
      const double d = 1 / q.width, g = prior_residual(q, x_) * d;
      gradient_[q.variable] += g;
      curvature_(q.variable, q.variable) += d * d;
      if (!q.other) continue;
      gradient_[*q.other] -= g;
      curvature_(*q.other, *q.other) += d * d;
      curvature_(q.variable, *q.other) -= d * d;
      curvature_(*q.other, q.variable) -= d * d;
    }
  }

  [[nodiscard]] bool held(int i) const {
    constexpr double kNear = 1e-12;
    return (x_[i] <= lower_[i] + kNear && gradient_[i] > 0) || (x_[i] >= upper_[i] - kNear && gradient_[i] < 0);
  }

  // The step of the constants that may move.
  [[nodiscard]] Vector direction(double damping) const {
    std::vector<int> free;
    for (int i = 0; i < n_; ++i)
      if (!held(i)) free.push_back(i);
    const auto m = static_cast<Eigen::Index>(free.size());
    Vector step = Vector::Zero(n_);
    if (m == 0) return step;
    Matrix h = curvature_(free, free);
    for (Eigen::Index i = 0; i < m; ++i) h(i, i) = h(i, i) * (1 + damping) + 1e-12;
    const Vector g = gradient_(free);
    const Vector s = h.ldlt().solve(-g);
    for (Eigen::Index i = 0; i < m; ++i) step[free[static_cast<std::size_t>(i)]] = std::isfinite(s[i]) ? s[i] : 0;
    return step;
  }

  // One accepted step, or none after eight refusals. True: nothing moved by more than the tolerance.
  bool step(double& damping) {
    assemble();
    const double before = objective(x_, r_);
    for (int tries = 0; tries < 8; ++tries, damping = std::max(1e-3, damping * 8)) {
      const Vector x = (x_ + direction(damping)).cwiseMax(lower_).cwiseMin(upper_);
      const double moved = n_ > 0 ? (x - x_).cwiseAbs().maxCoeff() : 0;
      if (moved < o_.tolerance) return true;
      Residuals r = residuals_at(x);
      const double after = objective(x, r);
      if (!std::isfinite(after) || after >= before) continue;
      x_ = x;
      r_ = std::move(r);
      set_spreads();
      damping = std::max(1e-6, damping / 8);
      return false;
    }
    return true;
  }

  void finish(FitResult& result) {
    if (jacobians_.empty()) differentiate();
    assemble();
    Matrix h = curvature_;
    for (int i = 0; i < n_; ++i) h(i, i) += 1e-12;
    const Matrix covariance = h.ldlt().solve(Matrix::Identity(n_, n_));
    for (int i = 0; i < n_; ++i) {
      const FitVariable& v = p_.variables[static_cast<std::size_t>(i)];
      result.values.push_back(std::clamp(std::exp(x_[i]), v.lower, v.upper));
      result.standard_errors.push_back(std::sqrt(std::max(0.0, covariance(i, i))));
      result.at_bound.push_back(x_[i] <= lower_[i] + 1e-9 || x_[i] >= upper_[i] - 1e-9);
    }
    result.residuals = std::move(r_);
    result.spreads = spreads_;
  }

  const FitProblem& p_;
  const FitOptions& o_;
  int n_;
  Vector x_, lower_, upper_, gradient_;
  Matrix curvature_;
  Residuals r_;
  std::vector<Matrix> jacobians_;
  std::vector<double> spreads_;
  double overall_ = 0;
};

}  // namespace

FitResult fit(const FitProblem& problem, const FitOptions& options) {
  check(problem, options);
  return Solver(problem, options).solve();
}

}  // namespace fsdp
