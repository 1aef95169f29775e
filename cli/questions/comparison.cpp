#include "cli/questions/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/predict.h"
#include "cli/report/report.h"
#include "cli/report/rivals_report.h"
#include "cli/terminal/terminal.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/search/rivals.h"
#include "planner/wrap.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNaive = "naive";

// What all compared plans share: times of a sequence of another length, or on other GPUs, are no answer to the same
// question.
constexpr std::array<std::string_view, 4> kOfTheQuestion = {"model", "cluster", "gpus", "seq-len"};

bool is_file(const std::string& word) {
  std::error_code ignored;
  return word.ends_with(".json") || std::filesystem::is_regular_file(word, ignored);
}

std::string short_label(const ShardingPlan& p, const ModelGraph& model) {
  const auto policy = checkpointing_policy(p, model);
  return fmt::format(
      "{}, {}, checkpoint {}, {} on each rank in {}, replicate {}{}", p.wrap.empty() ? "as listed" : p.wrap,
      counted(p.units.size(), "unit"), policy.value_or("as listed"), counted(p.sequences_per_rank(), "sequence"),
      p.micro_batches.size() == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", p.micro_batches.size()),
      p.replicate(), p.tensor() > 1 ? fmt::format(", tensor {}", p.tensor()) : "");
}

// The plan of a file, which must be for this question.
Candidate plan_of_file(const std::string& file, const Setup& setup) {
  const PlanFile read = parse_plan_file(read_file(file), file);
  check(read.plan, file);
  if (read.plan.ranks() != setup.cluster.gpus)
    throw InputError({file, "mesh"},
                     fmt::format("is for {} GPUs, but the question is about {}", read.plan.ranks(), setup.cluster.gpus),
                     fmt::format("give --gpus {}, or a plan for {}", read.plan.ranks(), setup.cluster.gpus));
  if (read.plan.seq_len != setup.seq_len)
    throw InputError({file, "seq_len"},
                     fmt::format("is {} tokens, but the question is about {}", read.plan.seq_len, setup.seq_len),
                     fmt::format("give --seq-len {}, or another plan", read.plan.seq_len));
  check(read.plan, setup.model, file);
  return {read.plan, score_plan(read.plan, setup), short_label(read.plan, setup.model), {}, false};
}

// The best plan with one flag changed, or, where none fits, the one that needs least.
Candidate best_with(const Flags& flags, const std::string& word, const FindPlan& find) {
  try {
    const PlanResult result = find(flags).result;
    Candidate best = result.best ? *result.best : *result.least;
    if (result.stopped) best.label += " (its search was stopped)";
    return best;
  } catch (const InputError& e) {
    throw said_of("--compare " + word, naming_given_flags(e, flags));
  }
}

Candidate plan_of(const std::string& word, const Flags& flags, const Setup& setup, const PlanResult& found,
                  const FindPlan& find) {
  if (word == kNaive) return found.naive;
  if (is_file(word)) return plan_of_file(word, setup);
  Flags changed = flags;
  const std::size_t is = word.find('=');
  const auto* const shared = std::find(kOfTheQuestion.begin(), kOfTheQuestion.end(), word.substr(0, is));
  if (is != std::string::npos && shared != kOfTheQuestion.end())
    throw InputError("--compare",
                     fmt::format("'{}' is another question: compared plans share --{}", printable(word), *shared),
                     fmt::format("ask it by itself, with --{} {}", *shared, shell_word(word.substr(is + 1))));
  if (is != std::string::npos && set_plan_flag(changed, "--" + word.substr(0, is), word.substr(is + 1)))
    return best_with(changed, word, find);
  if (is != std::string::npos && word.find_first_of(":|") > is)  // no policy, which can have one behind a class
    throw InputError("--compare",
                     "'" + printable(word) + "': --" + printable(word.substr(0, is)) + " is no flag of a plan",
                     "compare a flag that a plan is made by, such as micro-batch=2, or ask with it by itself");
  changed = flags;
  changed.wrap = word;
  try {
    (void)wrap(setup.model, word, "--compare");
  } catch (const InputError& e) {
    throw InputError("--compare",
                     "'" + printable(word) + "' is no file and no FLAG=VALUE, and as a wrap policy: " + e.problem(),
                     e.remedy());
  }
  return best_with(changed, word, find);
}

// By the sequences of all GPUs: tensor ranks share theirs.
Judged judged(const ShardingPlan& plan, const Score& score) {
  Judged j{{}, Bytes(0), score};
  j.option.plan = plan;
  j.option.batch = {plan.tokens_per_step() / plan.seq_len, 1};
  return j;
}

// "8.1% slower: 120 ms more exposed all-gather", "does not fit: needs 91 GiB of 75 GiB", "1.2% faster".
std::string against(const ShardingPlan& plan, const Score& score, const Candidate& chosen, Bytes limit) {
  if (plan == chosen.plan) return "the same plan";
  const Judged mine = judged(plan, score), best = judged(chosen.plan, chosen.score);
  const double faster = best.seconds_per_sequence() / mine.seconds_per_sequence() - 1;
  if (score.verdict <= chosen.score.verdict && faster >= 0.001) return fmt::format("{:.1f}% faster", 100 * faster);
  return why_lost(mine, best, limit).clause;
}

