#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/named.h"
#include "cli/token_batch.h"
#include "models/input/counted.h"
#include "models/input/suggest.h"
#include "planner/search/plan_choices.h"
#include "planner/wrap.h"

namespace fsdp::cli {
namespace {

enum class KeptBy : std::uint8_t { plan_file, command_line };  // once a plan is written

struct FlagRow {
  const char* name;
  Text Flags::*value;
  std::string help;
  ValueText shown;
  const char* group;
  KeptBy kept = KeptBy::plan_file;
};

constexpr Limit kTensor{"tensor", 1, kGpus.most};

constexpr const char* kTarget = "Model and machine";
constexpr const char* kBatch = "Sequences and batch";
constexpr const char* kSharding = "Sharding";
constexpr const char* kOrder = "Order of work";
constexpr const char* kMemory = "Memory";
constexpr const char* kNumerics = "Numbers and optimizer";

std::vector<std::string> switch_words() { return {"true", "false"}; }
std::vector<std::string> reshard_words() { return {"auto", "true", "false"}; }
template <class E, int count>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(name(static_cast<E>(i)));
  return names;
}
std::vector<std::string> prefetch_words() { return {"pre", "none", "post"}; }
FlagRow on_off(const char* name, Text Flags::*value, const char* help, const char* group) {
  return {name, value, help, {"BOOL", switch_words, "true"}, group};
}
std::vector<std::string> dtype_words() {  // int64 is that of ids, fp8 has flags of its own
  std::vector<std::string> names = all_names<DType, kDTypes>();
  std::erase(names, name(DType::i64));
  std::erase(names, name(DType::f8));
  return names;
}

FlagRow of_dtype(const char* name, Text Flags::*value, const char* help) {
  return {name, value, help, {"DTYPE", dtype_words}, kNumerics};
}

const std::vector<FlagRow>& setup_rows() {
  static const std::vector<FlagRow> kRows = {
      {"--model",
       &Flags::model,
       "catalog or hub name (llama3-8b), config.json, a folder that holds one, or generic (with its sizes)",
       {"MODEL", model_names},
       kTarget,
       KeptBy::command_line},
      {"--cluster",
       &Flags::cluster,
       "catalog name (dgx-h100, host) or a cluster file",
       {"CLUSTER", cluster_names},
       kTarget,
       KeptBy::command_line},
      {"--gpus", &Flags::gpus, "GPUs in all; default: one node", "N", kTarget},
      {"--costs", &Flags::costs, "costs.json of `calibrate`; default: datasheet and measured ceilings", "FILE", kTarget,
       KeptBy::command_line},
      {"--implementation",
       &Flags::implementation,
       "torchtitan (default; hf where only that knows the model), torchtitan-2025, torchtitan-2024, "
       "torchtitan-2024-07, hf, foundry, ... or native (default on --cluster host)",
       {"NAME", implementation_names},
       kTarget,
       KeptBy::command_line},
      {"--memory-limit", &Flags::memory_limit,
       "per GPU, such as 76GiB; default: usable memory less --headroom and --reserve", "SIZE", kTarget,
       KeptBy::command_line},
      {"--headroom", &Flags::headroom, "part of a GPU's usable memory that stays free; default: 5%", "PERCENT", kTarget,
       KeptBy::command_line},
      {"--reserve", &Flags::reserve, "memory that others take on every GPU, such as 10GiB; default: none", "SIZE",
       kTarget, KeptBy::command_line},
      {"--price", &Flags::price,
       "of one GPU for one hour, such as 2.1 or 2.1USD: what training costs; of several clusters "
       "dgx-h100=2.1,p4d=1.2; default: the cluster file's",
       "PRICE", kTarget, KeptBy::command_line},
  };
  return kRows;
}

const std::vector<FlagRow>& plan_rows() {
  static const std::vector<FlagRow> kRows = {
      {"--seq-len", &Flags::seq_len,
       "tokens per sequence, such as 8192 or 8k (k is 1,024); default: what the model allows", "TOKENS", kBatch},
      {"--micro-batch", &Flags::micro_batch, "sequences per GPU and micro-batch", "N", kBatch},
      {"--grad-accum", &Flags::grad_accum, "micro-batches per step", "N", kBatch},
      {"--global-batch", &Flags::global_batch,
       "sequences per step over all GPUs; any two of these three decide the third", "N", kBatch},
      {"--global-batch-tokens", &Flags::global_batch_tokens,
       "the same in tokens, such as 4M (M is 1,048,576): a multiple of the sequence", "TOKENS", kBatch},
      {"--dialect",
       &Flags::dialect,
       "order of work: fsdp2 (default; fsdp2@2.11 as that PyTorch does), fsdp1 (fsdp1@1.13), ddp",
       {"DIALECT", all_names<Dialect, kDialects>},
       kSharding},
      {"--wrap",
       &Flags::wrap,
       "units: " + join(wrap_forms(), " | ") + "; P|Q: what either wants",
       {"POLICY", wrap_words},
       kSharding},
      {"--reshard-after-forward",
       &Flags::reshard,
       "auto (what the wrap policy says) | true | false | ranks that keep a unit together, for every unit",
       {"RESHARD", reshard_words},
       kSharding},
      {"--replicate", &Flags::replicate, "replicas of the sharded model (hybrid sharding)", "N", kSharding},
      {"--tensor", &Flags::tensor, "ranks that split each layer (fsdp2); default: 1; `plan` tries others", "N",
       kSharding},
      {"--expert-shard", &Flags::expert_shard,
       "ranks that experts are sharded over, beside the plan's mesh (fsdp2; not in searches)", "N", kSharding},
      {"--grad-sync",
       &Flags::grad_sync,
       "every | last | reduce-scatter-only, over micro-batches",
       {"WHEN", all_names<GradSync, kGradSyncs>},
       kOrder},
      {"--forward-prefetch", &Flags::forward_prefetch, "units gathered ahead in forward, explicitly", "N", kOrder},
      {"--backward-prefetch",
       &Flags::backward_prefetch,
       "units gathered ahead in backward: N | pre | none; fsdp1 also post",
       {"N", prefetch_words},
       kOrder},
      {"--reduce-scatter-buffers", &Flags::reduce_scatter_buffers,
       "fsdp2: inputs of reduce-scatter alive at once before compute waits; default: 1", "N", kOrder},
      on_off("--separate-reduce-scatter", &Flags::separate_reduce_scatter,
             "fsdp2: a communicator of its own for reduce-scatter, beside all-gathers: true | false (default)", kOrder),
      on_off("--limit-all-gathers", &Flags::limit_all_gathers, "fsdp1's rate limiter: true (default) | false", kOrder),
      on_off("--use-orig-params", &Flags::use_orig_params,
             "fsdp1: true (default but for 1.13; parameters aligned in the flat one) | false", kOrder),
      {"--activation-checkpointing",
       &Flags::checkpointing,
       join(checkpointing_forms(), " | "),
       {"POLICY", checkpointing_forms},
       kMemory},
      {"--loss-chunks", &Flags::loss_chunks, "parts in which the loss is computed; default: 1", "N", kMemory},
      on_off("--chunk-head", &Flags::chunk_head,
             "the output layer runs with each part of the loss, by default 8 (fsdp2; not in searches)", kMemory),
      on_off("--loss-in-model", &Flags::loss_in_model,
             "the model is given its targets and returns the loss, as transformers' Trainer has it", kMemory),
      on_off("--offload", &Flags::offload, "shards, their gradients and states live in host memory", kMemory),
      {"--host-threads", &Flags::host_threads,
       "threads of each rank for what is offloaded; default: 1 where a node has several ranks, as torchrun starts them",
       "N", kMemory},
      on_off("--offload-optimizer", &Flags::offload_optimizer,
             "the optimizer's states alone wait in host memory from step to step", kMemory),
      {"--offload-activations", &Flags::offload_activations,
       "inputs of checkpointed modules wait in host memory: all, or so many as this size holds", "all|SIZE", kMemory},
      of_dtype("--param-dtype", &Flags::param_dtype,
               "compute and all-gather: bf16 (default), fp32 (default on host), fp16, fp64"),
      of_dtype("--reduce-dtype", &Flags::reduce_dtype, "reduce-scatter: fp32 (default), bf16, fp16, fp64"),
      of_dtype("--master-dtype", &Flags::master_dtype,
               "shards, their gradients, optimizer states: fp32 (default), bf16 (a model loaded in bf16)"),
      of_dtype(
          "--trained-dtype", &Flags::trained_dtype,
          "the same of what is trained beside frozen weights, if that differs: peft's adapters are fp32 beside bf16"),
      {"--float8",
       &Flags::float8,
       "linear layers in 8 bits: none (default) | tensorwise | rowwise | rowwise_with_gw_hp | mxfp8 (Blackwell), by "
       "torchao (fsdp2) | delayed, by TransformerEngine (foundry)",
       {"RECIPE", all_names<Float8Recipe, kFloat8Recipes>},
       kNumerics},
      on_off("--float8-all-gather", &Flags::float8_all_gather,
             "tensorwise: weights are cast before they are gathered, and gathered in 8 bits", kNumerics),
      on_off("--float8-precomputed-scales", &Flags::float8_precomputed_scales,
             "with --float8-all-gather: the scales of all weights after the optimizer, in one all-reduce", kNumerics),
      {"--optimizer",
       &Flags::optimizer,
       "adamw (default) | sgd | adamw-8bit (torchao's)",
       {"NAME", all_names<OptimizerKind, kOptimizers>},
       kNumerics},
      {"--lr", &Flags::lr, "learning rate; default: 3e-4", "RATE", kNumerics},
      {"--weight-decay", &Flags::weight_decay, "of the optimizer, 0: none; default: 0.1, for sgd too", "NUMBER",
       kNumerics},
      {"--momentum", &Flags::momentum, "sgd's momentum, such as 0.9; 0: none (default)", "NUMBER", kNumerics},
      {"--clip-norm", &Flags::clip_norm, "clip gradients to this 2-norm; none (default)", "NORM", kNumerics},
      {"--seed", &Flags::seed, "initial weights and synthetic data", "N", kNumerics},
  };
  return kRows;
}

void add_rows(const Command& command, Flags& flags, const std::vector<FlagRow>& rows) {
  for (const FlagRow& row : rows) command.group(row.group).option(row.name, flags.*(row.value), row.help, row.shown);
}

std::int64_t sequence_length(const Flags& flags, const ModelGraph& model) {
  if (flags.seq_len) return parse_tokens(*flags.seq_len, kSeqLen);
  if (model.max_seq_len) return *model.max_seq_len;
  throw InputError("--seq-len", "is missing and " + model.name + " does not state one",
                   "give the tokens per sequence, such as --seq-len 4096");
}

int backward_prefetch_of(const std::string& text, Dialect dialect) {
  if (text == "pre" || (text == "post" && dialect == Dialect::fsdp1)) return 1;
  if (text == "none") return 0;
  if (text == "post")
    throw InputError("--backward-prefetch", "'post' exists in the fsdp1 dialect only",
                     "give a number of units, pre or none");
  return static_cast<int>(parse_count(text, kBackwardPrefetch));
}

// "fsdp2@2.11": the dialect, and the release of PyTorch that it follows.
void parse_dialect_of(const std::string& text, PlanChoices& c) {
  const std::size_t at = text.find('@');
  c.dialect = parse_dialect(std::string_view(text).substr(0, at), "--dialect");
  if (at != std::string::npos) c.torch = parse_torch_version(std::string_view(text).substr(at + 1), "--dialect");
}

template <class T, class Parse>
std::optional<T> parsed(const Text& text, const Parse& parse) {
  return text ? std::optional<T>(static_cast<T>(parse(*text))) : std::nullopt;
}

// The flags of add_plan_flags as values; `ranks` bounds the global batch.
PlanChoices choices_of(const Flags& f, std::int64_t ranks, std::int64_t seq_len) {
  PlanChoices c;
  const auto on = [](const char* flag) { return [flag](auto& t) { return parse_switch(t, flag); }; };
  c.micro_batch = parse_optional_count(f.micro_batch, kMicroBatch);
  c.grad_accum = parse_optional_count(f.grad_accum, kGradAccum);
  c.global_batch =
      parse_optional_count(f.global_batch, {"global_batch", 1, ranks * kMicroBatch.most * kGradAccum.most});
  if (f.global_batch_tokens) c.global_batch = sequences_of(f, ranks, seq_len);
  if (f.dialect) parse_dialect_of(*f.dialect, c);
  c.wrap = f.wrap;
  c.checkpointing = f.checkpointing;
  c.reshard = parsed<Reshard>(f.reshard, [](auto& t) { return parse_reshard(t, "--reshard-after-forward"); });
  c.replicate = parse_optional_count(f.replicate, kReplicate);
  c.tensor = parse_optional_count(f.tensor, kTensor);
  c.expert_shard = parse_optional_count(f.expert_shard, "--expert-shard", 1, kGpus.most);
  c.grad_sync = parsed<GradSync>(f.grad_sync, [](auto& t) { return parse_grad_sync(t, "--grad-sync"); });
  c.forward_prefetch = parsed<int>(f.forward_prefetch, [](auto& t) { return parse_count(t, kForwardPrefetch); });
  c.backward_prefetch = parsed<int>(f.backward_prefetch, [&](auto& t) { return backward_prefetch_of(t, c.dialect); });
  c.backward_post = f.backward_prefetch == "post";
  c.offload = parsed<bool>(f.offload, on("--offload"));
  c.offload_optimizer = parsed<bool>(f.offload_optimizer, on("--offload-optimizer"));
  const auto budget = [](auto& t) { return t == "all" ? Bytes(INT64_MAX) : parse_bytes(t, "--offload-activations"); };
  c.offload_activations = parsed<Bytes>(f.offload_activations, budget);
  c.loss_chunks = parse_optional_count(f.loss_chunks, kLossChunks);
  c.chunk_head = parsed<bool>(f.chunk_head, on("--chunk-head"));
  c.loss_in_model = parsed<bool>(f.loss_in_model, on("--loss-in-model"));
  c.host_threads = parse_optional_count(f.host_threads, kHostThreads);
  c.reduce_scatter_buffers = parse_optional_count(f.reduce_scatter_buffers, "--reduce-scatter-buffers", 1, 1024);
  c.separate_reduce_scatter = parsed<bool>(f.separate_reduce_scatter, on("--separate-reduce-scatter"));
  c.limit_all_gathers = parsed<bool>(f.limit_all_gathers, on("--limit-all-gathers"));
  c.use_orig_params = parsed<bool>(f.use_orig_params, on("--use-orig-params"));
  const auto number_type = [](const char* flag) { return [flag](auto& t) { return parse_number_type(t, flag); }; };
  c.param_dtype = parsed<DType>(f.param_dtype, number_type("--param-dtype"));
  c.reduce_dtype = parsed<DType>(f.reduce_dtype, number_type("--reduce-dtype"));
  c.master_dtype = parsed<DType>(f.master_dtype, number_type("--master-dtype"));
  c.trained_dtype = parsed<DType>(f.trained_dtype, number_type("--trained-dtype"));
  c.float8 = parsed<Float8Recipe>(f.float8, [](auto& t) { return parse_float8_recipe(t, "--float8"); });
  c.float8_all_gather = parsed<bool>(f.float8_all_gather, on("--float8-all-gather"));
  c.float8_precomputed_scales = parsed<bool>(f.float8_precomputed_scales, on("--float8-precomputed-scales"));
  c.optimizer = parsed<OptimizerKind>(f.optimizer, [](auto& t) { return parse_optimizer(t, "--optimizer"); });
  if (f.lr) c.lr = parse_coefficient(*f.lr, "--lr", false);
  if (f.weight_decay) c.weight_decay = parse_coefficient(*f.weight_decay, "--weight-decay", true);
  if (f.momentum) c.momentum = parse_factor(*f.momentum, "--momentum", "give a number in [0, 1), such as 0.9");
  if (f.clip_norm && f.clip_norm != "none")
    c.clip_norm = parse_positive(*f.clip_norm, "--clip-norm", "give the largest 2-norm, such as 1.0, or none");
  c.seed = parsed<std::uint64_t>(f.seed, [](auto& t) { return parse_count(t, "--seed", 0, INT64_MAX); });
  return c;
}

PlanTarget target_of(const Setup& setup) { return {setup.cluster.gpus, setup.seq_len, setup.cluster.host}; }

}  // namespace

