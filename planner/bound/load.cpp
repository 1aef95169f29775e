#include "planner/bound/load.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fsdp {
namespace {

constexpr std::array<double, 14> kBetas = {0, 0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1};

double use(const Demand& d, Resource r) { return d.use[static_cast<std::size_t>(r)]; }

}  // namespace

std::span<const Weights> weights(bool shared, bool replicas) {
  static const auto listed = [](bool one, bool over_replicas) {
    std::vector<Weights> all;
    for (const double beta : kBetas) {
      if (one) all.push_back({beta, beta, 0, true});
      if (!one) all.push_back({beta, 0, 0, false});
      if (!one) all.push_back({0, beta, 0, false});
      if (!one && beta <= 0.5) all.push_back({beta, beta, 0, false});
      if (!one && beta <= 0.3) all.push_back({2 * beta, beta, 0, false});
    }
    for (const double beta : kBetas) {
      if (!over_replicas) break;
      all.push_back({0, 0, beta, one});
      if (beta <= 0.5) all.push_back({beta, one ? beta : 0, beta, one});
    }
    return all;
  };
  static const std::array<std::vector<Weights>, 4> kAll = {listed(false, false), listed(false, true),
                                                           listed(true, false), listed(true, true)};
  return kAll[(shared ? 2U : 0U) + (replicas ? 1U : 0U)];
}

void KernelLoad::add(const KernelShare& more) {
  if (more.seconds <= 0) return;
  for (KernelShare& s : shares_) {
    if (s.slowed_by_holding != more.slowed_by_holding || s.slowed_by_moving != more.slowed_by_moving ||
        s.resident != more.resident || s.each != more.each || s.second_round != more.second_round)
      continue;
    s.seconds += more.seconds;
    return;
  }
  shares_.push_back(more);
}

void KernelLoad::add(const Demand& d) {
  const double arithmetic = use(d, Resource::compute), memory = use(d, Resource::memory);
  const bool resident = d.resident > 0;
  add({resident ? 0 : std::max(arithmetic, memory), std::max(memory, kInterference * arithmetic), d.resident,
       resident ? d.alone.count() : 0, resident ? d.second_round : 1, d.alone.count()});
}

void KernelLoad::add(const KernelLoad& other, double times) {
  for (KernelShare s : other.shares_) {
    s.seconds *= times;
    add(s);
  }
}

void KernelLoad::add_standstill(double seconds) {
  KernelShare share;
  share.seconds = seconds;
  add(share);
}

double KernelLoad::seconds() const {
  double sum = 0;
  for (const KernelShare& s : shares_) sum += s.seconds;
  return sum;
}

void CommunicatorLoad::add(const Demand& d) {
  if (d.alone.count() <= 0) return;
  seconds += d.alone.count();
  held.longest = std::max(held.longest, d.alone.count());
  held.compute = std::min(held.compute, d.holds_compute ? std::min(kMostHeld, use(d, Resource::compute)) : 0);
  held.memory = std::min(held.memory, d.holds_compute ? std::min(kMostHeld, use(d, Resource::memory)) : 0);
}

std::vector<char> stops_compute(const Step& step) {
  std::vector<char> stops(step.ops.size(), 0);
  std::int32_t before = kNone, waited = kNone;  // of the compute stream: the last, and the last that `tensor` waits for
  std::vector<std::int32_t> since_before;       // over tensor ranks, which start after it
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (op.host_only) continue;
    std::int32_t of_other = kNone;  // streams run in order, so that waiting for one is waiting for those before it
    const Stream other = op.stream == Stream::tensor ? Stream::compute : Stream::tensor;
    for (const std::int32_t w : step.waits_of(op))
      if (w >= 0 && step.ops[static_cast<std::size_t>(w)].stream == other) of_other = std::max(of_other, w);
    if (op.stream == Stream::tensor) {
      waited = std::max(waited, of_other);
      if (before != kNone && waited == before) since_before.push_back(static_cast<std::int32_t>(i));
    }
    if (op.stream != Stream::compute) continue;
    for (const std::int32_t collective : since_before)
      stops[static_cast<std::size_t>(collective)] = collective <= of_other;
    since_before.clear();
    before = static_cast<std::int32_t>(i);
  }
  return stops;
}