double tokens_per_s(const ShardingPlan& plan, const Score& score) {
  return score.step.count() > 0 ? static_cast<double>(plan.tokens_per_step()) / score.step.count() : 0;
}

// The two largest parts of the step, and whether memory is used up: "compute 84 %, recompute 9 %, memory 99.9 %".
std::string bounded_by(const Score& score, Bytes limit) {
  std::vector<std::pair<double, std::string>> parts;
  for (const BreakdownPart& part : kBreakdownParts)
    parts.emplace_back((score.where.*part.member).count() / score.step.count(), std::string(part.label));
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = parts[0].second + " " + percent(parts[0].first);
  if (parts[1].first >= 0.01) text += ", " + parts[1].second + " " + percent(parts[1].first);
  const double full = score.peak_total / limit;
  return full > 0.97 ? text + ", memory " + percent(full) : text;
}

std::vector<std::string> plan_row(const std::string& who, const Candidate& c, const Candidate& chosen, Bytes limit) {
  if (c.score.step.count() == 0) return {who, "-", "-", "-", std::string(name(c.score.verdict)), "-", "-"};
  return {who,
          human(c.score.step),
          with_commas(std::llround(tokens_per_s(c.plan, c.score))),
          human(c.score.peak_total),
          std::string(name(c.score.verdict)),
          &c == &chosen ? "chosen" : against(c.plan, c.score, chosen, limit),
          bounded_by(c.score, limit)};
}

std::string alone_table(const ComparedPlan& other, const Candidate& chosen, Bytes limit) {
  std::vector<std::vector<std::string>> rows;
  for (const ChangedAlone& a : other.alone) {
    const Difference& d = a.difference;
    const std::string choice = d.choice + (d.other_training ? " (trains otherwise)" : "");
    if (a.score)
      rows.push_back({choice, d.chosen, d.other, human(a.score->step), human(a.score->peak_total),
                      std::string(name(a.score->verdict)), against(d.alone, *a.score, chosen, limit)});
    else rows.push_back({choice, d.chosen, d.other, "-", "-", "-", "not alone: " + a.refused});
  }
  return fitting_table({"one choice alone", "chosen", other.asked, ">step", ">peak", "verdict", "why"}, rows);
}

}  // namespace

std::vector<ComparedPlan> compare_plans(const std::vector<std::string>& words, const Flags& flags, const Setup& setup,
                                        const PlanResult& found, const FindPlan& find) {
  std::vector<ComparedPlan> compared;
  for (const std::string& word : words) {
    ComparedPlan c{word, plan_of(word, flags, setup, found, find), {}};
    for (Difference& d : differences(found.best->plan, c.plan.plan, setup.model)) {
      ChangedAlone alone{std::move(d), std::nullopt, {}};
      try {
        check(alone.difference.alone, setup.model);
        alone.score = score_plan(alone.difference.alone, setup);
      } catch (const InputError& e) {
        alone.refused = e.problem();
      }
      c.alone.push_back(std::move(alone));
    }
    compared.push_back(std::move(c));
  }
  return compared;
}

void check_apart_from_compared(const Text& output, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (word != kNaive && is_file(word)) check_output("--compare", output, {word});
}

std::string comparison_text(const std::vector<ComparedPlan>& compared, const Candidate& chosen, Bytes limit) {
  if (compared.empty()) return "";
  std::vector<std::vector<std::string>> rows = {plan_row(chosen.label, chosen, chosen, limit)};
  for (const ComparedPlan& c : compared) rows.push_back(plan_row(c.asked + ": " + c.plan.label, c.plan, chosen, limit));
  std::string text =
      "\n" + fitting_table({"compared", ">step", ">tokens/s", ">peak", "verdict", "why", "bounded by"}, rows);
  for (const ComparedPlan& c : compared) {
    if (c.alone.empty()) text += fmt::format("\n{} is the chosen plan.\n", c.asked);
    else
      text += fmt::format("\nThe chosen plan with each choice of {} alone:\n", c.asked) + alone_table(c, chosen, limit);
  }
  return text;
}

nlohmann::ordered_json comparison_json(const std::vector<ComparedPlan>& compared) {
  Json list = Json::array();
  for (const ComparedPlan& c : compared) {
    Json alone = Json::array();
    for (const ChangedAlone& a : c.alone) {
      const Difference& d = a.difference;
      Json row = {
          {"choice", d.choice}, {"chosen", d.chosen}, {"other", d.other}, {"trains_otherwise", d.other_training}};
      if (a.score) {
        row["step_time_s"] = a.score->step.count();
        row["tokens_per_s"] = tokens_per_s(d.alone, *a.score);
        row["peak_total_bytes"] = a.score->peak_total.count();
        row["verdict"] = std::string(name(a.score->verdict));
      } else {
        row["refused"] = a.refused;
      }
      alone.push_back(std::move(row));
    }
    Json plan = candidate_json(c.plan);
    plan.erase("why_lost");
    list.push_back({{"asked", c.asked}, {"candidate", std::move(plan)}, {"alone", std::move(alone)}});
    list.back()["plan"] = Json::parse(to_json_text(c.plan.plan));
  }
  return list;
}

}  // namespace fsdp::cli
