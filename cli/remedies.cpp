#include "cli/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/predict.h"
#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "planner/search/scorer.h"

namespace fsdp::cli {
namespace {

constexpr int kMostDoublings = 4;  // of GPUs: to 16 times as many
constexpr int kMostHalvings = 5;   // of sequences: to a 32nd
constexpr std::int64_t kShortest = 512;
constexpr std::int64_t kLossChunks = 8;
constexpr double kLessMemory = 0.99;

// One way in which the command line could be changed: the flags, and what happens to the plan itself.
struct Trial {
  std::string change;
  Flags flags;
  std::function<void(ShardingPlan&, const Setup&)> adapt;
};

// As a search does: many equal micro-batches are simulated as a few.
Score score_shortened(const ShardingPlan& plan, const Setup& setup) {
  const ScoreFunction score = [&](const ShardingPlan& p) { return score_plan(p, setup); };
  const SearchOptions options;
  Judged judged{{}, Bytes(0), std::nullopt};
  judged.option.plan = plan;
  judged.option.batch = {plan.micro_batches.front(), static_cast<std::int64_t>(plan.micro_batches.size())};
  Scorer(options, score, 0).score(judged);
  return *judged.score;
}

// Empty: not possible together with the other flags.
std::optional<Score> tried(const Trial& trial, const ShardingPlan& plan) {
  try {
    const Setup setup = resolve_setup(trial.flags);
    ShardingPlan changed = plan;
    trial.adapt(changed, setup);
    check(changed, setup.model);
    return score_shortened(changed, setup);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

void unchanged(ShardingPlan&, const Setup&) {}

void on_more_ranks(ShardingPlan& plan, const Setup& setup) {
  const std::int64_t times = setup.cluster.gpus / plan.ranks();
  plan.mesh = {{"replicate", plan.replicate()}, {"shard", plan.shard() * times}};
  plan.shard_dims = expert_shard_dims(setup.model, plan.dialect, plan.shard());
}

void shorter(ShardingPlan& plan, const Setup& setup) {
  plan.seq_len = setup.seq_len;
  plan.model_digest = setup.model.digest();
}

class Remedies {
 public:
  Remedies(const Flags& flags, const Setup& setup, const Candidate& plan,
           const std::function<void(const std::string&)>& told)
      : flags_(flags), setup_(setup), plan_(plan), told_(told) {}

  std::optional<Score> score(const Trial& trial) const {
    told_(trial.change);
    return tried(trial, plan_.plan);
  }
  // Does it make the plan fit?
  bool add(const std::string& change, const std::optional<Score>& score) {
    if (!score) return false;
    const bool fits = score->verdict == Verdict::fits;
    const double before = static_cast<double>(plan_.score.peak_total.count());
    if (fits || static_cast<double>(score->peak_total.count()) < kLessMemory * before)
      found_.push_back({change, *score});
    return fits;
  }
  // The first of `trials` that fits, else the last that is possible.
  bool add_first(const std::vector<Trial>& trials) {
    std::string change;
    std::optional<Score> last;
    for (const Trial& trial : trials) {
      const std::optional<Score> now = score(trial);
      if (!now) break;
      change = trial.change, last = now;
      if (now->verdict == Verdict::fits) break;
    }
    return add(change, last);
  }

  Trial compiled() const {
    Trial t{"--compile", flags_, unchanged};
    t.flags.compile = true;
    return t;
  }
  Trial offloaded(Trial t) const {
    t.change += t.change.empty() ? "--offload true" : " --offload true";
    t.adapt = [](ShardingPlan& plan, const Setup&) { plan.offload = true; };
    return t;
  }
  // In plan.json only: there is no flag for it.
  Trial in_chunks(Trial t) const {
    t.change += fmt::format("{}\"loss_chunks\": {} in plan.json", t.change.empty() ? "" : " with ", kLossChunks);
    t.adapt = [before = t.adapt](ShardingPlan& plan, const Setup& setup) {
      before(plan, setup);
      plan.loss_chunks = kLossChunks;
    };
    return t;
  }
  // Each alone; and, as long as nothing fits, together.
  void try_compile_offload_and_chunks() {
    const bool compile = !setup_.implementation->compiled, offload = !plan_.plan.offload;
    const bool chunks = plan_.plan.loss_chunks == 1;
    const auto fits = [&](const Trial& trial) { return add(trial.change, score(trial)); };
    const Trial none{"", flags_, unchanged};
    bool any = compile && fits(compiled());
    any |= offload && fits(offloaded(none));
    any |= chunks && fits(in_chunks(none));
    any = any || (compile && offload && fits(offloaded(compiled())));
    if (!any && compile && offload && chunks) fits(in_chunks(offloaded(compiled())));
  }
  void try_shorter() {
    std::vector<Trial> trials;
    std::int64_t tokens = setup_.seq_len / 2;
    for (int i = 0; i < kMostHalvings && tokens >= kShortest; ++i, tokens /= 2) {
      trials.push_back({fmt::format("--seq-len {}", tokens), flags_, shorter});
      trials.back().flags.seq_len = std::to_string(tokens);
    }
    add_first(trials);
  }
  void try_more_gpus() {
    if (flags_.global_batch) return;  // it would have to be divided anew
    std::vector<Trial> trials;
    std::int64_t gpus = setup_.cluster.gpus;
    for (int i = 0; i < kMostDoublings; ++i) {
      trials.push_back({fmt::format("--gpus {}", gpus *= 2), flags_, on_more_ranks});
      trials.back().flags.gpus = std::to_string(gpus);
    }
    add_first(trials);
  }
  // Flags that leave the search less than all plans.
  void try_free_search() {
    constexpr std::pair<const char*, Text Flags::*> kNarrowing[] = {
        {"--wrap", &Flags::wrap},
        {"--reshard-after-forward", &Flags::reshard},
        {"--activation-checkpointing", &Flags::checkpointing},
        {"--micro-batch", &Flags::micro_batch},
        {"--replicate", &Flags::replicate}};
    Flags free = flags_;
    std::string names;
    for (const auto& [name, value] : kNarrowing) {
      if (!(free.*value)) continue;
      (free.*value).reset();
      names += std::string(" ") + name;
    }
    if (free.dialect == "ddp") free.dialect.reset(), names += " --dialect ddp";
    if (names.empty()) return;
    told_("without" + names);
    try {
      const PlanResult result =
          search(setup_.model, setup_.cluster, *setup_.implementation, search_from_flags(free, setup_),
                 [&](const ShardingPlan& plan) { return score_plan(plan, setup_); });
      if (const auto& best = result.best ? result.best : result.least)
        add("without" + names + " (" + best->label + ")", best->score);
    } catch (const InputError&) {  // no plan at all
    }
  }

  std::vector<Remedy> found() && { return std::move(found_); }

 private:
  const Flags& flags_;
  const Setup& setup_;
  const Candidate& plan_;
  const std::function<void(const std::string&)>& told_;
  std::vector<Remedy> found_;
};

}  // namespace

std::vector<Remedy> try_remedies(const Flags& flags, const Setup& setup, const Candidate& plan,
                                 const std::function<void(const std::string&)>& told) {
  Remedies remedies(flags, setup, plan, told);
  remedies.try_free_search();
  if (!setup.cluster.host) {  // CPU ranks share one memory, and nothing is compiled for them
    remedies.try_compile_offload_and_chunks();
    remedies.try_more_gpus();
  }
  remedies.try_shorter();
  return std::move(remedies).found();
}

std::vector<Remedy> try_compiling(const Flags& flags, const Setup& setup, const Candidate& plan) {
  if (setup.cluster.host || setup.implementation->compiled) return {};
  Flags compiled = flags;
  compiled.compile = true;
  const auto score = tried({"--compile", compiled, unchanged}, plan.plan);
  if (!score || score->verdict != Verdict::fits) return {};
  return {{"--compile", *score}};
}

std::string remedies_text(const std::vector<Remedy>& remedies, Bytes limit) {
  std::string text;
  for (const Remedy& r : remedies) {
    const std::int64_t over = r.score.peak_total.count() - limit.count();
    const std::string rest = over > 0 ? fmt::format("{}, {} too much", name(r.score.verdict), human(Bytes(over)))
                                      : std::string(name(r.score.verdict));
    const std::string pinned =
        r.score.pinned > Bytes(0) ? fmt::format(", if the machine has {} for each GPU", human(r.score.pinned)) : "";
    text += fmt::format("  {}: peak {}, step {}: {}{}\n", r.change, human(r.score.peak_total), human(r.score.step),
                        rest, pinned);
  }
  return text;
}

}  // namespace fsdp::cli
