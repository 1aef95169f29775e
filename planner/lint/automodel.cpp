// NeMo AutoModel's YAML: the sections of a recipe that say how it is sharded and in which batches.
#include "models/input/limits.h"
#include "planner/lint/formats.h"
#include "planner/wrap.h"

namespace fsdp {
namespace {

class AutomodelReader {
 public:
  AutomodelReader(FlatConfig config, const ModelGraph& model) : in_(std::move(config)), model_(model) {}

  ReadConfig read() {
    const std::string strategy = in_.text(key("strategy")).value_or("fsdp2");
    if (strategy != "fsdp2" && strategy != "ddp")
      in_.refuse(key("strategy"), "'" + strategy + "' is not read", "give a recipe whose strategy is fsdp2 or ddp");
    ddp_ = strategy == "ddp";
    set(out_, "dialect", strategy, key("strategy"));
    mesh();
    if (!ddp_) {
      units();
      prefetch();
      if (in_.text(key("offload_policy._target_"))) set(out_, "offload", "true", key("offload_policy"));
    }
    batch();
    types();
    checkpointing();
    set(out_, "clip_norm", in_.text("clip_grad_norm.max_norm").value_or("1.0"), said("clip_grad_norm.max_norm"));
    if (in_.boolean(key("enable_compile")).value_or(false) || in_.boolean("compile.enabled").value_or(false))
      out_.notes.push_back("torch.compile of the layers: eager ones are predicted");
    for (const char* part : {"peft.", "quantization.", "fp8."})
      for (const FlatValue& v : in_.values())
        if (v.key.starts_with(part)) {
          out_.notes.push_back(std::string(part).substr(0, std::string(part).size() - 1) +
                               ": is not read; give --lora or --float8 beside the file");
          break;
        }
    // What has no say in time or memory, or in a section that is the recipe's own.
    for (const FlatValue& v : std::vector<FlatValue>(in_.values()))
      if (!v.key.starts_with("distributed.")) in_.ignore(v.key);
    for (const char* name : {"sequence_parallel", "patch_is_packed_sequence", "mp_policy._target_",
                             "mp_policy.output_dtype", "mp_policy.cast_forward_inputs", "timeout_minutes"})
      in_.ignore(key(name));
    out_.unread = in_.unread();
    return std::move(out_);
  }

 private:
  static std::string key(std::string_view name) { return "distributed." + std::string(name); }
  [[nodiscard]] std::string said(const std::string& name) { return in_.text(name) ? name : std::string(); }
  std::optional<std::int64_t> size(const char* name) {
    const auto text = in_.text(key(name));
    if (!text || *text == "none" || *text == "auto") return std::nullopt;
    return in_.integer(key(name), 1, kGpus.most);
  }

  void mesh() {
    for (const char* other : {"pp_size", "cp_size", "ep_size"})
      if (size(other).value_or(1) > 1) in_.refuse(key(other), "no plan here is parallel in that way", "set it to 1");
    const auto data = size("dp_size"), replicate = size("dp_replicate_size"), tensor = size("tp_size");
    if (replicate && !ddp_) set(out_, "replicate", std::to_string(*replicate), key("dp_replicate_size"));
    if (tensor && *tensor > 1) set(out_, "tensor", std::to_string(*tensor), key("tp_size"));
    if (!data) return;
    if (*data > kGpus.most / tensor.value_or(1)) in_.refuse(key("dp_size"), "makes more ranks than a cluster has");
    set(out_, "gpus", std::to_string(*data * tensor.value_or(1)), key("dp_size"));
  }

  void units() {
    const std::string name = key("reshard_after_forward");
    const auto reshard = in_.boolean(name);
    set(out_, "wrap", "block", said(name));
    std::vector<Unit> made = wrap_blocks(model_, 1);
    for (std::size_t u = 0; u + 1 < made.size(); ++u)
      made[u].reshard_after_forward = reshard.value_or(u + 2 < made.size()) ? Reshard::yes : Reshard::no;
    made.back().reshard_after_forward = Reshard::no;
    out_.units = std::move(made);
    out_.notes.push_back(reshard ? "every block is a unit; the root holds everything else and keeps it"
                                 : "every block is a unit, and all but the last reshard after forward; the root holds "
                                   "everything else and keeps it");
  }

