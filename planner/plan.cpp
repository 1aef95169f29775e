#include "planner/plan.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include "models/input/digest.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/names.h"
#include "models/units.h"

namespace fsdp {
namespace {

// Names for people and files, in the order in which errors list them.
constexpr std::string_view label(Dialect d) {
  switch (d) {
    case Dialect::fsdp2: return "fsdp2";
    case Dialect::fsdp1: return "fsdp1";
    case Dialect::ddp: return "ddp";
  }
  return {};
}
static_assert(names_all<Dialect>(label, kDialects));

constexpr std::string_view label(GradSync s) {
  switch (s) {
    case GradSync::every: return "every";
    case GradSync::last: return "last";
    case GradSync::reduce_scatter_only: return "reduce-scatter-only";
  }
  return {};
}
static_assert(names_all<GradSync>(label, kGradSyncs));

constexpr std::string_view label(CheckpointPolicy c) {
  switch (c) {
    case CheckpointPolicy::full: return "full";
    case CheckpointPolicy::selective_op: return "selective-op";
  }
  return {};
}
static_assert(names_all<CheckpointPolicy>(label, kCheckpointPolicies));

constexpr std::string_view label(TensorStyle s) {
  switch (s) {
    case TensorStyle::colwise: return "colwise";
    case TensorStyle::rowwise: return "rowwise";
    case TensorStyle::sequence: return "sequence";
  }
  return {};
}
static_assert(names_all<TensorStyle>(label, kTensorStyles));

constexpr std::string_view label(Float8Recipe r) {
  switch (r) {
    case Float8Recipe::none: return "none";
    case Float8Recipe::tensorwise: return "tensorwise";
    case Float8Recipe::rowwise: return "rowwise";
    case Float8Recipe::rowwise_with_gw_hp: return "rowwise_with_gw_hp";
    case Float8Recipe::delayed: return "delayed";
    case Float8Recipe::mxfp8: return "mxfp8";
  }
  return {};
}
static_assert(names_all<Float8Recipe>(label, kFloat8Recipes));

}  // namespace

std::string_view name(Dialect d) { return label(d); }
std::string_view name(GradSync s) { return label(s); }
std::string name(Reshard r) {
  if (r.ranks > 1) return std::to_string(r.ranks);
  return r == Reshard::automatic ? "auto" : r == Reshard::yes ? "true" : "false";
}
std::string_view name(CheckpointPolicy c) { return label(c); }
std::string_view name(TensorStyle s) { return label(s); }
std::string_view name(Float8Recipe r) { return label(r); }
std::string loop_text(const LoopPlan& loop) {
  std::string text;
  const auto add = [&](bool chosen, const std::string& words) {
    if (chosen) text += (text.empty() ? "" : ", ") + words;
  };
  add(loop.unshard_async, "gathers with handles");
  add(loop.post_optim_event, "gathers wait for the optimizer alone");
  add(loop.last_backward, "only the last backward waits");
  add(loop.forwards > 1, std::to_string(loop.forwards) + " forwards per backward");
  add(loop.loss_in_model, "loss in the model");
  add(loop.host_threads > 0, counted(loop.host_threads, "thread") + " of the host for what is offloaded");
  add(loop.chunk_head, "output layer with each loss chunk");
  add(!loop.unshard.empty(), std::to_string(loop.unshard.size()) + " units gathered by hand");
  add(!loop.reshard.empty(), std::to_string(loop.reshard.size()) + " units resharded by hand");
  return text;
}

std::string kept_words(const ShardingPlan& plan) {
  const std::string kept(name(plan.master_dtype));
  return plan.trained_dtype ? kept + " (" + std::string(name(*plan.trained_dtype)) + " of what is trained)" : kept;
}

std::string dialect_text(const ShardingPlan& plan) {
  std::string text(name(plan.dialect));
  if (plan.torch != TorchVersion{})
    text += "@" + std::to_string(plan.torch.major) + "." + std::to_string(plan.torch.minor);
  return text;
}

Dialect parse_dialect(std::string_view text, const Origin& where) {
  return parse_name<Dialect>(label, kDialects, text, where, "dialect");
}
GradSync parse_grad_sync(std::string_view text, const Origin& where) {
  return parse_name<GradSync>(label, kGradSyncs, text, where, "gradient sync");
}
Reshard parse_reshard(std::string_view text, const Origin& where) {
  std::int64_t ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error == std::errc{} && end == text.data() + text.size()) {
    if (ranks >= 1) return {ranks};
    throw InputError(where, "'" + std::string(text) + "' ranks", "use auto, true, false or a number of at least 1");
  }
  for (const Reshard r : {Reshard::automatic, Reshard::yes, Reshard::no})
    if (text == name(r)) return r;
  throw InputError(where, "unknown value of reshard-after-forward '" + std::string(text) + "'",
                   "use one of: auto, true, false");
}
CheckpointPolicy parse_checkpoint_policy(std::string_view text, const Origin& where) {
  return parse_name<CheckpointPolicy>(label, kCheckpointPolicies, text, where, "checkpoint policy");
}
TensorStyle parse_tensor_style(std::string_view text, const Origin& where) {
  return parse_name<TensorStyle>(label, kTensorStyles, text, where, "tensor style");
}
Float8Recipe parse_float8_recipe(std::string_view text, const Origin& where) {
  return parse_name<Float8Recipe>(label, kFloat8Recipes, text, where, "float8 recipe");
}
TorchVersion parse_torch_version(std::string_view text, const Origin& where) {
  TorchVersion v;
  const char* const last = text.data() + text.size();
  const auto major = std::from_chars(text.data(), last, v.major);
  const bool dot = major.ec == std::errc{} && major.ptr != last && *major.ptr == '.';
  const auto minor = dot ? std::from_chars(major.ptr + 1, last, v.minor) : major;
  if (!dot || minor.ec != std::errc{} || minor.ptr != last || v.major < 1 || v.minor < 0)
    throw InputError(where, "'" + std::string(text) + "' is not a PyTorch release", "write it as 2.11");
  return v;
}

