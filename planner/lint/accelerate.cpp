// Hugging Face Accelerate's YAML: keys of its launcher and of FullyShardedDataParallelPlugin.
#include <algorithm>
#include <set>

#include "models/graph.h"
#include "models/input/limits.h"
#include "planner/lint/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

constexpr std::string_view kFsdp = "fsdp_config.", kMesh = "parallelism_config.parallelism_config_";

class AccelerateReader {
 public:
  AccelerateReader(FlatConfig config, const ModelGraph& model) : in_(std::move(config)), model_(model) {}

  ReadConfig read() {
    const std::string type = in_.text("distributed_type").value_or("");
    if (type != "FSDP" && type != "MULTI_GPU")
      in_.refuse("distributed_type", type.empty() ? "is missing" : "'" + type + "' is not read",
                 "give a configuration whose distributed_type is FSDP or MULTI_GPU");
    ddp_ = type == "MULTI_GPU";
    version_ = ddp_ ? 1 : in_.integer(key("fsdp_version"), 1, 2).value_or(1);
    set(out_, "dialect",
        ddp_            ? "ddp"
        : version_ == 1 ? "fsdp1"
                        : "fsdp2",
        ddp_ ? "distributed_type" : key("fsdp_version"));
    if (const auto n = in_.integer("num_processes", 1, kGpus.most))
      set(out_, "gpus", std::to_string(*n), "num_processes");
    precision();
    if (const auto n = in_.integer("gradient_accumulation_steps", 1, kGradAccum.most))
      set(out_, "grad_accum", std::to_string(*n), "gradient_accumulation_steps");
    set(out_, "grad_sync", "last");
    set(out_, "loss_in_model", "true");
    if (!ddp_) {
      units();
      sharding();
      rest();
    }
    ignored();
    out_.unread = in_.unread();
    return std::move(out_);
  }

 private:
  static std::string key(std::string_view name) { return std::string(kFsdp) + std::string(name); }
  static std::string mesh(std::string_view name) { return std::string(kMesh) + std::string(name); }

  void precision() {
    std::string said = in_.text("mixed_precision").value_or("no");
    if (said == "false" || said == "False") said = "no";  // what YAML makes of a plain no
    if (said != "no" && said != "bf16" && said != "fp16")
      in_.refuse("mixed_precision", "'" + said + "' is not read", "use no, bf16 or fp16");
    // Without it the model computes in what the script loads it in.
    const std::string dtype = said == "no" ? "fp32" : said, from = said == "no" ? "" : "mixed_precision";
    set(out_, "param_dtype", dtype, from);
    set(out_, "reduce_dtype", dtype, from);
    out_.one_dtype = said == "no";
    if (out_.one_dtype)
      out_.notes.push_back(
          "mixed_precision is no: the model is kept, computed and reduced in the type that the script loads it in, "
          "fp32 unless --param-dtype says another (transformers 5 loads what the checkpoint has, as a rule bf16)");
    else if (std::any_of(model_.ops.begin(), model_.ops.end(),
                         [](const Op& op) { return op.kind == OpKind::layer_norm; }))
      out_.notes.push_back(
          "mixed_precision also runs the model under autocast, which makes the results of layer norms fp32 on GPUs: "
          "that is not predicted, and activations take more");
  }

