// torchtitan: a configuration in Python and its arguments, and the TOML of v0.2.2 and before, whose keys are alike.
#include "models/input/limits.h"
#include "planner/lint/formats.h"

namespace fsdp {
namespace {

class TorchtitanReader {
 public:
  explicit TorchtitanReader(FlatConfig config) : in_(std::move(config)) {}

  ReadConfig read() {
    set(out_, "dialect", "fsdp2");
    set(out_, "wrap", "titan");
    mesh();
    reshard();
    batch();
    types();
    checkpointing();
    if (in_.boolean("training.enable_cpu_offload").value_or(false))
      set(out_, "offload", "true", "training.enable_cpu_offload");
    if (in_.boolean("compile.enable").value_or(false)) out_.compile = true;
    if (in_.boolean("parallelism.enable_async_tensor_parallel").value_or(false)) async_tensor();
    if (const auto norm = in_.text("training.max_norm")) set(out_, "clip_norm", *norm, "training.max_norm");
    else set(out_, "clip_norm", "1.0");
    if (const auto name = in_.text("optimizer.name"); name && *name != "AdamW")
      out_.notes.push_back("optimizer " + *name + ": AdamW is predicted");
    for (const char* section :
         {"optimizer.", "lr_scheduler.", "model.", "job.", "profiling.", "metrics.", "checkpoint.", "comm.",
          "validation.", "debug.", "compile.", "dataloader.", "hf_assets_path"})
      in_.ignore_section(section);
    for (const char* name : {"training.dataset", "training.dataset_path", "training.steps", "training.deterministic",
                             "training.seed", "training.gc_freq", "training.gc_debug", "training.disable_cuda_graphs",
                             "module", "config", "nproc_per_node", "nnodes"})
      in_.ignore(name);
    out_.unread = in_.unread();
    return std::move(out_);
  }