Load load_of(const Step& step, const Demands& demands) {
  Load load;
  const std::vector<char> stops = stops_compute(step);
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (op.host_only) continue;
    if (op.stream == Stream::compute && op.comm == Communicator::none) load.compute.add(demands[i]);
    if (stops[i]) load.compute.add_standstill(demands[i].alone.count());
    if (op.comm != Communicator::none) load.communicators[static_cast<std::size_t>(op.comm)].add(demands[i]);
  }
  return load;
}

double loss_beside(const KernelShare& k, const CollectiveShare& held) {
  if (held.longest <= 0) return 1;  // no collective: nothing to hide
  const double loss = 1 - (1 - held.compute * k.slowed_by_holding) * (1 - held.memory * k.slowed_by_moving);
  if (k.resident == 0) return loss;
  const double r = k.second_round, second_round = std::min(r, std::max(r / (1 + r), r * k.each / held.longest));
  return k.resident > 1 - held.compute ? second_round : std::min(second_round, loss);
}

namespace {

// (1 - beta) / (1 - kappa), which of a kernel that loses everything is without bound.
double left(double beta, double kappa) { return kappa < 1 - 1e-9 ? (1 - beta) / (1 - kappa) : 1; }

// Beside two communicators, a second of which weighs so much.
double alpha(const KernelShare& k, double kappa_1, double beta_1, double kappa_2, double beta_2) {
  if (beta_2 == 0) return std::min(1.0, left(beta_1, kappa_1));
  if (beta_1 == 0) return std::min(1.0, left(beta_2, kappa_2));
  const double second = k.resident > 0 ? kappa_2 : kappa_2 * (1 - kappa_1),
               both = k.resident > 0 ? std::min(kappa_1, kappa_2) : kappa_1 + second;
  return std::min({1.0, left(beta_1, kappa_1), left(beta_2, second), left(beta_1 + beta_2, both)});
}

double alpha(const KernelShare& k, const CollectiveShares& held, const Weights& w) {
  const double gathers = loss_beside(k, held.gathers), reductions = loss_beside(k, held.reductions);
  if (w.all_reduce == 0 && !w.shared) return alpha(k, gathers, w.gather, reductions, w.reduce);
  const double all_reduces = w.all_reduce > 0 ? loss_beside(k, held.all_reduces) : 1;
  if (w.shared) return alpha(k, std::min(gathers, reductions), w.gather, all_reduces, w.all_reduce);
  return w.reduce == 0 ? alpha(k, gathers, w.gather, all_reduces, w.all_reduce)
                       : alpha(k, reductions, w.reduce, all_reduces, w.all_reduce);
}

}  // namespace

double weighted_seconds(const KernelLoad& load, const CollectiveShares& held, const Weights& w) {
  double sum = 0;
  for (const KernelShare& s : load.shares()) sum += s.seconds * alpha(s, held, w);
  return sum;
}

double least_seconds(const Load& load) {
  double most = load.compute.seconds();
  const auto of = [&](Communicator c) -> const CommunicatorLoad& {
    return load.communicators[static_cast<std::size_t>(c)];
  };
  for (const CommunicatorLoad& c : load.communicators)
    for (const Weights& w : weights(true, false))
      if (c.seconds > 0)
        most = std::max(most, w.gather * c.seconds + weighted_seconds(load.compute, {c.held, c.held, {}}, w));
  const std::pair<Communicator, Communicator> pairs[] = {{Communicator::shard, Communicator::shard_reduce},
                                                         {Communicator::shard, Communicator::replicate},
                                                         {Communicator::shard_reduce, Communicator::replicate}};
  for (const auto& [first, second] : pairs) {
    const CommunicatorLoad &one = of(first), &other = of(second);
    if (one.seconds == 0 || other.seconds == 0) continue;
    for (const Weights& w : weights(false, false))
      most = std::max(most, w.gather * one.seconds + w.reduce * other.seconds +
                                weighted_seconds(load.compute, {one.held, other.held, {}}, w));
  }
  return most;
}

}  // namespace fsdp