  void prefetch() {
    const auto forward = in_.integer(key("fsdp2_forward_prefetch_depth"), 0, 1000);
    const auto backward = in_.integer(key("fsdp2_backward_prefetch_depth"), 1, 1000);
    if (!in_.boolean(key("enable_fsdp2_prefetch")).value_or(false)) return;
    if (in_.boolean(key("reshard_after_forward")) == false) return;
    set(out_, "forward_prefetch", std::to_string(forward.value_or(1)), said(key("fsdp2_forward_prefetch_depth")));
    set(out_, "backward_prefetch", std::to_string(backward.value_or(2)), said(key("fsdp2_backward_prefetch_depth")));
  }

  void batch() {
    if (const auto local = in_.integer("step_scheduler.local_batch_size", 1, kMicroBatch.most))
      set(out_, "micro_batch", std::to_string(*local), "step_scheduler.local_batch_size");
    if (const auto global = in_.integer("step_scheduler.global_batch_size", 1, kMostElements))
      set(out_, "global_batch", std::to_string(*global), "step_scheduler.global_batch_size");
    if (const auto packed = in_.integer("packed_sequence.packed_sequence_size", 0, kSeqLen.most); packed && *packed > 0)
      set(out_, "seq_len", std::to_string(*packed), "packed_sequence.packed_sequence_size");
    const bool defers = in_.boolean(key("defer_fsdp_grad_sync")).value_or(true);
    set(out_, "grad_sync", defers ? "last" : "every", said(key("defer_fsdp_grad_sync")));
  }

  std::string dtype(const std::string& name, const char* usual) {
    std::string type = in_.text(name).value_or(usual);
    if (type.starts_with("torch.")) type.erase(0, 6);
    if (type == "bfloat16" || type == "bf16") return "bf16";
    if (type == "float32" || type == "fp32") return "fp32";
    if (type == "float16" || type == "fp16") return "fp16";
    in_.refuse(name, "'" + type + "' is not read", "use bfloat16 or float32");
  }

  void types() {
    set(out_, "param_dtype", dtype(key("mp_policy.param_dtype"), "bfloat16"), said(key("mp_policy.param_dtype")));
    set(out_, "reduce_dtype", dtype(key("mp_policy.reduce_dtype"), "float32"), said(key("mp_policy.reduce_dtype")));
    const auto master = in_.text("model.torch_dtype");
    if (master && *master != "auto") set(out_, "master_dtype", dtype("model.torch_dtype", ""), "model.torch_dtype");
    else out_.notes.push_back("model.torch_dtype: is not said; weights kept in fp32 are predicted");
  }

  void checkpointing() {
    const std::string name = key("activation_checkpointing");
    const std::string mode = in_.text(name).value_or("false");
    if (mode != "false" && mode != "False" && mode != "true" && mode != "True" && mode != "full" && mode != "selective")
      in_.refuse(name, "'" + mode + "' is not read", "use true, full, selective or false");
    const bool off = mode == "false" || mode == "False";
    set(out_, "activation_checkpointing", off ? "none" : mode == "selective" ? "selective-op" : "full", said(name));
    if (!off && mode != "selective")
      out_.notes.push_back(
          "AutoModel recomputes the norms, the attention and the mlp of a block one by one: whole blocks are "
          "predicted");
    if (mode == "selective") out_.notes.push_back("AutoModel's selective policy is its own: torchtitan's is predicted");
  }

  FlatConfig in_;
  const ModelGraph& model_;
  ReadConfig out_{.format = "NeMo AutoModel", .implementation = "hf"};
  bool ddp_ = false;
};

}  // namespace

ReadConfig read_automodel(FlatConfig config, const ModelGraph& model) {
  return AutomodelReader(std::move(config), model).read();
}

}  // namespace fsdp
