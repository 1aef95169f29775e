#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/named_cluster.h"
#include "planner/costs/fitted.h"
#include "planner/search/plan_choices.h"

namespace fsdp::cli {
namespace {

enum class KeptBy : std::uint8_t { plan_file, command_line };  // once a plan is written

struct FlagRow {
  const char* name;
  Text Flags::*value;
  const char* help;
  KeptBy kept = KeptBy::plan_file;
};

constexpr FlagRow kSetup[] = {
    {"--model", &Flags::model, "catalog name (llama3-8b), config.json, or a folder that holds one",
     KeptBy::command_line},
    {"--cluster", &Flags::cluster, "catalog name (dgx-h100, host) or a cluster file", KeptBy::command_line},
    {"--gpus", &Flags::gpus, "GPUs in all; default: one node", KeptBy::plan_file},
    {"--costs", &Flags::costs, "costs.json of `calibrate`; default: datasheet and measured ceilings",
     KeptBy::command_line},
    {"--implementation", &Flags::implementation,
     "torchtitan (default), torchtitan-2025, torchtitan-2024, torchtitan-2024-07, hf, foundry, ... or native (default "
     "on --cluster host)",
     KeptBy::command_line},
    {"--memory-limit", &Flags::memory_limit, "per GPU, such as 76GiB; default: usable memory less 5%",
     KeptBy::command_line},
};
constexpr FlagRow kPlan[] = {
    {"--seq-len", &Flags::seq_len, "tokens per sequence; default: what the model allows"},
    {"--micro-batch", &Flags::micro_batch, "sequences per GPU and micro-batch"},
    {"--grad-accum", &Flags::grad_accum, "micro-batches per step"},
    {"--global-batch", &Flags::global_batch,
     "sequences per step over all GPUs; any two of these three decide the third"},
    {"--dialect", &Flags::dialect, "order of work: fsdp2 (default; fsdp2@2.11 as that PyTorch does), fsdp1, ddp"},
    {"--wrap", &Flags::wrap,
     "units: block | block:2 | class:NAME[=RESHARD][,NAME] | params:1e8[;leaf=NAME][;exclude=NAME] | root | titan; "
     "P|Q: what either wants"},
    {"--reshard-after-forward", &Flags::reshard,
     "auto (what the wrap policy says) | true | false | ranks that keep a unit together, for every unit"},
    {"--replicate", &Flags::replicate, "replicas of the sharded model (hybrid sharding)"},
    {"--grad-sync", &Flags::grad_sync, "every | last | reduce-scatter-only, over micro-batches"},
    {"--forward-prefetch", &Flags::forward_prefetch, "units gathered ahead in forward, explicitly"},
    {"--backward-prefetch", &Flags::backward_prefetch,
     "units gathered ahead in backward: N | pre | none; fsdp1 also post"},
    {"--limit-all-gathers", &Flags::limit_all_gathers, "fsdp1's rate limiter: true (default) | false"},
    {"--use-orig-params", &Flags::use_orig_params, "fsdp1: true (default; parameters aligned in the flat one) | false"},
    {"--activation-checkpointing", &Flags::checkpointing, "none | full | selective-op | every-N | first-N"},
    {"--offload", &Flags::offload, "true: shards, sharded gradients and optimizer states live in host memory"},
    {"--param-dtype", &Flags::param_dtype, "compute and all-gather: bf16 (default), fp32 (default on host), fp64"},
    {"--reduce-dtype", &Flags::reduce_dtype, "reduce-scatter: fp32 (default), bf16"},
    {"--optimizer", &Flags::optimizer, "adamw (default) | sgd"},
    {"--clip-norm", &Flags::clip_norm, "clip gradients to this 2-norm"},
    {"--seed", &Flags::seed, "initial weights and synthetic data"},
};

void add_rows(const Command& command, Flags& flags, const FlagRow* begin, const FlagRow* end) {
  for (const FlagRow* row = begin; row != end; ++row) command.option(row->name, flags.*(row->value), row->help);
}

std::int64_t sequence_length(const Flags& flags, const ModelGraph& model) {
  if (flags.seq_len) return parse_count(*flags.seq_len, kSeqLen);
  if (model.max_seq_len) return *model.max_seq_len;
  throw InputError("--seq-len", "is missing and " + model.name + " does not state one",
                   "give the tokens per sequence, such as --seq-len 4096");
}

Costs costs_of(const Flags& flags, const ClusterSpec& cluster) {
  if (flags.costs) {
    const auto read = parse_any_costs(read_file(*flags.costs), *flags.costs);
    if (const auto* fitted = std::get_if<FittedCosts>(&read); fitted && !cluster.host)
      return costs_for(*fitted, cluster);
    if (std::holds_alternative<FittedCosts>(read))
      throw InputError(*flags.costs, "holds constants fitted to GPUs, but the cluster is " + cluster.name,
                       "give the costs that `fsdp-plan calibrate --backend host` measured");
    Costs costs = std::get<Costs>(read);
    if (cluster.host != (costs.platform == "host")) {
      throw InputError(*flags.costs, "holds costs of '" + costs.platform + "', but the cluster is " + cluster.name,
                       "give the costs that were calibrated for it");
    }
    return costs;
  }
  if (cluster.host) {
    throw InputError("--costs", "is missing; the cluster 'host' has no datasheet",
                     "make them with `fsdp-plan calibrate --backend host -o costs.json` and give --costs costs.json");
  }
  return default_costs(cluster);
}

int backward_prefetch_of(const std::string& text, Dialect dialect) {
  if (text == "pre" || (text == "post" && dialect == Dialect::fsdp1)) return 1;
  if (text == "none") return 0;
  if (text == "post")
    throw InputError("--backward-prefetch", "'post' exists in the fsdp1 dialect only",
                     "give a number of units, pre or none");
  return static_cast<int>(parse_count(text, kBackwardPrefetch));
}

bool parse_switch(const std::string& text, const char* flag) {
  if (text != "true" && text != "false")
    throw InputError(flag, "'" + text + "' is neither true nor false", "give one of them");
  return text == "true";
}

double clip_of(const std::string& text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value <= 0) {
    throw InputError("--clip-norm", "'" + text + "' is not a positive number", "give the largest 2-norm, such as 1.0");
  }
  return value;
}

// "fsdp2@2.11": the dialect, and the release of PyTorch that it follows.
void parse_dialect_of(const std::string& text, PlanChoices& c) {
  const std::size_t at = text.find('@');
  c.dialect = parse_dialect(std::string_view(text).substr(0, at), "--dialect");
  if (at != std::string::npos) c.torch = parse_torch_version(std::string_view(text).substr(at + 1), "--dialect");
}

template <class T, class Parse>
std::optional<T> parsed(const Text& text, const Parse& parse) {
  if (!text) return std::nullopt;
  return static_cast<T>(parse(*text));
}

// The flags of add_plan_flags as values; `ranks` bounds the global batch.
PlanChoices choices_of(const Flags& f, std::int64_t ranks) {
  PlanChoices c;
  c.micro_batch = parse_optional_count(f.micro_batch, kMicroBatch);
  c.grad_accum = parse_optional_count(f.grad_accum, kGradAccum);
  c.global_batch =
      parse_optional_count(f.global_batch, {"global_batch", 1, ranks * kMicroBatch.most * kGradAccum.most});
  if (f.dialect) parse_dialect_of(*f.dialect, c);
  c.wrap = f.wrap;
  c.checkpointing = f.checkpointing;
  c.reshard = parsed<Reshard>(f.reshard, [](auto& t) { return parse_reshard(t, "--reshard-after-forward"); });
  c.replicate = parse_optional_count(f.replicate, kReplicate);
  c.grad_sync = parsed<GradSync>(f.grad_sync, [](auto& t) { return parse_grad_sync(t, "--grad-sync"); });
  c.forward_prefetch = parsed<int>(f.forward_prefetch, [](auto& t) { return parse_count(t, kForwardPrefetch); });
  c.backward_prefetch = parsed<int>(f.backward_prefetch, [&](auto& t) { return backward_prefetch_of(t, c.dialect); });
  c.backward_post = f.backward_prefetch == "post";
  c.offload = parsed<bool>(f.offload, [](auto& t) { return parse_switch(t, "--offload"); });
  c.limit_all_gathers =
      parsed<bool>(f.limit_all_gathers, [](auto& t) { return parse_switch(t, "--limit-all-gathers"); });
  c.use_orig_params = parsed<bool>(f.use_orig_params, [](auto& t) { return parse_switch(t, "--use-orig-params"); });
  c.param_dtype = parsed<DType>(f.param_dtype, [](auto& t) { return parse_dtype(t, "--param-dtype"); });
  c.reduce_dtype = parsed<DType>(f.reduce_dtype, [](auto& t) { return parse_dtype(t, "--reduce-dtype"); });
  c.optimizer = parsed<OptimizerKind>(f.optimizer, [](auto& t) { return parse_optimizer(t, "--optimizer"); });
  c.clip_norm = parsed<double>(f.clip_norm, clip_of);
  c.seed = parsed<std::uint64_t>(f.seed, [](auto& t) { return parse_count(t, "--seed", 0, INT64_MAX); });
  return c;
}

PlanTarget target_of(const Setup& setup) { return {setup.cluster.gpus, setup.seq_len, setup.cluster.host}; }

}  // namespace