void add_setup_flags(const Command& command, Flags& flags) {
  add_rows(command, flags, setup_rows());
  command.group(kTarget).flag("--compile", flags.compile, "the implementation's compiled variant");
  command.group(kTarget).flag("--async-tensor", flags.async_tensor,
                              "compiled products over tensor ranks in parts, while others of them move");
  command.group(kTarget).flag("--no-compile", flags.no_compile, "the eager one, and no word on the compiled one");
  add_model_flags(command, flags);
}

void add_plan_flags(const Command& command, Flags& flags) { add_rows(command, flags, plan_rows()); }

std::string flags_beside_the_plan(const Flags& flags) {
  std::string text;
  for (const FlagRow& row : setup_rows())
    if (const Text& value = flags.*(row.value); value && row.kept == KeptBy::command_line)
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", row.name, shell_word(*value));
  return text + model_details(flags) + compilation(flags);
}

bool set_plan_flag(Flags& flags, std::string_view name, const std::string& value) {
  for (const FlagRow& row : plan_rows())
    if (row.name == name) return flags.*(row.value) = value, true;
  return false;
}

std::string all_given(const Flags& flags) {
  std::string text;
  for (const auto* rows : {&setup_rows(), &plan_rows()})
    for (const FlagRow& row : *rows)
      if (const Text& value = flags.*(row.value))
        text += fmt::format("{}{} {}", text.empty() ? "" : " ", row.name, shell_word(*value));
  return text + model_details(flags) + compilation(flags);
}

