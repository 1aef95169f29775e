// Rates of operations that run together: what engine.h says of collectives that hold compute and of what is beside
// them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>

#include "simulator/engine/engine.h"

namespace fsdp {

namespace {

constexpr std::size_t kCompute = static_cast<std::size_t>(Resource::compute),
                      kMemory = static_cast<std::size_t>(Resource::memory);

// Progressive filling of the operations that hold compute, or of the others: all unfixed rates rise together until a
// resource is full or a rate reaches 1.
void fill(std::span<const Demand* const> running, std::span<double> rates, bool holders,
          std::array<double, kResources>& left) {
  const std::size_t n = running.size();
  std::array<bool, 16> active{};
  std::size_t count = 0, last = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (running[i]->holds_compute == holders) {
      active[last = i] = true;
      rates[i] = 0;
      ++count;
    }
  if (count == 1) {  // as most often: it rises once
    double& rate = rates[last] = 1;
    const auto& use = running[last]->use;
    for (std::size_t k = 0; k < kResources; ++k)
      if (use[k] > 0) rate = std::min(rate, left[k] / use[k]);
    for (std::size_t k = 0; k < kResources; ++k) left[k] = std::max(0.0, left[k] - rate * use[k]);
    return;
  }
  while (count > 0) {
    double rise = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < n; ++i)
      if (active[i]) rise = std::min(rise, 1.0 - rates[i]);
    std::array<double, kResources> load{};
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; active[i] && k < kResources; ++k) load[k] += running[i]->use[k];
    for (std::size_t k = 0; k < kResources; ++k)
      if (load[k] > 0) rise = std::min(rise, left[k] / load[k]);
    for (std::size_t k = 0; k < kResources; ++k) left[k] = std::max(0.0, left[k] - rise * load[k]);
    for (std::size_t i = 0; i < n; ++i) {
      if (!active[i]) continue;
      rates[i] += rise;
      bool stuck = rates[i] >= 1.0 - 1e-12;
      for (std::size_t k = 0; k < kResources; ++k) stuck = stuck || (running[i]->use[k] > 0 && left[k] <= 1e-12);
      if (stuck) {
        active[i] = false;
        --count;
      }
    }
  }
}

// Collectives that keep less than their speed beside kernels, in the measure in which those use compute or memory. They
// hold their multiprocessors all the same.
void slow_beside(std::span<const Demand* const> running, std::span<double> rates,
                 std::array<double, kResources>& left) {
  double beside = 0;
  for (const Demand* d : running)
    if (!d->holds_compute) beside = std::max({beside, d->use[kCompute], d->use[kMemory]});
  for (std::size_t i = 0; i < running.size(); ++i) {
    const Demand& d = *running[i];
    if (!d.holds_compute || d.beside == 1) continue;
    const double before = rates[i];
    rates[i] *= 1 - (1 - d.beside) * std::min(1.0, beside);
    for (std::size_t k = 0; k < kResources; ++k)
      if (k != kCompute) left[k] = std::min(1.0, left[k] + (before - rates[i]) * d.use[k]);
  }
}

}  // namespace

void share_rates(std::span<const Demand* const> running, std::span<double> rates) {
  std::array<double, kResources> left;
  left.fill(1.0);
  fill(running, rates, true, left);
  slow_beside(running, rates, left);
  const double held = std::min(kMostHeld, 1 - left[kCompute]), moved = std::min(kMostHeld, 1 - left[kMemory]);
  std::array<double, 16> limit{};  // never more than is left ...
  std::copy(rates.begin(), rates.end(), limit.begin());
  std::array<double, kResources> rest = left;
  fill(running, {limit.data(), running.size()}, false, rest);
  left[kCompute] = left[kMemory] = 1;  // ... and of their fair part what holders leave
  fill(running, rates, false, left);
  for (std::size_t i = 0; i < running.size(); ++i) {
    const Demand& d = *running[i];
    if (!d.holds_compute) {
      const double arithmetic = d.use[kCompute], memory = d.use[kMemory];
      if (d.resident == 0) rates[i] *= 1 - held * std::max(arithmetic, memory);
      rates[i] = std::min(limit[i], rates[i] * (1 - moved * std::max(memory, kInterference * arithmetic)));
    }
    rates[i] = std::max(rates[i], 1e-3);
  }
}

}  // namespace fsdp
