#include "executor/training/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {
constexpr std::array<std::string_view, 3> kNames = {"constant", "cosine", "linear"};
}  // namespace

std::string_view name(Decay kind) { return kNames.at(static_cast<std::size_t>(kind)); }

Decay parse_decay(std::string_view text, std::string_view where) {
  for (const Decay kind : {Decay::constant, Decay::cosine, Decay::linear})
    if (text == name(kind)) return kind;
  throw InputError(std::string(where), "'" + printable(text) + "' is not a schedule",
                   "give constant, cosine or linear");
}

double LearningRate::operator()(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (kind == Decay::constant) return peak;
  const double t = step >= total ? 1.0 : static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  if (kind == Decay::linear) return peak + (least - peak) * t;
  return least + (peak - least) * (1 + std::cos(std::numbers::pi * t)) / 2;
}

std::string LearningRate::describe() const {
  std::string text = fmt::format("{}", peak);
  if (warmup > 0) text += fmt::format(", {} {} of warm-up", warmup, warmup == 1 ? "step" : "steps");
  if (kind != Decay::constant)
    text += fmt::format("{} {} to {} after step {}", warmup > 0 ? ", then" : ",", name(kind), least, total);
  return text;
}

}  // namespace fsdp
