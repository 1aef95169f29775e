// transformers' fsdp_plan: {"model.layers.*": "free_full_weight", "lm_head": "keep_full_weight"}, alone or as a key of
// a DistributedConfig.
#include <algorithm>
#include <set>

#include "models/input/json.h"
#include "models/input/limits.h"
#include "planner/lint/formats.h"
#include "planner/wrap/fsdp_rules.h"

namespace fsdp {
namespace {

constexpr std::string_view kFree = "free_full_weight", kKeep = "keep_full_weight";

void read_units(ReadConfig& out, const FsdpRules& rules, const ModelGraph& model) {
  out.units = units_of_rules(rules, model);
  if (rules.empty()) set(out, "wrap", "root", "fsdp_plan");
  else set(out, "units", std::to_string(out.units->size()), "fsdp_plan");
}

// Without fsdp_mixed_precision both are the type of the weights: flags may say another.
void set_types(ReadConfig& out, bool mixed) {
  const char* key = mixed ? "fsdp_mixed_precision" : "";
  set(out, "param_dtype", mixed ? "bf16" : "fp32", key);
  set(out, "reduce_dtype", "fp32", key);
}

// What from_pretrained() says, and no configuration.
void note_weights(ReadConfig& out, bool mixed) {
  std::string note =
      "the dtype of the weights is not read: weights kept in fp32 are predicted; where they have another, "
      "give --master-dtype";
  if (!mixed) note += ", and --param-dtype and --reduce-dtype, which are the same without fsdp_mixed_precision";
  out.notes.push_back(std::move(note));
}

bool keeps(std::string_view action, const Origin& where) {
  if (action != kFree && action != kKeep)
    throw InputError(where, "'" + std::string(action) + "' is not read", "use free_full_weight or keep_full_weight");
  return action == kKeep;
}

void check_rule(const std::string& rule, const Origin& where, const ModelGraph& model) {
  if (rule != rule_pattern(rule))
    throw InputError(where, "names one of several modules that are numbered",
                     "write * for the number: transformers takes no other rule");
  if (std::none_of(model.modules.begin(), model.modules.end(),
                   [&](const Module& m) { return rule_names(rule, m.name); }))
    throw InputError(where, "no module of " + model.name + " has that name", "see `fsdp-plan show model`");
}

FsdpRules rules_of(JsonObject plan, const ModelGraph& model) {
  FsdpRules rules;
  for (const std::string& rule : plan.keys()) {
    rules[rule] = keeps(plan.text(rule), plan.where(rule));
    check_rule(rule, plan.where(rule), model);
  }
  return rules;
}

// A DistributedConfig's rules are added to those of the model's class.
void add_usual(ReadConfig& out, FsdpRules& rules, const ModelGraph& model) {
  static const FsdpRules kUsual = {
      {"model.embed_tokens", false}, {"model.layers.*", false}, {"model.norm", true}, {"lm_head", true}};
  std::string added;
  for (const auto& [rule, keep] : kUsual) {
    const bool there = std::any_of(model.modules.begin(), model.modules.end(),
                                   [&, r = rule](const Module& m) { return rule_names(r, m.name); });
    if (!there || rules.contains(rule)) continue;
    rules[rule] = keep;
    added += (added.empty() ? "" : ", ") + rule;
  }
  if (!added.empty())
    out.notes.push_back("transformers adds the rules of the model's class to those of a DistributedConfig: " + added);
}

}  // namespace

ReadConfig read_fsdp_plan(std::string_view json, std::string_view where, const ModelGraph& model) {
  const JsonDocument document = parse_document(json, where, "");
  JsonObject root = document.root();
  ReadConfig out;
  out.format = "transformers' fsdp_plan";
  out.implementation = "hf";
  set(out, "dialect", "fsdp2");
  set(out, "loss_in_model", "true");  // as its models are trained
  if (!root.has("fsdp_plan")) {
    read_units(out, rules_of(root, model), model);
    note_weights(out, true);
    return out;
  }
  FsdpRules rules = rules_of(root.object("fsdp_plan"), model);
  add_usual(out, rules, model);
  read_units(out, rules, model);
  const std::int64_t shards = root.optional_integer("fsdp_size", 1, kGpus.most).value_or(0);
  const std::int64_t replicas = root.optional_integer("dp_replicate_size", 1, kGpus.most).value_or(1);
  const std::int64_t tensor = root.optional_integer("tp_size", 1, kGpus.most).value_or(1);
  if (shards > 0 && replicas * shards > kGpus.most / tensor)
    root.refuse("fsdp_size", "makes more ranks than a cluster has");
  set(out, "replicate", std::to_string(replicas), "dp_replicate_size");
  set(out, "tensor", std::to_string(tensor), "tp_size");
  if (shards > 0) set(out, "gpus", std::to_string(shards * replicas * tensor), "fsdp_size");
  for (const char* other : {"ep_size", "cp_size", "pp_size"})
    if (root.optional_integer(other, 1, kGpus.most).value_or(1) > 1)
      root.refuse(other, "no plan here is parallel in that way", "set it to 1");
  if (root.optional_boolean("fsdp_cpu_offload").value_or(false)) set(out, "offload", "true", "fsdp_cpu_offload");
  const auto mixed = root.optional_boolean("fsdp_mixed_precision");
  if (mixed) set_types(out, *mixed);
  note_weights(out, mixed.value_or(true));
  static const std::set<std::string> kRead = {"fsdp_plan", "fsdp_size",        "dp_replicate_size",
                                              "tp_size",   "ep_size",          "cp_size",
                                              "pp_size",   "fsdp_cpu_offload", "fsdp_mixed_precision"};
  for (const std::string& key : root.keys())
    if (!kRead.contains(key)) out.unread.push_back(key);
  return out;
}

// The same of Python: DistributedConfig(fsdp_size=8, fsdp_plan={...}).
ReadConfig read_distributed_config(FlatConfig in, const ModelGraph& model) {
  ReadConfig out;
  out.format = "transformers' DistributedConfig";
  out.implementation = "hf";
  set(out, "dialect", "fsdp2");
  set(out, "loss_in_model", "true");  // as its models are trained
  FsdpRules rules;
  const std::string prefix = "DistributedConfig.";
  const std::string plan = prefix + "fsdp_plan.";
  for (const FlatValue& v : in.values()) {
    if (!v.key.starts_with(plan)) continue;
    const std::string rule = v.key.substr(plan.size());
    const Origin origin(in.where(), "fsdp_plan: " + rule);
    rules[rule] = keeps(v.value, origin);
    check_rule(rule, origin, model);
  }
  in.ignore_section(plan);
  bool alone = false;
  for (const FlatValue& v : in.values()) {
    if (v.key != "config.base_model_fsdp_plan") continue;
    alone = v.value == "{}";
    if (!alone) out.unread.push_back(v.key + " (line " + std::to_string(v.line) + ")");
  }
  if (!alone) add_usual(out, rules, model);
  read_units(out, rules, model);
  const auto size = [&](const char* key) { return in.integer(prefix + key, 1, kGpus.most); };
  for (const char* other : {"ep_size", "pp_size"})
    if (size(other).value_or(1) > 1) in.refuse(prefix + other, "no plan here is parallel in that way", "set it to 1");
  const std::int64_t replicas = size("dp_replicate_size").value_or(1), tensor = size("tp_size").value_or(1);
  set(out, "replicate", std::to_string(replicas), "dp_replicate_size");
  set(out, "tensor", std::to_string(tensor), "tp_size");
  if (const auto shards = size("fsdp_size")) {
    if (replicas * *shards > kGpus.most / tensor)
      in.refuse(prefix + "fsdp_size", "makes more ranks than a cluster has");
    set(out, "gpus", std::to_string(*shards * replicas * tensor), "fsdp_size");
  }
  const bool mixed = in.boolean(prefix + "fsdp_mixed_precision").value_or(false);
  set_types(out, mixed);
  note_weights(out, mixed);
  if (in.boolean(prefix + "fsdp_cpu_offload").value_or(false)) set(out, "offload", "true", "fsdp_cpu_offload");
  if (in.text("gradient_checkpointing_enable").has_value())
    set(out, "activation_checkpointing", "full", "gradient_checkpointing_enable");
  for (const std::string& key : in.unread())
    if (key.starts_with(prefix)) out.unread.push_back(key);
  return out;
}

}  // namespace fsdp
