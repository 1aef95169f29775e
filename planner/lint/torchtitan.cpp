// torchtitan: a configuration in Python and its arguments, and the TOML of v0.2.2 and before, whose keys are alike.
#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "models/catalog.h"
#include "models/input/limits.h"
#include "models/input/split.h"
#include "planner/lint/formats.h"
#include "planner/wrap/titan_flavors.h"

namespace fsdp {
namespace {

class TorchtitanReader {
 public:
  TorchtitanReader(FlatConfig config, const ModelGraph& model, bool is_toml)
      : in_(std::move(config)), model_(model), is_toml_(is_toml) {}

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
    compile();
    converters();
    const bool before = in_.boolean("parallelism.enable_async_tensor_parallel").value_or(false);
    if (in_.boolean("compile.enable_async_tensor_parallel").value_or(before)) async_tensor();  // since 2026
    if (in_.text("loss.ChunkedLossWrapper"))
      out_.notes.push_back("ChunkedLossWrapper: whole logits are predicted unless --chunk-head true is given");
    clipping();
    optimizer();
    model();
    for (const char* section :
         {"lr_scheduler", "job.", "profiling.", "profiler", "metrics", "checkpoint.", "comm.", "validation.",
          "validator", "debug.", "dataloader", "tokenizer", "hf_assets_path", "dump_folder"})
      in_.ignore_section(section);
    for (const char* name : {"training.dataset", "training.dataset_path", "training.steps", "training.deterministic",
                             "training.seed", "training.gc_freq", "training.gc_debug", "training.disable_cuda_graphs",
                             "module", "nproc_per_node", "nnodes", "checkpoint"})
      in_.ignore(name);
    const std::vector<std::string> unread = in_.unread();
    out_.unread.insert(out_.unread.end(), unread.begin(), unread.end());
    return std::move(out_);
  }

 private:
  // Only these values have no say, or none here; another is not read.
  void usual(const std::string& key, std::initializer_list<std::string_view> values) {
    const auto value = in_.text(key);
    if (value && std::find(values.begin(), values.end(), *value) == values.end()) in_.leave(key);
  }
  [[nodiscard]] static std::vector<std::string> items(const std::string& list) {
    std::vector<std::string> all = split(list, ',');
    std::erase(all, "");
    return all;
  }
  [[nodiscard]] static std::optional<double> number(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
  }