Setup resolve_setup(const Flags& flags, const PlanFile* file, Notes notes) {
  const ShardingPlan* const plan = file != nullptr ? &file->plan : nullptr;
  if (!flags.model)
    throw InputError("--model", "is missing", "give a catalog name (see `fsdp-plan show model`) or a config.json");
  if (!flags.cluster)
    throw InputError("--cluster", "is missing", "give a catalog name (see `fsdp-plan show cluster`) or a cluster file");
  const auto gpus = parse_optional_count(flags.gpus, kGpus);
  if (plan != nullptr && gpus && *gpus != plan->ranks())
    throw InputError("--gpus", fmt::format("is {}, but the plan is for {}", *gpus, counted(plan->ranks(), "GPU")),
                     "leave it out");
  const std::int64_t asked = plan != nullptr ? plan->seq_len
                             : flags.seq_len ? parse_tokens(*flags.seq_len, kSeqLen)
                                             : 0;
  Setup setup;
  setup.model = model_from_flags(flags, asked, notes);
  setup.cluster = named_cluster(*flags.cluster, plan != nullptr ? plan->ranks() : gpus.value_or(0), notes);
  setup.seq_len = plan != nullptr ? plan->seq_len : sequence_length(flags, setup.model);
  setup.implementation = &named_implementation(flags, setup.model, file, setup.cluster.host, notes);
  setup.costs = named_costs(flags, setup.cluster, notes);
  setup.options.memory_limit = named_memory_limit(flags, setup.cluster);
  if (flags.reserve) setup.options.reserve = parse_bytes(*flags.reserve, "--reserve");
  if (flags.price) setup.cluster.price = named_price(flags, setup.cluster);
  return setup;
}