std::int64_t ShardingPlan::dim(std::string_view dimension) const {
  for (const MeshDim& d : mesh) {
    if (d.name == dimension) return d.size;
  }
  return 1;
}

std::int64_t ShardingPlan::own_shard() const {
  for (const Unit& unit : units)
    if (unit.shard > 0) return unit.shard;
  return 0;
}

std::int64_t ShardingPlan::ranks() const {
  std::int64_t product = 1;
  for (const MeshDim& d : mesh) product = checked_mul(product, d.size, "plan: mesh");
  return product;
}

std::int64_t ShardingPlan::sequences_per_rank() const {
  std::int64_t sum = 0;
  for (const std::int64_t sequences : micro_batches) sum = checked_add(sum, sequences, "plan: micro_batches");
  return sum;
}

std::int64_t ShardingPlan::tokens_per_step() const {
  return checked_mul(checked_mul(sequences_per_rank(), seq_len, "plan: micro_batches"), data_ranks(),
                     "plan: micro_batches");
}

bool of_adapters(const Unit& unit) {
  return !unit.modules.empty() && std::all_of(unit.modules.begin(), unit.modules.end(), [](const std::string& m) {
    return m.ends_with(".lora_A.default") || m.ends_with(".lora_B.default");
  });
}

bool ShardingPlan::several_dtypes() const {
  return std::any_of(units.begin(), units.end(), [&](const Unit& u) {
    return (!of_adapters(u) && u.param_dtype.value_or(param_dtype) != param_dtype) || u.output_dtype ||
           !u.cast_forward_inputs;
  });
}

// What is for people only (names) or can be written in two ways (a mesh dimension of size 1) does not count.
std::string ShardingPlan::digest() const {
  ShardingPlan canonical = *this;
  canonical.wrap.clear();
  canonical.model_name.clear();
  canonical.mesh = {{"replicate", replicate()}, {"shard", shard()}};
  if (tensor() > 1) canonical.mesh.push_back({"tensor", tensor()});
  return digest_of(to_json_text(canonical));
}

}  // namespace fsdp
