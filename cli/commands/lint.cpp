// fsdp-plan lint: which plan a framework's configuration is, what it takes, and what a better one would save.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/predict.h"
#include "cli/questions/search_how.h"
#include "cli/report/report.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/lint/read_config.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWorthSaying = 0.005;  // of the step

struct LintFlags {
  Flags shared;
  std::string config;
  Text output;
  bool json = false;
};

// The flag of each setting that a configuration may hold. `kept`: a better plan has it too, since it decides what is
// computed, or with which ranks.
struct SettingFlag {
  const char* setting;
  const char* flag;
  Text Flags::*value;
  bool kept;
};
constexpr std::array<SettingFlag, 26> kSettings = {{
    {"dialect", "--dialect", &Flags::dialect, true},
    {"gpus", "--gpus", &Flags::gpus, true},
    {"seq_len", "--seq-len", &Flags::seq_len, true},
    {"param_dtype", "--param-dtype", &Flags::param_dtype, true},
    {"reduce_dtype", "--reduce-dtype", &Flags::reduce_dtype, true},
    {"master_dtype", "--master-dtype", &Flags::master_dtype, true},
    {"clip_norm", "--clip-norm", &Flags::clip_norm, true},
    {"use_orig_params", "--use-orig-params", &Flags::use_orig_params, true},
    {"tensor", "--tensor", &Flags::tensor, true},
    {"float8", "--float8", &Flags::float8, true},
    {"float8_all_gather", "--float8-all-gather", &Flags::float8_all_gather, true},
    {"float8_precomputed_scales", "--float8-precomputed-scales", &Flags::float8_precomputed_scales, true},
    {"loss_in_model", "--loss-in-model", &Flags::loss_in_model, true},
    {"lr", "--lr", &Flags::lr, true},
    {"weight_decay", "--weight-decay", &Flags::weight_decay, true},
    {"wrap", "--wrap", &Flags::wrap, false},
    {"reshard_after_forward", "--reshard-after-forward", &Flags::reshard, false},
    {"replicate", "--replicate", &Flags::replicate, false},
    {"micro_batch", "--micro-batch", &Flags::micro_batch, false},
    {"grad_accum", "--grad-accum", &Flags::grad_accum, false},
    {"global_batch", "--global-batch", &Flags::global_batch, false},
    {"grad_sync", "--grad-sync", &Flags::grad_sync, false},
    {"forward_prefetch", "--forward-prefetch", &Flags::forward_prefetch, false},
    {"backward_prefetch", "--backward-prefetch", &Flags::backward_prefetch, false},
    {"activation_checkpointing", "--activation-checkpointing", &Flags::checkpointing, false},
    {"offload", "--offload", &Flags::offload, false},
}};

const SettingFlag& flag_of(const ConfigSetting& setting) {
  for (const SettingFlag& s : kSettings)
    if (s.setting == setting.name) return s;
  throw InternalError("no flag is the setting " + setting.name);
}

// How many units the configuration lists: no flag says that.
bool counts_units(const ConfigSetting& setting) { return setting.name == "units"; }

// Where the configuration decides which module is in which unit, and which units reshard, no flag says another.
void refuse_other_units(const ReadConfig& config, const LintFlags& f) {
  for (const SettingFlag& flag : kSettings) {
    const std::string_view name = flag.setting;
    if (name != "wrap" && name != "reshard_after_forward") continue;
    const Text& value = f.shared.*(flag.value);
    if (!value || std::any_of(config.settings.begin(), config.settings.end(),
                              [&](const ConfigSetting& s) { return s.name == name && s.value == *value; }))
      continue;
    throw InputError({flag.flag},
                     fmt::format("contradicts {}: its units, and which reshard, are {}'s", f.config, config.format),
                     "leave it out, or change the configuration");
  }
}

// "8k" and "8192" are one length of sequences, "8" and "08" one count.
bool same_value(const SettingFlag& flag, const std::string& given, const std::string& configured) {
  if (given == configured) return true;
  if (flag.value == &Flags::seq_len) return parse_tokens(given, kSeqLen) == parse_tokens(configured, kSeqLen);
  return same_number(given, configured);
}