void add_setup_flags(const Command& command, Flags& flags) {
  add_rows(command, flags, std::begin(kSetup), std::end(kSetup));
  command.flag("--compile", flags.compile, "the implementation's compiled variant");
}

void add_plan_flags(const Command& command, Flags& flags) {
  add_rows(command, flags, std::begin(kPlan), std::end(kPlan));
}

std::string flags_beside_the_plan(const Flags& flags) {
  std::string text;
  for (const FlagRow& row : kSetup)
    if (const Text& value = flags.*(row.value); value && row.kept == KeptBy::command_line)
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", row.name, shell_word(*value));
  return text + (flags.compile ? " --compile" : "");
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::int64_t parse_count(const std::string& text, const std::string& where, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw InputError(where,
                     "'" + text + "' is not a whole number from " + with_commas(least) + " to " + with_commas(most),
                     "give one, in digits");
  }
  return value;
}

std::optional<std::int64_t> parse_optional_count(const Text& text, const char* flag, std::int64_t least,
                                                 std::int64_t most) {
  if (!text) return std::nullopt;
  return parse_count(*text, flag, least, most);
}

std::int64_t parse_count(const std::string& text, const Limit& limit) {
  return parse_count(text, std::string(flag_of(limit.field)), limit.least, limit.most);
}

