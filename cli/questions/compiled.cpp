#include "cli/questions/compiled.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/report/rivals_report.h"
#include "models/input/error.h"
#include "models/units.h"
#include "planner/emit.h"

namespace fsdp::cli {
namespace {

double tokens_per_s(const Candidate& c) { return static_cast<double>(c.plan.tokens_per_step()) / c.score.step.count(); }

std::string chance(double p) { return p < 0.01 ? "below 1 %" : fmt::format("{:.0f} %", 100 * p); }

// Of this name; null: none is compiled.
const Implementation* compiled_variant(const Implementation& eager) {
  try {
    return &find_implementation(eager.name, true, "--compile");
  } catch (const InputError&) {
    return nullptr;
  }
}

}  // namespace

std::optional<CompiledAnswer> compiled_answer(const Flags& flags, const Setup& setup, const SearchHow& how,
                                              const Candidate& chosen, const Stop& stop) {
  if (flags.compile || flags.no_compile || setup.cluster.host || setup.implementation->compiled) return std::nullopt;
  Setup compiled = setup;
  compiled.implementation = compiled_variant(*setup.implementation);
  if (compiled.implementation == nullptr) return std::nullopt;
  try {
    SearchOptions options = options_of(flags, compiled, how, chosen.plan.tensor());
    options.stop = stop;
    CompiledAnswer answer{std::string(setup.implementation->name),
                          search_near(chosen.plan, chosen.label, compiled.model, compiled.cluster,
                                      *compiled.implementation, options, scored_by(compiled)),
                          options.memory_limit};
    if (const Candidate* best = answer.found.best(); best != nullptr && !how.target.empty()) {
      const Emitted file = emit(how.target, best->plan, setup.model, {compiled.implementation, std::nullopt});
      if (!file.compiled) answer.not_by = how.target;
    }
    return answer.found.best() ? std::optional(std::move(answer)) : std::nullopt;
  } catch (const InputError&) {  // what the user asked for is not possible compiled
    return std::nullopt;
  }
}

std::string compiled_line(const CompiledAnswer& a, const Candidate& chosen) {
  const Candidate& best = *a.found.best();
  const double more = tokens_per_s(best) / tokens_per_s(chosen) - 1;
  const std::string what =
      a.found.better ? fmt::format("{} (the best of {} plans near the one above; `plan --compile` searches all)",
                                   best.label, a.found.simulated)
                     : "the same plan" + (a.found.simulated > 1
                                              ? fmt::format(", and none of {} near it is better", a.found.simulated - 1)
                                              : std::string());
  return fmt::format(
      "Compiled (--compile): step {}, {} tokens/s ({:.1f} % {}), peak {} of {}, {}, out of memory {}: {}{}.\n",
      human(best.score.step), with_commas(std::llround(tokens_per_s(best))), 100 * std::abs(more),
      more < 0 ? "less" : "more", human(best.score.peak_total), human(a.memory_limit), name(best.score.verdict),
      chance(best.score.out_of_memory), what,
      a.not_by.empty() ? "" : fmt::format("; the file of {} compiles nothing: do so in your script", a.not_by));
}

nlohmann::ordered_json compiled_json(const CompiledAnswer& a) {
  nlohmann::ordered_json json = {{"implementation", a.implementation + "+compile"},
                                 {"plan", a.found.better ? "near" : "same"},
                                 {"simulated", a.found.simulated},
                                 {"best", candidate_json(*a.found.best())}};
  if (!a.not_by.empty()) json["not_by"] = a.not_by;  // the format whose file compiles nothing
  if (a.found.same) json["same"] = candidate_json(*a.found.same);
  return json;
}

}  // namespace fsdp::cli