// One type for all, where a flag gives one: those that a configuration leaves to the script together. Adapters may be
// in another.
void follow_one_dtype(Flags& flags) {
  if (flags.trained_dtype) return;
  const auto types = {std::pair{&Flags::param_dtype, "--param-dtype"},
                      {&Flags::master_dtype, "--master-dtype"},
                      {&Flags::reduce_dtype, "--reduce-dtype"}};
  Text one;
  for (const auto& [type, name] : types) {
    if (!one) one = flags.*type;
    if (flags.*type && flags.*type != one)
      throw InputError({name},
                       fmt::format("{} contradicts {}: the configuration has one type for all", *(flags.*type), *one),
                       "give the type that the script loads the model in");
  }
  if (one) flags.param_dtype = flags.master_dtype = flags.reduce_dtype = one;
}

// The flags that were given, and those that the configuration stands for. One that both decide is refused, but for what
// the framework does where its configuration says nothing.
Flags flags_of(const ReadConfig& config, const LintFlags& f) {
  Flags flags = f.shared;
  if (config.one_dtype) follow_one_dtype(flags);
  for (const ConfigSetting& s : config.settings) {
    if (counts_units(s)) continue;
    const SettingFlag& flag = flag_of(s);
    Text& value = flags.*(flag.value);
    if (value && s.key.empty()) continue;
    if (value && !same_value(flag, *value, s.value))
      throw InputError({flag.flag},
                       fmt::format("{} contradicts {}: {}, which is {}", printable(*value), f.config, s.key, s.value),
                       "leave it out, or change the configuration");
    value = s.value;
  }
  if (config.units) refuse_other_units(config, f);
  if (!flags.implementation && flags.cluster != "host") flags.implementation = config.implementation;
  flags.compile = flags.compile || config.compile;
  flags.async_tensor = flags.async_tensor || config.async_tensor;
  return flags;
}

struct Better {
  ShardingPlan plan;
  Score score;
  std::string label, command;
};

// The best plan that computes the same on the same ranks, in as many sequences a step.
std::optional<Better> better_than(const ShardingPlan& plan, const Flags& given, const Setup& setup) {
  Flags flags = given;
  for (const SettingFlag& s : kSettings)
    if (!s.kept) flags.*(s.value) = std::nullopt;
  // What no search decides, and the batch, which stands in sequences below.
  flags.expert_shard = flags.chunk_head = flags.offload_activations = flags.global_batch_tokens = std::nullopt;
  flags.global_batch = std::to_string(plan.tokens_per_step() / plan.seq_len);
  flags.tensor = std::to_string(plan.tensor());
  const SearchOptions options = options_of(flags, setup, {}, plan.tensor());
  const PlanResult result = search(setup.model, setup.cluster, *setup.implementation, options, scored_by(setup));
  if (!result.best) return std::nullopt;
  return Better{result.best->plan, result.best->score, result.best->label, "fsdp-plan plan " + all_given(flags)};
}

// "saves 123 ms a step (6.1 %)"; "fits, where this is tight, and takes 12.0 ms longer"; empty where it is no better.
std::string saving(const Prediction& p, const Better& better) {
  const double seconds = p.step_time.count() - better.score.step.count();
  if (p.verdict != Verdict::fits && better.score.verdict == Verdict::fits)
    return fmt::format("fits, where this {}{}", p.verdict == Verdict::tight ? "is tight" : "does not fit",
                       seconds < 0 ? fmt::format(", and takes {} a step longer", human(Seconds(-seconds)))
                                   : fmt::format(", and saves {} a step", human(Seconds(seconds))));
  if (seconds < kWorthSaying * p.step_time.count()) return {};
  return fmt::format("saves {} a step ({:.1f} %)", human(Seconds(seconds)), 100 * seconds / p.step_time.count());
}

std::string lines(const ReadConfig& config) {
  std::vector<std::vector<std::string>> rows;
  for (const ConfigSetting& s : config.settings)
    rows.push_back({counts_units(s) ? "units" : flag_of(s).flag, s.value,
                    s.key.empty() ? "(as " + config.format + " does)" : s.key});
  std::string out = table({"setting", "value", "from"}, rows);
  for (const std::string& note : config.notes) out += "Note: " + note + ".\n";
  for (const std::string& key : config.unread) out += "Not read: " + key + ".\n";
  return out;
}

