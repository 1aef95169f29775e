#include "cli/questions/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "cli/predict.h"
#include "models/input/error.h"
#include "planner/wrap.h"

namespace fsdp::cli {
namespace {

// The flags that make a change.
Flags with(const Change& change, Flags flags) {
  if (change.compiled) flags.compile = true, flags.no_compile = false;
  if (change.offload_optimizer) flags.offload_optimizer = "true", flags.offload.reset();
  if (change.offload) flags.offload = "true", flags.offload_optimizer.reset();
  if (change.optimizer) flags.optimizer = std::string(name(*change.optimizer));
  if (change.master_dtype) flags.master_dtype = std::string(name(*change.master_dtype)), flags.trained_dtype.reset();
  if (change.trained_dtype) flags.trained_dtype = std::string(name(*change.trained_dtype));
  if (change.gpus) flags.gpus = std::to_string(*change.gpus);
  if (change.seq_len) flags.seq_len = std::to_string(*change.seq_len);
  return flags;
}

std::string words(const Change& change, const Flags& flags, const ShardingPlan& plan) {
  std::string text;
  const auto say = [&](const std::string& flag) { text += (text.empty() ? "" : " ") + flag; };
  if (change.compiled) say("--compile");
  if (change.offload_optimizer) say(plan.offload ? "--offload-optimizer in place of --offload" : "--offload-optimizer");
  if (change.offload) say(plan.offload_optimizer ? "--offload in place of --offload-optimizer" : "--offload");
  if (change.optimizer) say(fmt::format("--optimizer {}", name(*change.optimizer)));
  if (change.master_dtype) say(fmt::format("--master-dtype {}", name(*change.master_dtype)));
  if (change.trained_dtype) say(fmt::format("--trained-dtype {}", name(*change.trained_dtype)));
  if (change.gpus) say(fmt::format("--gpus {}", *change.gpus));
  if (change.seq_len) say(fmt::format("--seq-len {}", *change.seq_len));
  if (change.seq_len && flags.global_batch_tokens)
    say(fmt::format("--global-batch {} in place of --global-batch-tokens", plan.tokens_per_step() / plan.seq_len));
  if (change.loss_chunks) say(fmt::format("--loss-chunks {}", *change.loss_chunks));
  return text;
}

// Is it the host memory of a node alone that is too small?
bool does_not_fit_host(const Score& score, const Setup& setup) {
  return score.verdict == Verdict::does_not_fit && score.peak_total <= *setup.options.memory_limit;
}

ChangeFunction changing(const Flags& flags, const SearchHow& how) {
  return [&](const Change& change) {
    const auto setup = std::make_shared<const Setup>(resolve_setup(with(change, flags), nullptr, Notes::silent));
    ChangedSetup changed{setup->model, [setup](const ShardingPlan& p) { return score_plan(p, *setup); }};
    // By the question's flags: what only the change decides must be said, too.
    if (const auto rule = rule_of(how, flags, setup->model))
      changed.rule = [setup, rule](const ShardingPlan& p) { rule(p); };
    return changed;
  };
}

// For a hint: only plans that recompute and replicate as this one, which are a small part of all.
Flags near(Flags flags, const ShardingPlan& plan, const ModelGraph& model) {
  if (const auto policy = checkpointing_policy(plan, model)) flags.checkpointing = *policy;
  flags.replicate = std::to_string(plan.replicate());
  return flags;
}

// As `plan` with these flags would, but for plans that treat blocks differently, which takes longer.
PlanResult search_alike(const Flags& flags, SearchHow how, const Setup& setup) {
  how.effort = Effort::uniform;
  const SizesResult sizes = search_sizes(
      tensor_tried(flags, setup, how), [&](std::int64_t tensor) { return options_of(flags, setup, how, tensor); },
      setup.model, setup.cluster, *setup.implementation, setup.costs, scored_by(setup));
  return *sizes.chosen().result;
}

std::optional<Candidate> searched(const Flags& flags, const SearchHow& how) {
  try {
    return search_alike(flags, how, resolve_setup(flags, nullptr, Notes::silent)).best;
  } catch (const InputError&) {  // a number of GPUs that the other flags do not allow
    return std::nullopt;
  }
}

// Can the target say it, by the question's flags? The model is of any sequence.
bool sayable(const ShardingPlan& plan, const SearchHow& how, const Flags& flags, const Setup& setup) {
  try {
    if (const auto rule = rule_of(how, flags, setup.model)) rule(plan);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// The best plan, or the one that needs least, without the flags that leave the search less than all plans; or, where it
// is the host's memory that is short, without those that send something there.
std::optional<FlagRemedy> search_freely(const Flags& flags, const SearchHow& how, const Setup& setup,
                                        bool host_is_short, const std::function<void(const std::string&)>& told) {
  using Narrowing = std::pair<const char*, Text Flags::*>;
  static constexpr Narrowing kNarrowing[] = {{"--wrap", &Flags::wrap},
                                             {"--reshard-after-forward", &Flags::reshard},
                                             {"--activation-checkpointing", &Flags::checkpointing},
                                             {"--micro-batch", &Flags::micro_batch},
                                             {"--replicate", &Flags::replicate}};
  static constexpr Narrowing kOffloading[] = {{"--offload", &Flags::offload},
                                              {"--offload-optimizer", &Flags::offload_optimizer}};
  Flags free = flags;
  std::string names;
  for (const auto& [name, value] : host_is_short ? std::span<const Narrowing>(kOffloading) : kNarrowing) {
    if (!(free.*value)) continue;
    (free.*value).reset();
    names += std::string(" ") + name;
  }
  if (free.dialect == "ddp" && !host_is_short) free.dialect.reset(), names += " --dialect ddp";
  if (names.empty()) return std::nullopt;
  told("without" + names);
  try {
    const PlanResult result = search_alike(free, how, setup);
    const auto& best = result.best ? result.best : result.least;
    if (!best) return std::nullopt;
    return FlagRemedy{"without" + names + " (" + best->label + ")", best->score};
  } catch (const InputError&) {  // no plan at all
    return std::nullopt;
  }
}

}  // namespace

std::vector<FlagRemedy> try_remedies(const Flags& flags, const SearchHow& how, const Setup& setup,
                                     const Candidate& plan, const std::function<void(const std::string&)>& told,
                                     bool sizes) {
  const bool tight = plan.score.verdict == Verdict::tight, host_is_short = does_not_fit_host(plan.score, setup);
  const bool only_what_fits = tight || host_is_short;  // less memory of the GPU is no help by itself
  std::vector<FlagRemedy> found;
  if (!tight)
    if (auto free = search_freely(flags, how, setup, host_is_short, told);
        free && (host_is_short ? free->score.verdict == Verdict::fits : helps(free->score, plan.score)))
      found.push_back(std::move(*free));
  RemedyOptions options;
  options.shorter = sizes;
  if (!setup.cluster.host) {  // CPU ranks share one memory, and nothing is compiled for them
    options.compile = !setup.implementation->compiled && !flags.no_compile;
    options.offload = !plan.plan.offload;
    options.offload_optimizer = !plan.plan.offload_optimizer && (!plan.plan.offload || host_is_short);
    options.chunks = plan.plan.loss_chunks == 1 && setup.model.trace.empty() && !plan.plan.loop.loss_in_model;
    options.optimizer = plan.plan.optimizer.kind == OptimizerKind::adamw;
    // Frozen weights are computed with in bf16 either way. Where nothing knows adapters of
    // another type, they, which are few, are trained in it then.
    options.master_dtype = flags.lora && plan.plan.param_dtype == DType::bf16 && plan.plan.master_dtype == DType::f32;
    if (setup.implementation->peft_casts) options.trained_dtype = DType::f32;
    // A global batch would have to be divided anew.
    options.more_gpus = sizes && !flags.global_batch && !flags.global_batch_tokens && plan.plan.dialect != Dialect::ddp;
    options.gpus_per_node = setup.cluster.gpus_per_node;
    options.memory_limit = *setup.options.memory_limit;
    options.searched = [&, tight](const Change& change) -> std::optional<Candidate> {
      if (change.loss_chunks || (tight && change.gpus)) return std::nullopt;  // too many searches for a hint
      auto other = searched(with(change, tight ? near(flags, plan.plan, setup.model) : flags), how);
      return other && sayable(other->plan, how, flags, setup) ? other : std::nullopt;
    };
  }
  options.told = [&](const Change& change) { told(words(change, flags, plan.plan)); };
  Flags of_plan = flags;
  if (plan.plan.tensor() > 1) of_plan.tensor = std::to_string(plan.plan.tensor());
  for (const Remedy& remedy : find_remedies(plan, options, changing(of_plan, how)))
    if (!only_what_fits || remedy.score.verdict == Verdict::fits)
      found.push_back({words(remedy.change, flags, plan.plan), remedy.score, remedy.another_plan});
  return found;
}

std::vector<FlagRemedy> remedies_of(const Flags& flags, const SearchHow& how, const Setup& setup,
                                    const SizesResult& sizes, const std::function<void(const std::string&)>& told) {
  std::vector<FlagRemedy> found = try_remedies(flags, how, setup, *sizes.chosen().result->least, told);
  const SizeSearched& whole = sizes.sizes.front();
  if (whole.tensor > 1 || &whole == &sizes.chosen() || !whole.result || !whole.result->least) return found;
  for (FlagRemedy& r : try_remedies(flags, how, setup, *whole.result->least, told, /*sizes=*/false)) {
    if (r.score.verdict != Verdict::fits) continue;
    const auto same =
        std::find_if(found.begin(), found.end(), [&](const FlagRemedy& known) { return known.change == r.change; });
    if (same != found.end() && same->score.verdict == Verdict::fits) continue;
    if (same != found.end()) found.erase(same);
    if (r.another_plan.empty()) r.another_plan = whole.result->least->label;
    found.push_back(std::move(r));
  }
  return found;
}

std::function<void(const std::string&)> trials_said(Progress& progress) {
  return [&progress](const std::string& change) { progress.say("plan: tries " + change); };
}

std::string remedies_text(const std::vector<FlagRemedy>& remedies, const Setup& setup) {
  const Bytes limit = *setup.options.memory_limit;
  std::string text;
  for (const FlagRemedy& r : remedies) {
    const std::int64_t over = r.score.peak_total.count() - limit.count();
    const bool host = does_not_fit_host(r.score, setup);
    const std::string rest =
        over > 0 ? fmt::format("{}, {} too much", name(r.score.verdict), human(Bytes(over)))
        : host   ? fmt::format("does not fit, with {} of host memory for each GPU", human(r.score.pinned))
                 : std::string(name(r.score.verdict));
    const std::string pinned = r.score.pinned > Bytes(0) && !setup.cluster.host_memory
                                   ? fmt::format(", if the machine has {} for each GPU", human(r.score.pinned))
                                   : "";
    const std::string other = r.another_plan.empty() ? "" : " (" + r.another_plan + ")";
    text += fmt::format("  {}{}: peak {}, step {}: {}{}\n", r.change, other, human(r.score.peak_total),
                        human(r.score.step), rest, pinned);
  }
  return text;
}

nlohmann::ordered_json remedies_json(const std::vector<FlagRemedy>& remedies) {
  auto list = nlohmann::ordered_json::array();
  for (const FlagRemedy& r : remedies)
    list.push_back({{"change", r.change},
                    {"verdict", std::string(name(r.score.verdict))},
                    {"step_time_s", r.score.step.count()},
                    {"peak_total_bytes", r.score.peak_total.count()},
                    {"pinned_host_bytes", r.score.pinned.count()}});
  return list;
}

}  // namespace fsdp::cli