  void units() {
    const std::string policy = in_.text(key("fsdp_auto_wrap_policy")).value_or("NO_WRAP");
    const std::string classes = in_.text(key("fsdp_transformer_layer_cls_to_wrap")).value_or("");
    const auto size = in_.integer(key("fsdp_min_num_params"), 0, kMostParameters);
    if (version_ == 1 && needs_adapter_units(model_, Dialect::fsdp1)) {
      out_.notes.push_back(
          "units are the blocks, and adapters by themselves: transformers' Trainer sets peft's policy in place of the "
          "file's where the model is peft's, and FSDP1 trains no other units; a script of your own has to set it");
      return units_of("class:" + blocks_or(classes) + "|adapters", key("fsdp_transformer_layer_cls_to_wrap"));
    }
    if (policy == "NO_WRAP") return units_of("root", key("fsdp_auto_wrap_policy"));
    if (policy == "SIZE_BASED_WRAP" && version_ == 1)
      return set(out_, "wrap", "params:" + std::to_string(size.value_or(100'000'000)), key("fsdp_min_num_params"));
    if (policy != "TRANSFORMER_BASED_WRAP")
      in_.refuse(key("fsdp_auto_wrap_policy"), "'" + policy + "' is not read",
                 "use TRANSFORMER_BASED_WRAP, NO_WRAP or, with fsdp_version 1, SIZE_BASED_WRAP");
    if (classes.empty())
      out_.notes.push_back(
          "no classes to wrap are named: the model's blocks are taken, as Accelerate takes the "
          "model's _no_split_modules");
    units_of("class:" + blocks_or(classes), key("fsdp_transformer_layer_cls_to_wrap"));
  }

  // The classes named, or those of the model's blocks.
  std::string blocks_or(std::string list) const {
    if (list.empty()) {
      std::set<std::string> blocks;
      for (const Module& m : model_.modules)
        if (m.block) blocks.insert(m.class_name);
      for (const std::string& name : blocks) list += (list.empty() ? "" : ",") + name;
    }
    std::erase(list, ' ');
    return list;
  }

  // Version 2 makes more units, as of Accelerate 1.14.
  void units_of(const std::string& wrapped, const std::string& from) {
    set(out_, "wrap", wrapped, from);
    if (version_ == 1) return;
    const std::string reshard = in_.text(key("fsdp_reshard_after_forward")).value_or("true");
    out_.units = with_ends(model_, wrap(model_, wrapped, Origin(in_.where(), from)));
    for (Unit& u : *out_.units)
      if (u.modules != std::vector<std::string>{""} && u.reshard_after_forward != Reshard::no)
        u.reshard_after_forward = reshard == "false" || reshard == "False" ? Reshard::no : Reshard::yes;
    out_.notes.push_back(
        "Accelerate 1.14 and later also makes units of the embedding, and of norm and output head together, which stay "
        "whole after forward: that is predicted");
  }

  void sharding() {
    const std::string reshard = in_.text(key("fsdp_reshard_after_forward")).value_or("true");
    const auto strategy = in_.text(key("fsdp_sharding_strategy"));
    const auto replicate = in_.integer(mesh("dp_replicate_size"), 1, kReplicate.most);
    in_.ignore(mesh("dp_shard_size"));  // what is left of num_processes
    for (const char* other : {"cp_size", "sp_size"})
      if (in_.integer(mesh(other), 1, kGpus.most).value_or(1) > 1)
        in_.refuse(mesh(other), "context parallelism is in no plan here", "set it to 1");
    if (const auto tensor = in_.integer(mesh("tp_size"), 1, kGpus.most); tensor && *tensor > 1)
      set(out_, "tensor", std::to_string(*tensor), mesh("tp_size"));
    if (version_ == 2) {
      if (reshard != "true" && reshard != "false" && reshard != "True" && reshard != "False")
        in_.refuse(key("fsdp_reshard_after_forward"), "'" + reshard + "' is neither true nor false",
                   "Accelerate refuses other values with fsdp_version 2");
      set(out_, "reshard_after_forward", switch_text(reshard == "true" || reshard == "True"),
          key("fsdp_reshard_after_forward"));
      if (strategy) out_.notes.push_back("fsdp_sharding_strategy has no say with fsdp_version 2");
      if (replicate) set(out_, "replicate", std::to_string(*replicate), mesh("dp_replicate_size"));
      return;
    }
    const std::string name = strategy.value_or(reshard.starts_with("F") && reshard != "False" ? reshard : "FULL_SHARD");
    if (name == "NO_SHARD") return no_shard();
    if (name.starts_with("HYBRID_SHARD"))
      in_.refuse(key("fsdp_sharding_strategy"),
                 "'" + name + "' depends on how many GPUs a machine has, which the file does not say",
                 "use fsdp_version 2 with parallelism_config_dp_replicate_size");
    if (name != "FULL_SHARD" && name != "SHARD_GRAD_OP")
      in_.refuse(key("fsdp_sharding_strategy"), "'" + name + "' is not read", "use FULL_SHARD or SHARD_GRAD_OP");
    set(out_, "reshard_after_forward", switch_text(name == "FULL_SHARD"), key("fsdp_sharding_strategy"));
  }