Json lint_json(const ReadConfig& config, const Prediction& p, const std::optional<Better>& better) {
  Json settings = Json::array();
  for (const ConfigSetting& s : config.settings)
    settings.push_back({{"setting", s.name}, {"value", s.value}, {"key", s.key}});
  const auto answer = [](Seconds step, Bytes peak, Verdict verdict) {
    return Json{
        {"step_time_s", step.count()}, {"peak_total_bytes", peak.count()}, {"verdict", std::string(name(verdict))}};
  };
  Json out = {{"schema", "fsdp-plan/lint/1"},
              {"format", config.format},
              {"settings", settings},
              {"notes", config.notes},
              {"not_read", config.unread},
              {"configuration", answer(p.step_time, p.peak_total, p.verdict)},
              {"plan_digest", p.provenance.plan_digest}};
  if (better) {
    out["better"] = answer(better->score.step, better->score.peak_total, better->score.verdict);
    out["better"]["label"] = better->label;
    out["better"]["command"] = better->command;
    out["better"]["saves"] = saving(p, *better);
  }
  return out;
}

// What is wrong with a value that the configuration holds is said of its key, not of the flag that it stands for.
InputError naming_keys(const InputError& error, const ReadConfig& config, const LintFlags& f) {
  const std::string named = naming_flags(error).file();
  for (const ConfigSetting& s : config.settings)
    if (!s.key.empty() && !counts_units(s) && named == flag_of(s).flag) return error.at(Origin(f.config, s.key));
  return error;
}

int answer(const ReadConfig& config, Flags flags, const LintFlags& f) {
  if (config.units) flags.wrap = "root";  // and then those
  const Setup setup = resolve_setup(flags);
  ShardingPlan plan = plan_from_flags(flags, setup);
  if (config.units) {
    plan.units = *config.units;
    plan.wrap = "";
  }
  plan.tensor_plan.loss_parallel = config.loss_parallel;
  Programs programs = programs_of(plan, setup);
  const Prediction prediction = priced(predict(programs, setup.costs, setup.options), setup);
  const std::optional<Better> better = better_than(plan, flags, setup);
  if (f.output) write_file(*f.output, to_json_text(file_of(plan, flags, setup)));
  const int code = prediction.verdict == Verdict::does_not_fit ? kAnswerIsNo : kDone;
  if (f.json) {
    print(stdout, lint_json(config, prediction, better).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return code;
  }
  print(stdout, verdict_line(prediction) + "Plan: " + plan_label(plan, &setup.model) + "\n" +
                    basis(prediction, plan, setup.costs) + config.format + ":\n\n" + lines(config));
  const std::string saves = better ? saving(prediction, *better) : std::string();
  if (saves.empty()) {
    print(stdout, "No plan of the same batch and types that was searched is faster by 0.5 % or more.\n");
  } else {
    print(stdout, fmt::format("A better plan {}: {}: step {}, peak {}, {}.\nnext: `{} -o plan.json`\n", saves,
                              better->label, human(better->score.step), human(better->score.peak_total),
                              name(better->score.verdict), better->command));
  }
  return code;
}

int lint_command(const LintFlags& f) {
  check_output("-o", f.output, {f.config, f.shared.model, f.shared.cluster, f.shared.costs});
  const std::string text = read_file(f.config);
  Flags asked = f.shared;
  if (!asked.gpus) asked.gpus = "1";  // the configuration says how many: the model alone is needed here
  const ReadConfig config = read_config(text, f.config, resolve_setup(asked, nullptr, Notes::silent).model);
  const Flags flags = flags_of(config, f);
  try {
    return answer(config, flags, f);
  } catch (const InputError& e) {
    throw naming_keys(e, config, f);
  }
}

}  // namespace

void add_lint(const Command& app) {
  auto flags = std::make_shared<LintFlags>();
  const Command command =
      app.add("lint", "which plan a framework's configuration is, and what a better one would save");
  command.required("config", flags->config,
                   "of Accelerate, AutoModel (YAML), torchtitan (Python, arguments, TOML), transformers (Python, JSON)",
                   "CONFIG");
  add_setup_flags(command, flags->shared);
  add_plan_flags(command, flags->shared);
  command.option("-o,--output", flags->output, "write the configuration's plan here (JSON)", "FILE");
  command.flag("--json", flags->json, "one JSON object");
  command.examples(
      {"fsdp-plan lint accelerate.yaml --model llama3-8b --cluster dgx-h100 --seq-len 8k --micro-batch 1"});
  command.runs([flags] { return lint_command(*flags); });
}

}  // namespace fsdp::cli
