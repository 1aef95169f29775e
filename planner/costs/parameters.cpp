// The constants that a fit may move, and how far.
#include <array>

#include "planner/costs/fitted.h"

namespace fsdp {

namespace {

void backward_too(Costs& c, double ratio) { c.attention_backward_efficiency *= ratio; }

// Copies, casts, the optimizer and norms have rates of their own below the best kernel's.
void all_traffic(Costs& c, double ratio) {
  for (KernelRate* rate : {&c.copy, &c.cast, &c.optimizer, &c.norm}) rate->byte_rate = rate->byte_rate * ratio;
}

// Widths: two GPUs of one type differ by up to 5 % in what they sustain, two laboratories' cooling and libraries by
// more; kernels that were rewritten between two generations of software by tens of per cent.
constexpr auto kParameters = std::to_array<CostParameter>({
    {"matmul_efficiency", &Costs::matmul_efficiency, 0.40, 0.95, 0.05, 0.08,
     "best products measured reach 0.66 to 0.86 of the dense peak, on random data at full power 10 to 20 % less"},
    {"attention_forward_efficiency", &Costs::attention_forward_efficiency, 0.10, 0.80, 0.12, 0.20,
     "FlashAttention 1 in Triton reached 0.2 to 0.35, FlashAttention 3 reaches 0.75", backward_too},
    {"memory_efficiency", &Costs::memory_efficiency, 0.40, 0.95, 0.07, 0.15,
     "streams reach 0.80 to 0.93 of the datasheet's bandwidth, unfused eager kernels half of it", all_traffic},
    {"host_scale", &Costs::host_scale, 0.25, 4.0, 0.15, 0.30,
     "server processors differ by a factor of two per thread, Python releases likewise"},
    {"fabric_efficiency", &Costs::fabric_efficiency, 0.20, 1.0, 0.15, 0.50,
     "clean fabrics reach 0.90 to 0.96 of their NICs; shared or oversubscribed ones half and less", nullptr, true},
    {"fabric_efficiency_at_scale", &Costs::fabric_efficiency_at_scale, 0.20, 1.0, 0.15, 0.50,
     "the same of 16 nodes and more, which other jobs and routes that are fixed disturb more than 8 nodes", nullptr,
     true},
    {"collective_skew_s", &Costs::collective_skew, 1e-6, 1e-3, 0.30, 0.60,
     "launch and the last rank's delay, 10 to 60 microseconds in eager training; tenths of a millisecond on busy "
     "hosts"},
});

}  // namespace

std::span<const CostParameter> cost_parameters() { return kParameters; }

const CostParameter* find_parameter(std::string_view name) {
  for (const CostParameter& p : kParameters)
    if (p.name == name) return &p;
  return nullptr;
}

double value_of(const Costs& c, const CostParameter& p) {
  if (const auto* number = std::get_if<double Costs::*>(&p.member)) return c.**number;
  return (c.*std::get<Seconds Costs::*>(p.member)).count();
}

void set_value(Costs& c, const CostParameter& p, double value) {
  const double before = value_of(c, p);
  if (const auto* number = std::get_if<double Costs::*>(&p.member)) c.** number = value;
  else c.*std::get<Seconds Costs::*>(p.member) = Seconds(value);
  if (p.follow && before > 0) p.follow(c, value / before);
}

}  // namespace fsdp
