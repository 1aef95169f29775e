#include "cli/questions/pareto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/questions/search_how.h"
#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kParts = 8;       // of the limit, without a size
constexpr std::int64_t kMostSteps = 64;  // searches, each some seconds

Bytes step_of(const std::string& text, Bytes limit) {
  if (text == "auto") return Bytes(std::max<std::int64_t>(1, limit.count() / kParts));
  const Bytes step = parse_bytes(text, "--pareto");
  if (step == Bytes(0) || limit.count() / step.count() > kMostSteps)
    throw InputError("--pareto",
                     fmt::format("steps of {} down from {} are more than {} searches", text, human(limit), kMostSteps),
                     "give a larger size");
  if (step > limit)
    throw InputError("--pareto", fmt::format("a step of {} is more than the limit of {}", text, human(limit)),
                     "give a smaller size");
  return step;
}

std::string speed(const FrontPoint& p) { return with_commas(std::llround(p.tokens_per_s)) + " tokens/s"; }

// Of the next GiB: "+0.42 %".
std::string bought(const FrontPoint& p) { return p.next_gib ? fmt::format("+{:.2f} %", 100 * *p.next_gib) : "-"; }

}  // namespace

const FrontPoint* ParetoAnswer::fitting() const {
  const auto fits = [&](const FrontPoint& p) { return p.plan.score.peak_total <= limit; };
  const auto found = std::find_if(front.points.begin(), front.points.end(), fits);
  return found == front.points.end() ? nullptr : &*found;
}

ParetoAnswer pareto_answer(const std::string& step, const Setup& setup, const LimitedSearch& search) {
  ParetoAnswer a;
  a.limit = *setup.options.memory_limit;
  a.usable = setup.cluster.gpu.usable_memory;
  a.about = workload(setup.model.name, setup.seq_len, setup.cluster.gpus, setup.cluster.name);
  FrontOptions options;
  options.step = step_of(step, a.limit);
  options.most = a.limit + options.step;  // what would more memory buy?
  Progress progress;
  options.told = [&](std::int64_t searches, Bytes limit) {
    progress.say(fmt::format("plan: search {}, at most {}", searches, human(limit)));
  };
  Setup first = setup, limited = setup;
  first.options.memory_limit = options.most;
  const ScoreFunction scored = scored_by(first);
  a.front = front_of(
      options,
      [&](Bytes limit, const ScoreFunction& score) {
        limited.options.memory_limit = limit;
        return search(limited, score);
      },
      [&](const ShardingPlan& plan) { return scored.fit(plan); });
  return a;
}

std::string pareto_headline(const ParetoAnswer& a) {
  std::string text = a.front.stopped ? "Stopped by SIGINT: points are missing, and there may be better.\n" : "";
  const FrontPoint* const at = a.fitting();
  if (at == nullptr) {
    if (a.front.points.empty()) return text + "Does not fit: " + a.front.none->why_none + ".\n\n";
    const FrontPoint& least = a.front.points.back();
    return text + fmt::format("Does not fit in {}: the plan that needs least takes {}.\n\n", human(a.limit),
                              human(least.plan.score.peak_total));
  }
  text += fmt::format("At {} per GPU: {}, {}", human(a.limit), speed(*at), a.about);
  if (at->next_gib) text += fmt::format("; each GiB more would buy {:.2f} % of speed", 100 * *at->next_gib);
  const FrontPoint& least = a.front.points.back();
  if (&least != at)
    text += fmt::format("; with {} it is {} slower", human(least.plan.score.peak_total),
                        percent(1 - least.tokens_per_s / at->tokens_per_s));
  return text + fmt::format(" ({} searches, {} plans simulated).\n\n", a.front.searches, a.front.simulated);
}

std::string pareto_table(const ParetoAnswer& a) {
  if (a.front.points.empty()) return "";
  const FrontPoint* const at = a.fitting();
  std::vector<std::vector<std::string>> rows;
  for (const FrontPoint& p : a.front.points) {
    const Score& s = p.plan.score;
    const bool beyond = s.peak_total > a.limit;
    rows.push_back({human(s.peak_total), beyond ? "beyond" : percent(s.peak_total / a.limit), human(s.step),
                    with_commas(std::llround(p.tokens_per_s)),
                    at != nullptr ? fmt::format("{:+.1f} %", 100 * (p.tokens_per_s / at->tokens_per_s - 1)) : "-",
                    bought(p), p.plan.label});
  }
  return fitting_table({">memory", ">of the limit", ">step", ">tokens/s", ">speed", ">next GiB buys", "plan"}, rows);
}

nlohmann::ordered_json pareto_json(const ParetoAnswer& a) {
  Json points = Json::array();
  for (const FrontPoint& p : a.front.points)
    points.push_back({{"peak_total_bytes", p.plan.score.peak_total.count()},
                      {"within_limit", p.plan.score.peak_total <= a.limit},
                      {"step_time_s", p.plan.score.step.count()},
                      {"tokens_per_s", p.tokens_per_s},
                      {"next_gib_buys", p.next_gib ? Json(*p.next_gib) : Json()},
                      {"label", p.plan.label},
                      {"plan", Json::parse(to_json_text(p.plan.plan))}});
  return {{"schema", "fsdp-plan/front/1"},
          {"memory_limit_bytes", a.limit.count()},
          {"usable_memory_bytes", a.usable.count()},
          {"searches", a.front.searches},
          {"simulated", a.front.simulated},
          {"stopped", a.front.stopped},
          {"points", std::move(points)}};
}

}  // namespace fsdp::cli