  // FSDP1 that replicates on every rank.
  void no_shard() {
    const auto ranks = in_.text("num_processes");
    if (!ranks)
      in_.refuse("num_processes", "is missing, and with NO_SHARD every one of them has the whole model",
                 "write the number of GPUs into the file");
    set(out_, "replicate", *ranks, key("fsdp_sharding_strategy"));
  }

  void rest() {
    const auto prefetch = in_.text(key("fsdp_backward_prefetch"));
    const auto forward = in_.boolean(key("fsdp_forward_prefetch"));
    const auto original = in_.boolean(key("fsdp_use_orig_params"));
    if (version_ == 1) {
      const std::string name = prefetch.value_or("BACKWARD_PRE");
      if (name != "BACKWARD_PRE" && name != "BACKWARD_POST" && name != "NO_PREFETCH")
        in_.refuse(key("fsdp_backward_prefetch"), "'" + name + "' is not read",
                   "use BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH");
      set(out_, "backward_prefetch",
          name == "BACKWARD_PRE"    ? "pre"
          : name == "BACKWARD_POST" ? "post"
                                    : "none",
          key("fsdp_backward_prefetch"));
      if (forward.value_or(false)) set(out_, "forward_prefetch", "1", key("fsdp_forward_prefetch"));
      if (original) set(out_, "use_orig_params", switch_text(*original), key("fsdp_use_orig_params"));
    }
    if (in_.boolean(key("fsdp_offload_params")).value_or(false))
      set(out_, "offload", "true", key("fsdp_offload_params"));
    if (in_.boolean(key("fsdp_activation_checkpointing")).value_or(false)) {
      const bool wraps = in_.text(key("fsdp_auto_wrap_policy")).value_or("NO_WRAP") != "NO_WRAP";
      set(out_, "activation_checkpointing", wraps || version_ == 1 ? "full" : "none",
          key("fsdp_activation_checkpointing"));
      if (version_ == 2 && wraps)
        out_.notes.push_back(
            "with fsdp_version 2 Accelerate before 1.15 recomputes each child of a block by itself: blocks are "
            "predicted");
      else if (!wraps)
        out_.notes.push_back(
            version_ == 2
                ? "fsdp_activation_checkpointing with NO_WRAP: Accelerate stops there with fsdp_version 2, as "
                  "nothing is wrapped; a run without recomputation is predicted"
                : "fsdp_activation_checkpointing with NO_WRAP: Accelerate recomputes every module by itself, "
                  "one inside of the other; whole blocks are predicted");
    } else if (version_ == 1 && in_.text(key("fsdp_auto_wrap_policy")).value_or("NO_WRAP") != "NO_WRAP") {
      out_.notes.push_back(
          "gradient_checkpointing of transformers' Trainer is in no file of Accelerate: before transformers 5.0 it is "
          "the activation checkpointing 'reentrant', which gathers every unit once more than "
          "fsdp_activation_checkpointing");
    }
  }

  void ignored() {
    for (const char* name : {"fsdp_state_dict_type", "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"})
      in_.ignore(key(name));
    for (const char* name :
         {"compute_environment", "debug", "downcast_bf16", "machine_rank", "main_training_function", "num_machines",
          "rdzv_backend", "same_network", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "use_cpu", "gpu_ids",
          "main_process_ip", "main_process_port", "enable_cpu_affinity", "deepspeed_config", "fsdp_config"})
      in_.ignore(name);
  }

  FlatConfig in_;
  const ModelGraph& model_;
  ReadConfig out_{.format = "Accelerate", .implementation = "hf"};
  bool ddp_ = false;
  std::int64_t version_ = 1;
};

}  // namespace

ReadConfig read_accelerate(FlatConfig config, const ModelGraph& model) {
  return AccelerateReader(std::move(config), model).read();
}

}  // namespace fsdp
