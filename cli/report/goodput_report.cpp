#include "cli/report/goodput_report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

struct Part {
  const char* key;
  const char* name;
  double Goodput::*value;
};
constexpr std::array kParts = {
    Part{"training", "training", &Goodput::training},
    Part{"saving", "saving, training stands still", &Goodput::saving},
    Part{"redone", "work lost to failures", &Goodput::redone},
    Part{"detection", "failures not yet detected", &Goodput::detection},
    Part{"restart", "restart", &Goodput::restart},
    Part{"load", "loading the checkpoint", &Goodput::load},
    Part{"warmup", "compiling and warm-up", &Goodput::warmup},
    Part{"waiting", "waiting for a spare", &Goodput::waiting},
};

// "3.1 h": days to seconds; shorter as everywhere.
std::string long_time(double seconds) {
  for (const auto& [unit, name] : {std::pair{kDay, "days"}, {kHour, "h"}, {kMinute, "min"}}) {
    const double units = seconds / unit.count();
    if (units >= 1000) return fmt::format("{} {}", with_commas(std::llround(units)), name);
    if (units >= 2) return fmt::format("{:.3g} {}", units, name);
  }
  return human(Seconds(seconds));
}

std::string every(const GoodputAnswer& a, std::int64_t steps) {
  return fmt::format("{} step{} ({})", with_commas(steps), steps == 1 ? "" : "s",
                     long_time(static_cast<double>(steps) * a.run.step));
}

std::string share(double part) { return fmt::format("{:.2f} %", 100 * part); }

std::string a_day(double part) {
  const double seconds = kDay.count() * part;
  if (part == 0) return "-";
  return seconds < 0.001 ? "< 1 ms" : long_time(seconds);
}

}  // namespace

std::string goodput_text(const GoodputAnswer& a) {
  const Goodput& g = a.goodput;
  std::string out = a.fits ? "" : "The plan does not fit; on GPUs with more memory, all else equal:\n";
  out += fmt::format(
      "Long run: {} of the time trains, {} tokens a day; a failure every {} ({} GPU{}); a checkpoint of {} every {}.\n",
      share(g.training), with_commas(static_cast<std::int64_t>(g.tokens_per_day(a.run))), long_time(a.run.mtbf),
      with_commas(a.ranks), a.ranks == 1 ? "" : "s", human(Bytes(a.checkpoint_bytes)), every(a, g.save_every));
  if (a.cost)
    out += fmt::format(
        "Cost of the long run: {} per 10^9 tokens that stay trained; {} a day, whether it trains or not.\n",
        money(a.cost->per_billion_tokens, a.cost->price.currency), money(a.cost->per_day, a.cost->price.currency));
  std::vector<std::vector<std::string>> rows;
  for (const Part& p : kParts) rows.push_back({p.name, share(g.*p.value), a_day(g.*p.value)});
  out += "\n" + fitting_table({"time of a long run", ">share", ">a day"}, rows) + "\n";
  out += fmt::format("Best: a checkpoint every {}; from {} {} at most 0.1 % less of the time trains.",
                     every(a, a.best.best.save_every), with_commas(a.best.lowest),
                     a.best.highest ? "to " + with_commas(*a.best.highest) + " steps" : "step on");
  if (!a.async_save)
    out += fmt::format(" Young says {}, Daly {}.", long_time(young_interval(a.run.stall, a.run.mtbf)),
                       long_time(daly_interval(a.run.stall, a.run.mtbf)));
  if (a.simulated)
    out += fmt::format("\nMonte Carlo, {} failures of seed {}: {} of the time trains, +- {:.2g} % (95 %).\n",
                       with_commas(a.simulated->failures), a.seed, share(a.simulated->mean.training),
                       196 * a.simulated->standard_error);
  else
    out += fmt::format(
        "\nRecovery hardly ever ends: it takes {}, and succeeds with a probability of {:.2g}. No Monte Carlo.\n",
        long_time(a.run.recovery()), recovery_succeeds(a.run));
  for (const std::string& assumption : a.assumptions) out += "assumed: " + assumption + ".\n";
  return out;
}

std::string goodput_json(const GoodputAnswer& a) {
  using Json = nlohmann::ordered_json;
  const Goodput& g = a.goodput;
  Json shares = Json::object();
  for (const Part& p : kParts) shares[p.key] = g.*p.value;
  Json monte_carlo;
  if (a.simulated)
    monte_carlo = {{"goodput", a.simulated->mean.training},
                   {"standard_error", a.simulated->standard_error},
                   {"failures", a.simulated->failures},
                   {"seed", a.seed}};
  Json json = {{"schema", "fsdp-plan/goodput/1"},
               {"step_time_s", a.run.step},
               {"ranks", a.ranks},
               {"fits", a.fits},
               {"cluster_mtbf_s", a.run.mtbf},
               {"checkpoint_bytes", a.checkpoint_bytes},
               {"async_save", a.async_save},
               {"stall_s", a.run.stall},
               {"write_s", a.written},
               {"detection_s", a.run.detection},
               {"restart_s", a.run.restart},
               {"load_s", a.run.load},
               {"warmup_s", a.run.warmup},
               {"spares", a.run.spares ? Json(a.run.spares->count) : Json()},
               {"repair_s", a.run.spares ? Json(a.run.spares->repair_seconds) : Json()},
               {"save_every", g.save_every},
               {"goodput", g.training},
               {"tokens_per_day", g.tokens_per_day(a.run)},
               {"failures_per_day", g.failures_per_day},
               {"shares", std::move(shares)},
               {"expected_goodput", a.expected.training},
               {"monte_carlo", std::move(monte_carlo)},
               {"best",
                {{"save_every", a.best.best.save_every},
                 {"goodput", a.best.best.training},
                 {"lowest", a.best.lowest},
                 {"highest", a.best.highest ? Json(*a.best.highest) : Json()}}},
               {"young_interval_s", young_interval(a.run.stall, a.run.mtbf)},
               {"daly_interval_s", daly_interval(a.run.stall, a.run.mtbf)},
               {"assumptions", a.assumptions}};
  if (a.steps) {  // as in a prediction
    Json& steps = json["step_time_distribution"];
    steps = {{"mean_s", a.steps->mean.count()},
             {"p50_s", a.steps->p50.count()},
             {"p95_s", a.steps->p95.count()},
             {"p99_s", a.steps->p99.count()},
             {"samples", a.steps->samples}};
    if (a.steps->seed) steps["seed"] = *a.steps->seed;
  }
  if (a.cost)
    json["cost"] = {{"price_per_gpu_hour", a.cost->price.per_gpu_hour},
                    {"currency", a.cost->price.currency},
                    {"gpus", a.cost->gpus},
                    {"per_day", a.cost->per_day},
                    {"per_1e9_tokens", a.cost->per_billion_tokens}};
  return json.dump(2) + "\n";
}

}  // namespace fsdp::cli
