// What a run's step time would be if it were a weighted sum of eight numbers that anybody can write down without
// knowing a schedule.
#include <Eigen/Dense>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "simulator/published/cross_validation.h"

namespace fsdp {

namespace {

constexpr int kFeatures = 8;
constexpr double kRidge = 1e-6;  // keeps features that no row tells apart from growing without bound

using Features = std::array<double, kFeatures>;

// Per GPU and step: flops of matmuls and of attention, activations, logits, blocks launched, bytes gathered and
// reduced (inside a node, between nodes), optimizer. In units that make each of the order of a second.
Features features(const FitRun& r) {
  const ShardingPlan& plan = r.prepared.setup.plan;
  const ClusterSpec& cluster = r.prepared.setup.cluster;
  const auto of = [](const std::optional<std::int64_t>& v, double otherwise) {
    return v ? static_cast<double>(*v) : otherwise;
  };
  double parameters = 0;
  for (const Parameter& p : r.prepared.setup.model.parameters) parameters += static_cast<double>(p.numel());
  const double layers = of(r.run.layers, 32), hidden = of(r.run.hidden, 4096), vocabulary = of(r.run.vocab, 50000);
  const double tokens = static_cast<double>(plan.sequences_per_rank()) * static_cast<double>(plan.seq_len);
  const double accumulations = static_cast<double>(plan.micro_batches.size());
  const double passes = plan.checkpointed.empty() ? 3 : 4;
  const bool apart = cluster.nodes() > 1;
  return {passes * 2 * parameters * tokens / 1e15,
          passes * 2 * layers * hidden * tokens * static_cast<double>(plan.seq_len) / 1e15,
          passes * tokens * layers * hidden * 20 / 1e12,
          tokens * vocabulary * 12 / 1e12,
          accumulations * layers / 1e3,
          accumulations * parameters * 8 / 1e11 * (apart ? 0 : 1),
          accumulations * parameters * 8 / 1e11 * (apart ? 1 : 0),
          parameters / static_cast<double>(plan.shard()) * 28 / 1e12};
}

using Rows = std::vector<const FitRun*>;

Eigen::VectorXd solve(const Rows& rows) {
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), kFeatures);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Features f = features(*rows[i]);
    for (int k = 0; k < kFeatures; ++k)
      a(static_cast<Eigen::Index>(i), k) = f[static_cast<std::size_t>(k)] / rows[i]->measured_s;
  }
  Eigen::MatrixXd normal = a.transpose() * a;
  normal.diagonal().array() += kRidge;
  return normal.ldlt().solve(a.transpose() * Eigen::VectorXd::Ones(a.rows()));
}

}  // namespace

std::vector<double> linear_baseline(std::span<const FitRun* const> train, std::span<const FitRun* const> test) {
  std::map<std::string, Rows> by_gpu;
  for (const FitRun* r : train) by_gpu[r->run.gpu].push_back(r);
  std::map<std::string, Eigen::VectorXd> weights;
  std::vector<double> seconds;
  for (const FitRun* r : test) {
    const auto own = by_gpu.find(r->run.gpu);
    const std::string key = own == by_gpu.end() ? "" : own->first;
    if (!weights.count(key)) weights[key] = solve(own == by_gpu.end() ? Rows(train.begin(), train.end()) : own->second);
    const Features f = features(*r);
    double sum = 0;
    for (int k = 0; k < kFeatures; ++k) sum += f[static_cast<std::size_t>(k)] * weights[key][k];
    seconds.push_back(std::max(sum, 1e-9));
  }
  return seconds;
}

}  // namespace fsdp