PlanFile plan_from_file(const Flags& flags) {
  for (const FlagRow& row : plan_rows()) {
    if (flags.*(row.value))
      throw InputError(row.name, "contradicts --plan, which decides it already", "leave out one of the two");
  }
  PlanFile file = parse_plan_file(read_file(*flags.plan), *flags.plan);
  check(file.plan, *flags.plan);
  return file;
}

PlanFile file_of(const ShardingPlan& plan, const Flags& flags, const Setup& setup) {
  if (setup.cluster.host || !(flags.implementation || flags.compile)) return {plan, std::nullopt};
  return {plan, found_for(*setup.implementation)};
}

ShardingPlan plan_from_flags(const Flags& flags, const Setup& setup) {
  try {
    return plan_of(choices_of(flags, setup.cluster.gpus, setup.seq_len), setup.model, target_of(setup));
  } catch (const InputError& e) {
    throw naming_given_flags(e, flags);
  }
}

SearchOptions search_from_flags(const Flags& flags, const Setup& setup) {
  try {
    SearchOptions options =
        search_of(choices_of(flags, setup.cluster.gpus, setup.seq_len), setup.model, target_of(setup));
    options.selective_op = setup.implementation->keeps_selectively != nullptr;
    options.memory_limit = *setup.options.memory_limit;
    return options;
  } catch (const InputError& e) {
    throw naming_batch(e, flags);
  }
}

InputError naming_given_flags(const InputError& error, const Flags& flags) {
  const bool of_reshard = error.file() == "plan" && error.field().ends_with("reshard_after_forward");
  if (of_reshard && !flags.reshard && flags.wrap) return error.at("--wrap");  // "class:NAME=8"
  return naming_plan_flags(naming_batch(error, flags));
}

}  // namespace fsdp::cli
