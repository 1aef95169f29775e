// transformers' fsdp_plan: {"model.layers.*": "free_full_weight", "lm_head": "keep_full_weight"}, alone or as a key of
// a DistributedConfig.
#include <map>
#include <set>

#include "models/input/json.h"
#include "models/input/limits.h"
#include "planner/lint/formats.h"

namespace fsdp {
namespace {

constexpr std::string_view kFree = "free_full_weight", kKeep = "keep_full_weight";

// "*" stands for one part of a name.
bool matches(std::string_view pattern, std::string_view name) {
  while (!pattern.empty() && !name.empty()) {
    const std::size_t p = std::min(pattern.find('.'), pattern.size()), n = std::min(name.find('.'), name.size());
    if (pattern.substr(0, p) != "*" && pattern.substr(0, p) != name.substr(0, n)) return false;
    pattern.remove_prefix(std::min(p + 1, pattern.size()));
    name.remove_prefix(std::min(n + 1, name.size()));
  }
  return pattern.empty() && name.empty();
}

// The plan's modules are units by their classes: all modules of a class, or none.
void read_units(ReadConfig& out, JsonObject plan, const ModelGraph& model) {
  std::map<std::string, std::pair<std::size_t, std::string>>
      classes;  // modules of it that are named, and their reshard
  for (const std::string& pattern : plan.keys()) {
    const std::string action = plan.text(pattern);
    if (action != kFree && action != kKeep)
      plan.refuse(pattern, "'" + action + "' is not read", "use free_full_weight or keep_full_weight");
    bool any = false;
    for (const Module& m : model.modules) {
      if (m.name.empty() || !matches(pattern, m.name)) continue;
      any = true;
      auto& [count, reshard] = classes[m.class_name];
      const std::string here = switch_text(action == kFree);
      if (count++ > 0 && reshard != here)
        plan.refuse(pattern, "modules of class " + m.class_name + " are freed here and kept elsewhere",
                    "give modules of one class one value");
      reshard = here;
    }
    if (!any) plan.refuse(pattern, "no module of " + model.name + " has that name", "see `fsdp-plan show model`");
  }
  std::string policy;
  for (const auto& [name, said] : classes) {
    std::size_t all = 0;
    for (const Module& m : model.modules) all += m.class_name == name && !m.name.empty() ? 1 : 0;
    if (all != said.first)
      plan.refuse(name, std::to_string(said.first) + " of " + std::to_string(all) + " modules of this class are named",
                  "lint reads plans that name all modules of a class; `emit pytorch` makes any units");
    policy += (policy.empty() ? "class:" : ",") + name + "=" + said.second;
  }
  set(out, "wrap", policy.empty() ? "root" : policy, "fsdp_plan");
}

}  // namespace

ReadConfig read_fsdp_plan(std::string_view json, std::string_view where, const ModelGraph& model) {
  const JsonDocument document = parse_document(json, where, "");
  JsonObject root = document.root();
  ReadConfig out;
  out.format = "transformers' fsdp_plan";
  out.implementation = "hf";
  set(out, "dialect", "fsdp2");
  if (!root.has("fsdp_plan")) {
    read_units(out, root, model);
    return out;
  }
  read_units(out, root.object("fsdp_plan"), model);
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
  static const std::set<std::string> kRead = {"fsdp_plan", "fsdp_size", "dp_replicate_size", "tp_size",
                                              "ep_size",   "cp_size",   "pp_size",           "fsdp_cpu_offload"};
  for (const std::string& key : root.keys())
    if (!kRead.contains(key)) out.unread.push_back(key);
  return out;
}

}  // namespace fsdp