 private:
  void async_tensor() {
    if (tensor_ > 1 && out_.compile) out_.async_tensor = true;
    else out_.notes.push_back("enable_async_tensor_parallel without compiled blocks or tensor ranks: nothing");
  }
  [[nodiscard]] std::int64_t degree(const char* key, std::int64_t least = 1) {
    return in_.integer(key, least, kGpus.most).value_or(least == -1 ? -1 : 1);
  }
  void mesh() {
    for (const char* key : {"parallelism.context_parallel_degree", "parallelism.pipeline_parallel_degree",
                            "parallelism.expert_parallel_degree"})
      if (degree(key) > 1) in_.refuse(key, "no plan here is parallel in that way", "set it to 1");
    replicate_ = degree("parallelism.data_parallel_replicate_degree");
    shard_ = degree("parallelism.data_parallel_shard_degree", -1);
    tensor_ = degree("parallelism.tensor_parallel_degree");
    if (shard_ == 0) in_.refuse("parallelism.data_parallel_shard_degree", "is 0", "give the number of ranks, or -1");
    if (replicate_ > 1)
      set(out_, "replicate", std::to_string(replicate_), "parallelism.data_parallel_replicate_degree");
    if (tensor_ > 1) set(out_, "tensor", std::to_string(tensor_), "parallelism.tensor_parallel_degree");
    if (shard_ < 0) return;
    if (replicate_ * shard_ > kGpus.most / tensor_)
      in_.refuse("parallelism.data_parallel_shard_degree", "makes more ranks than a cluster has");
    set(out_, "gpus", std::to_string(replicate_ * shard_ * tensor_), "parallelism.data_parallel_shard_degree");
  }
  // The key, where the file has it; else nothing, which says that torchtitan decides.
  [[nodiscard]] std::string said(const std::string& key) { return in_.text(key) ? key : std::string(); }
  void reshard() {
    const char* key = "parallelism.fsdp_reshard_after_forward";
    const std::string policy = in_.text(key).value_or("default");
    if (policy != "default" && policy != "always" && policy != "never")
      in_.refuse(key, "'" + policy + "' is not read", "use default, always or never");
    set(out_, "reshard_after_forward", policy == "default" ? "auto" : switch_text(policy == "always"), said(key));
  }
  void batch() {
    const auto local = in_.integer("training.local_batch_size", 1, kMicroBatch.most);
    const auto global = in_.integer("training.global_batch_size", -1, kMostElements);
    if (const auto length = in_.integer("training.seq_len", 1, kSeqLen.most))
      set(out_, "seq_len", std::to_string(*length), "training.seq_len");
    if (local) set(out_, "micro_batch", std::to_string(*local), "training.local_batch_size");
    if (global && *global > 0) set(out_, "global_batch", std::to_string(*global), "training.global_batch_size");
    else if (local) set(out_, "grad_accum", "1");
    else tokens();
    set(out_, "grad_sync", "every");
  }
  // Since 2026 batches are numbers of tokens.
  void tokens() {
    const char *length_key = "training.max_context_length",
               *tokens_key = "training.num_tokens_per_microbatch_per_dp_rank";
    const auto length = in_.integer(length_key, 1, kSeqLen.most);
    const auto micro = in_.integer(tokens_key, 1, kMostElements);
    const auto step = in_.integer("training.num_tokens_per_train_step", -1, kMostElements);
    if (length) set(out_, "seq_len", std::to_string(*length), length_key);
    if (!micro) return;
    if (!length)
      return out_.notes.push_back(std::string(tokens_key) + " " + std::to_string(*micro) +
                                  ": say micro_batch and seq_len beside the file");
    if (*micro % *length != 0)
      in_.refuse(tokens_key,
                 std::to_string(*micro) + " tokens are no whole number of sequences of " + std::to_string(*length));
    set(out_, "micro_batch", std::to_string(*micro / *length), tokens_key);
    if (!step || *step < 0) return set(out_, "grad_accum", "1");
    if (*step % *length != 0)
      in_.refuse("training.num_tokens_per_train_step",
                 "are no whole number of sequences of " + std::to_string(*length));
    set(out_, "global_batch", std::to_string(*step / *length), "training.num_tokens_per_train_step");
  }
  void types() {
    const auto dtype = [&](const char* key, const char* setting, const char* usual) {
      const std::string type = in_.text(key).value_or(usual);
      if (type != "bfloat16" && type != "float32" && type != "float16")
        in_.refuse(key, "'" + type + "' is not read", "use bfloat16 or float32");
      set(out_, setting, type == "bfloat16" ? "bf16" : type == "float16" ? "fp16" : "fp32", said(key));
    };
    dtype("training.mixed_precision_param", "param_dtype", "bfloat16");
    dtype("training.mixed_precision_reduce", "reduce_dtype", "float32");
    dtype("training.dtype", "master_dtype", "float32");
  }
  void checkpointing() {
    const char* key = "activation_checkpoint.mode";
    const std::string mode = in_.text(key).value_or("selective");
    const std::string option = in_.text("activation_checkpoint.selective_ac_option").value_or("op");
    in_.ignore("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns");
    if (mode != "none" && mode != "full" && mode != "selective")
      in_.refuse(key, "'" + mode + "' is not read", "use none, full or selective");
    if (mode == "selective" && option != "op") {
      if (option.find_first_not_of("0123456789") != std::string::npos || option.empty() || option.size() > 6)
        in_.refuse("activation_checkpoint.selective_ac_option", "'" + option + "' is neither op nor a whole number");
      return set(out_, "activation_checkpointing", "last-of-" + option, "activation_checkpoint.selective_ac_option");
    }
    set(out_, "activation_checkpointing", mode == "selective" ? "selective-op" : mode, said(key));
  }

  FlatConfig in_;
  ReadConfig out_{.format = "torchtitan", .implementation = "torchtitan"};
  std::int64_t replicate_ = 1, shard_ = -1, tensor_ = 1;
};

}  // namespace

ReadConfig read_torchtitan(FlatConfig config, const ModelGraph&) { return TorchtitanReader(std::move(config)).read(); }

}  // namespace fsdp