std::optional<std::int64_t> parse_optional_count(const Text& text, const Limit& limit) {
  if (!text) return std::nullopt;
  return parse_count(*text, limit);
}

double parse_percent(const std::string& text, const std::string& where) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool ends_in_percent = problem == std::errc() && end + 1 == text.data() + text.size() && *end == '%';
  if (!ends_in_percent || !std::isfinite(value) || value < 0 || value > 1000) {
    throw InputError(where, "'" + text + "' is not a percentage from 0% to 1000%",
                     "write it with its sign, such as 5%");
  }
  return value / 100;
}

Setup resolve_setup(const Flags& flags, const ShardingPlan* plan) {
  if (!flags.model)
    throw InputError("--model", "is missing", "give a catalog name (see `fsdp-plan show model`) or a config.json");
  if (!flags.cluster)
    throw InputError("--cluster", "is missing", "give a catalog name (see `fsdp-plan show cluster`) or a cluster file");
  const auto gpus = parse_optional_count(flags.gpus, kGpus);
  if (plan != nullptr && gpus && *gpus != plan->ranks()) {
    throw InputError("--gpus", fmt::format("is {}, but the plan is for {} GPUs", *gpus, plan->ranks()), "leave it out");
  }
  const std::int64_t asked = plan != nullptr ? plan->seq_len : flags.seq_len ? parse_count(*flags.seq_len, kSeqLen) : 0;
  Setup setup;
  setup.model = load_model(*flags.model, asked);
  setup.cluster = named_cluster(*flags.cluster, plan != nullptr ? plan->ranks() : gpus.value_or(0));
  setup.seq_len = plan != nullptr ? plan->seq_len : sequence_length(flags, setup.model);
  setup.implementation = &find_implementation(
      flags.implementation.value_or(setup.cluster.host ? "native" : "torchtitan"), flags.compile, "--implementation");
  setup.costs = costs_of(flags, setup.cluster);
  setup.options.memory_limit =
      flags.memory_limit ? parse_bytes(*flags.memory_limit, "--memory-limit") : default_memory_limit(setup.cluster);
  if (setup.options.memory_limit->count() == 0 && flags.memory_limit)
    throw InputError("--memory-limit", "is zero", "give the bytes that a GPU may use, such as 76GiB");
  if (*setup.options.memory_limit > setup.cluster.gpu.memory)
    throw InputError("--memory-limit",
                     fmt::format("{} is more than the {} that a GPU of {} has", human(*setup.options.memory_limit),
                                 human(setup.cluster.gpu.memory), setup.cluster.name),
                     "give less, or describe another GPU in a cluster file");
  return setup;
}

ShardingPlan plan_from_file(const Flags& flags) {
  for (const FlagRow& row : kPlan) {
    if (flags.*(row.value))
      throw InputError(row.name, "contradicts --plan, which decides it already", "leave out one of the two");
  }
  ShardingPlan plan = parse_plan(read_file(*flags.plan), *flags.plan);
  check(plan, *flags.plan);
  return plan;
}

ShardingPlan plan_from_flags(const Flags& flags, const Setup& setup) {
  try {
    return plan_of(choices_of(flags, setup.cluster.gpus), setup.model, target_of(setup));
  } catch (const InputError& e) {
    throw naming_plan_flags(e);
  }
}

SearchOptions search_from_flags(const Flags& flags, const Setup& setup) {
  SearchOptions options = search_of(choices_of(flags, setup.cluster.gpus), setup.model, target_of(setup));
  options.selective_op = setup.implementation->keeps_selectively != nullptr;
  options.memory_limit = *setup.options.memory_limit;
  return options;
}

}  // namespace fsdp::cli