  // Blocks are compiled unless "components" leaves the model out.
  void compile() {
    if (!in_.boolean("compile.enable").value_or(false)) return in_.ignore_section("compile.");
    const std::vector<std::string> parts =
        items(in_.text("compile.components").value_or(in_.has("compile.components") ? "" : "model,loss"));
    const auto has = [&](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
    out_.compile = has("model");
    if (!has("model"))
      out_.notes.push_back("compile.components without model: blocks and a loss that are not compiled are predicted");
    else if (!has("loss")) out_.notes.push_back("compile.components without loss: a compiled loss is predicted");
    usual("compile.backend", {"inductor"});
  }

  // What converts linear layers to multiply in 8 bits: by name (v0.2.2 and before), or by class.
  void converters() {
    const char* key = "model.converters";
    std::vector<std::string> names = items(in_.text(key).value_or(""));
    std::erase_if(names, [&](const std::string& name) {
      if (name != kFloat8 && name != kMx) out_.unread.push_back(in_.place(key) + ": " + name);
      return name != kFloat8 && name != kMx;
    });
    for (const char* section : {kFloat8, kMx})
      if (std::find(names.begin(), names.end(), section) == names.end()) in_.ignore_section(section + std::string("."));
    in_.ignore_section("quantize.grouped_mm.");  // without its converter it has no say
    for (const FlatValue& v : std::vector<FlatValue>(in_.values()))
      if (v.key.ends_with("Converter") && v.key != kFloat8Class && v.key != kMxClass) in_.ignore_section(v.key + ".");
    for (const char* of_class : {kFloat8Class, kMxClass})
      if (in_.text(of_class)) names.emplace_back(of_class);
    if (names.size() > 1) in_.refuse(in_.has(key) ? key : names.front(), "two converters of linear layers", "name one");
    if (names.empty()) return;
    const std::string& name = names.front();
    const bool by_class = name == kFloat8Class || name == kMxClass;
    if (name == kMx || name == kMxClass) mx(name + ".", by_class ? name : key, by_class);
    else float8(name + ".", by_class ? name : key, by_class);
  }
  void float8(const std::string& section, const std::string& converter, bool by_class) {
    const std::string recipe_key = section + "recipe_name", gather_key = section + "enable_fsdp_float8_all_gather",
                      scales_key = section + "precompute_float8_dynamic_scale_for_fsdp";
    const bool gathers = in_.boolean(gather_key).value_or(false), scales = in_.boolean(scales_key).value_or(false);
    const auto recipe = in_.text(recipe_key);
    if (recipe && *recipe != "tensorwise" && *recipe != "rowwise" && *recipe != "rowwise_with_gw_hp")
      in_.refuse(recipe_key, "'" + *recipe + "' is not read", "use tensorwise, rowwise or rowwise_with_gw_hp");
    if (recipe && gathers)
      in_.refuse(gather_key, "is true beside recipe_name: torchtitan refuses both together", "leave out one of them");
    const bool newest = !recipe && !gathers && !scales && by_class;
    if (newest)
      out_.notes.push_back(section + "recipe_name is not said: rowwise is predicted, torchtitan's since April 2026");
    set(out_, "float8", newest ? "rowwise" : recipe.value_or("tensorwise"), recipe ? recipe_key : converter);
    if (gathers && shard_ != 1) {
      set(out_, "float8_all_gather", "true", gather_key);
      if (scales) set(out_, "float8_precomputed_scales", "true", scales_key);
    } else if (gathers || scales) {
      out_.notes.push_back((gathers ? gather_key : scales_key) + ": nothing, as weights are not gathered in 8 bits");
    }
    usual(section + "emulate", {"false", "False"});
    in_.ignore(section + "model_compile_enabled");
    const std::string filter = section + "filter_fqns";
    if (!in_.text(filter))
      out_.notes.push_back(filter +
                           " without the output layer: torchtitan multiplies that in 8 bits, too, and in 16 "
                           "bits is predicted");
    else if (by_class) usual(filter, {"output", "lm_head"});
    else usual(filter, {"output"});
  }
  void mx(const std::string& section, const std::string& converter, bool by_class) {
    const std::string recipe_key = section + "recipe_name", cast_key = section + "mxfp8_dim1_cast_kernel_choice";
    if (!in_.text(recipe_key).value_or("mxfp8").starts_with("mxfp8")) return in_.leave(recipe_key);
    set(out_, "float8", "mxfp8", converter);
    in_.ignore(section + "model_compile_enabled");
    if (by_class) {
      if (in_.text(section + "fqns")) in_.leave(section + "fqns");
      return;
    }
    usual(recipe_key, {"mxfp8", "mxfp8_cublas"});
    usual(cast_key, {"cuda"});
    if (!in_.has(cast_key)) out_.notes.push_back(cast_key + " is not said: cuda is predicted, torchtitan uses triton");
    if (!in_.has(section + "filter_fqns"))
      out_.notes.push_back(section +
                           "filter_fqns is not said: torchtitan leaves the output layer in 16 bits, in 8 bits "
                           "is predicted");
    else if (in_.text(section + "filter_fqns")) in_.leave(section + "filter_fqns");
  }

  void clipping() {
    const char* key = "training.max_norm";
    const auto norm = in_.text(key);
    if (!norm) return set(out_, "clip_norm", "1.0");
    if (const auto value = number(*norm); !value || !(*value > 0))
      in_.refuse(key, "'" + *norm + "' is no norm above 0", "torchtitan clips in any case: to clip nothing, use 1e30");
    set(out_, "clip_norm", *norm, key);
  }
  void optimizer() {
    if (const auto name = in_.text("optimizer.name"); name && *name != "AdamW")
      out_.notes.push_back("optimizer " + *name + ": AdamW is predicted");
    for (const char* name : {"lr", "weight_decay"}) {
      const std::string key = std::string("optimizer.") + name;
      const auto text = in_.text(key);
      if (text && number(*text)) set(out_, name, *text, key);
      else if (text) in_.leave(key);  // Python that computes it
    }
    for (const char* key : {"optimizer.beta1", "optimizer.beta2", "optimizer.eps"}) in_.ignore(key);
    usual("optimizer.implementation", {"fused"});
    usual("optimizer.early_step_in_backward", {"false", "False"});
  }
  // The model is that of the flags: says so where the file has another.
  void model() {
    for (const char* key : {"model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion"})
      in_.ignore(key);
    const auto name = in_.text("model.name"), flavor = in_.text("model.flavor"), config = in_.text("config");
    if (!flavor && !config) return in_.leave("model.name");
    if (flavor == model_.name) return;
    const auto same = [&](const TitanFlavor& f) {
      return flavor ? f.flavor == *flavor && f.name == name.value_or("llama3") : f.config == *config;
    };
    const TitanFlavor* other = nullptr;
    for (const TitanFlavor& f : kTitanFlavors) {
      if (!same(f)) continue;
      if (f.ours == model_.name) return;
      if (other == nullptr) other = &f;  // the first of several is in the catalog
    }
    if (other == nullptr) return in_.leave(flavor ? "model.flavor" : "config");
    if (load_model(std::string(other->ours)).parameter_count() != model_.parameter_count())
      out_.notes.push_back((flavor ? "model.flavor " + *flavor : "config " + *config) + " is " +
                           std::string(other->ours) + ", and " + model_.name + " is predicted");
  }
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
    const bool gathered = in_.boolean("parallelism.disable_loss_parallel").value_or(false);
    out_.loss_parallel = !gathered || tensor_ == 1;
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
    // v0.2.2 recomputes every second block unless the file says another.
    const std::string option = in_.text("activation_checkpoint.selective_ac_option").value_or(is_toml_ ? "2" : "op");
    in_.ignore("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns");
    if (mode != "none" && mode != "full" && mode != "selective")
      in_.refuse(key, "'" + mode + "' is not read", "use none, full or selective");
    if (mode == "selective" && option != "op") {
      if (option.find_first_not_of("0123456789") != std::string::npos || option.empty() || option.size() > 6)
        in_.refuse("activation_checkpoint.selective_ac_option", "'" + option + "' is neither op nor a whole number");
      return set(out_, "activation_checkpointing", "last-of-" + option,
                 said("activation_checkpoint.selective_ac_option"));
    }
    set(out_, "activation_checkpointing", mode == "selective" ? "selective-op" : mode, said(key));
  }

  static constexpr const char *kFloat8 = "quantize.linear.float8", *kMx = "quantize.linear.mx",
                              *kFloat8Class = "Float8LinearConverter", *kMxClass = "MXFP8LinearConverter";
  FlatConfig in_;
  const ModelGraph& model_;
  bool is_toml_;
  ReadConfig out_{.format = "torchtitan", .implementation = "torchtitan"};
  std::int64_t replicate_ = 1, shard_ = -1, tensor_ = 1;
};

}  // namespace

ReadConfig read_torchtitan(FlatConfig config, const ModelGraph& model, bool is_toml) {
  return TorchtitanReader(std::move(config), model, is_toml).read();
}

}  // namespace fsdp
