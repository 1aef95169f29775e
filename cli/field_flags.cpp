#include "cli/field_flags.h"

#include <algorithm>
#include <iterator>

namespace fsdp::cli {
namespace {

struct FieldRow {
  std::string_view field, flag;
};
// clang-format off
constexpr FieldRow kFieldFlags[] = {
    // what a command works on
    {"model", "--model"},
    {"lora", "--lora"},
    {"cluster", "--cluster"},
    {"cluster_file", "--file"},
    {"topology", "--topo"},
    {"layers", "--layers"},
    {"hidden", "--hidden"},
    {"heads", "--heads"},
    {"kv_heads", "--kv-heads"},
    {"head_dim", "--head-dim"},
    {"ffn", "--ffn"},
    {"vocab", "--vocab"},
    {"experts", "--experts"},
    {"experts_per_token", "--experts-per-token"},
    {"gpus", "--gpus"},
    {"costs", "--costs"},
    {"implementation", "--implementation"},
    {"memory_limit", "--memory-limit"},
    {"price", "--price"},
    // a plan's fields, and the choices that a search starts from
    {"dialect", "--dialect"},
    {"mesh", "--replicate"},
    {"replicate", "--replicate"},
    {"tensor", "--tensor"},
    {"async_tensor", "--async-tensor"},
    {"tensor_plan", "--tensor"},
    {"expert_shard", "--expert-shard"},
    {"shard", "--expert-shard"},     // of units that are sharded over other ranks than the plan's mesh
    {"group_of", "--expert-shard"},  // the same
    {"units", "--wrap"},
    {"modules", "--wrap"},
    {"wrap", "--wrap"},
    {"reshard_after_forward", "--reshard-after-forward"},
    {"checkpointed", "--activation-checkpointing"},
    {"checkpoint_policy", "--activation-checkpointing"},
    {"reentrant", "--activation-checkpointing"},
    {"trained_outermost", "--wrap"},
    {"activation_checkpointing", "--activation-checkpointing"},
    {"micro_batch", "--micro-batch"},
    {"micro_batches", "--grad-accum"},
    {"grad_accum", "--grad-accum"},
    {"global_batch", "--global-batch"},
    {"global_batch_tokens", "--global-batch-tokens"},
    {"seq_len", "--seq-len"},
    {"grad_sync", "--grad-sync"},
    {"forward_prefetch", "--forward-prefetch"},
    {"backward_prefetch", "--backward-prefetch"},
    {"backward_post", "--backward-prefetch"},
    {"reduce_scatter_buffers", "--reduce-scatter-buffers"},
    {"separate_reduce_scatter", "--separate-reduce-scatter"},
    {"limit_all_gathers", "--limit-all-gathers"},
    {"use_orig_params", "--use-orig-params"},
    {"compile", "--compile"},
    {"loss_chunks", "--loss-chunks"},
    {"chunk_head", "--chunk-head"},
    {"loss_in_model", "--loss-in-model"},
    {"host_threads", "--host-threads"},
    {"offload", "--offload"},
    {"offload_activations", "--offload-activations"},
    {"offload_optimizer", "--offload-optimizer"},
    {"param_dtype", "--param-dtype"},
    {"reduce_dtype", "--reduce-dtype"},
    {"master_dtype", "--master-dtype"},
    {"trained_dtype", "--trained-dtype"},
    {"float8", "--float8"},
    {"kind", "--optimizer"},
    {"optimizer", "--optimizer"},
    {"lr", "--lr"},
    {"weight_decay", "--weight-decay"},
    {"momentum", "--momentum"},
    {"clip_norm", "--clip-norm"},
    {"seed", "--seed"},
    {"emit", "--emit"},
    {"target", "--target"},
    // running a plan
    {"backend", "--backend"},
    {"cuda_backend", "--backend cuda"},
    {"mpi_backend", "--backend mpi"},
    {"devices", "--devices"},
    {"virtual_ranks", "--virtual-ranks"},
    {"emulate_world", "--emulate-world"},
    {"steps", "--steps"},
    {"until_noise", "--until-noise"},
    {"save", "--save"},
    // calibrating
    {"ranks", "--ranks"},
    {"dtype", "--dtype"},
    {"budget", "--budget"},
    {"cross_validation", "--cross-validate"},
};
// clang-format on

// "units[3].modules" -> "modules"
std::string_view last_name(std::string_view path) {
  path.remove_prefix(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1);
  return path.substr(0, path.find('['));
}

InputError naming(const InputError& error, std::string_view field) {
  const std::string_view flag = flag_of(field);
  return flag.empty() ? error : error.at(flag);
}

}  // namespace

std::string_view flag_of(std::string_view field) {
  const auto* const row =
      std::find_if(std::begin(kFieldFlags), std::end(kFieldFlags), [&](const FieldRow& r) { return r.field == field; });
  return row == std::end(kFieldFlags) ? std::string_view() : row->flag;
}

InputError naming_flags(const InputError& error) { return error.file().empty() ? naming(error, error.field()) : error; }

InputError naming_plan_flags(const InputError& error) {
  return error.file() == "plan" ? naming(error, last_name(error.field())) : error;
}

InputError said_of(const std::string& flag, const InputError& error) {
  const std::string& file = error.file();
  return error.at(Origin(file.empty() ? flag : flag + ": " + file, error.field()));
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace fsdp::cli
