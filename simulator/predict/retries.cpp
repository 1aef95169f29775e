#include "simulator/predict/retries.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "simulator/engine/engine.h"

namespace fsdp {
namespace {

constexpr int kSteps = 24, kSettling = 4;
constexpr double kHostVaries = 0.6, kCollectiveVaries = 0.3, kKernelVaries = 0.05;
constexpr double kStopLow = 0.4, kStop = 0.8, kStopHigh = 1.4;  // seconds

// Nearly normal, the same on every platform.
class Varying {
 public:
  double operator()() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits_() >> 11U) * 0x1p-53;
    return sum;
  }

 private:
  std::mt19937_64 bits_{20261123};
};

std::vector<Timeline> varied(const Step& step, const Demands& demands) {
  Varying normal;
  std::vector<Timeline> out;
  for (int k = 0; k < kSteps; ++k) {
    std::vector<Demand> now;
    now.reserve(demands.size());
    for (std::size_t i = 0; i < demands.size(); ++i) {
      now.push_back(demands[i]);
      now[i].host = now[i].host * std::exp(kHostVaries * normal());
      const bool collective = is_collective(step.ops[i].action);
      now[i].alone = now[i].alone * std::exp((collective ? kCollectiveVaries : kKernelVaries) * normal());
    }
    out.push_back(simulate(step, now, {.steps = 2}));  // the second begins with the first's streams
  }
  return out;
}

bool depends_on_times(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(),
                     [](const Buffer& b) { return b.recorded_streams != 0; });
}

}  // namespace

RetryStall retry_stall(const Program& program, const CostContext& c, const ReplayOptions& tight,
                       std::int64_t retries_per_step, bool vary) {
  RetryStall out;
  out.per_rank = out.per_step = static_cast<double>(retries_per_step);
  if (vary && depends_on_times(program)) {
    const Step& step = program.steady_step;
    const std::vector<Timeline> times = varied(step, demands_of(step, program, c));
    ReplayOptions options = tight;
    options.steady_times = times;
    options.steady_steps = kSteps;
    const std::vector<std::int64_t> retries = replay_allocator(program, options).retries_of_steps;
    double sum = 0, most = 0, steps = 0;
    for (std::size_t k = kSettling; k < retries.size(); ++k) {
      const auto n = static_cast<double>(retries[k]);
      sum += n, most = std::max(most, n), ++steps;
    }
    if (most > 0) {
      out.per_rank = sum / steps;
      out.per_step = most * (1 - std::pow(1 - out.per_rank / most, static_cast<double>(c.plan.ranks())));
    }
  }
  out.low = Seconds(kStopLow * out.per_step);
  out.likely = Seconds(kStop * out.per_step);
  out.high = Seconds(kStopHigh * out.per_step);
  return out;
}

}  // namespace fsdp
