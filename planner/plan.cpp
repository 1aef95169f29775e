#include "planner/plan.h"

#include <charconv>
#include <string>
#include <system_error>

#include "models/input/digest.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

template <class E>
struct Named {
  std::string_view text;
  E value;
};

// One table per closed choice: names for people and files, in the order in which errors list them.
constexpr Named<Dialect> kDialects[] = {{"fsdp2", Dialect::fsdp2}, {"fsdp1", Dialect::fsdp1}, {"ddp", Dialect::ddp}};
constexpr Named<GradSync> kGradSyncs[] = {
    {"every", GradSync::every}, {"last", GradSync::last}, {"reduce-scatter-only", GradSync::reduce_scatter_only}};
constexpr Named<Reshard> kReshards[] = {{"auto", Reshard::automatic}, {"true", Reshard::yes}, {"false", Reshard::no}};
constexpr Named<CheckpointPolicy> kCheckpointPolicies[] = {{"full", CheckpointPolicy::full},
                                                           {"selective-op", CheckpointPolicy::selective_op}};
constexpr Named<OptimizerKind> kOptimizers[] = {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}};

template <class E, std::size_t N>
std::string_view name_of(const Named<E> (&names)[N], E value) {
  for (const Named<E>& n : names) {
    if (n.value == value) return n.text;
  }
  return "?";
}

template <class E, std::size_t N>
E parse_name(const Named<E> (&names)[N], std::string_view text, const Origin& where, const std::string& what) {
  std::string known;
  for (const Named<E>& n : names) {
    if (n.text == text) return n.value;
    known += (known.empty() ? "" : ", ") + std::string(n.text);
  }
  throw InputError(where, "unknown " + what + " '" + std::string(text) + "'", "use one of: " + known);
}

}  // namespace

std::string_view name(Dialect d) { return name_of(kDialects, d); }
std::string_view name(GradSync s) { return name_of(kGradSyncs, s); }
std::string name(Reshard r) { return r.ranks > 1 ? std::to_string(r.ranks) : std::string(name_of(kReshards, r)); }
std::string_view name(CheckpointPolicy c) { return name_of(kCheckpointPolicies, c); }
std::string dialect_text(const ShardingPlan& plan) {
  std::string text(name(plan.dialect));
  if (plan.torch != TorchVersion{})
    text += "@" + std::to_string(plan.torch.major) + "." + std::to_string(plan.torch.minor);
  return text;
}
std::string_view name(OptimizerKind o) { return name_of(kOptimizers, o); }

Dialect parse_dialect(std::string_view text, const Origin& where) {
  return parse_name(kDialects, text, where, "dialect");
}
GradSync parse_grad_sync(std::string_view text, const Origin& where) {
  return parse_name(kGradSyncs, text, where, "gradient sync");
}
Reshard parse_reshard(std::string_view text, const Origin& where) {
  std::int64_t ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error == std::errc{} && end == text.data() + text.size()) {
    if (ranks >= 1) return {ranks};
    throw InputError(where, "'" + std::string(text) + "' ranks", "use auto, true, false or a number of at least 1");
  }
  return parse_name(kReshards, text, where, "value of reshard-after-forward");
}
CheckpointPolicy parse_checkpoint_policy(std::string_view text, const Origin& where) {
  return parse_name(kCheckpointPolicies, text, where, "checkpoint policy");
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
OptimizerKind parse_optimizer(std::string_view text, const Origin& where) {
  return parse_name(kOptimizers, text, where, "optimizer");
}

std::int64_t ShardingPlan::dim(std::string_view dimension) const {
  for (const MeshDim& d : mesh) {
    if (d.name == dimension) return d.size;
  }
  return 1;
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
  return checked_mul(checked_mul(sequences_per_rank(), seq_len, "plan: micro_batches"), ranks(), "plan: micro_batches");
}

// What is for people only (names) or can be written in two ways (a mesh dimension of size 1) does not count.
std::string ShardingPlan::digest() const {
  ShardingPlan canonical = *this;
  canonical.wrap.clear();
  canonical.model_name.clear();
  canonical.mesh = {{"replicate", replicate()}, {"shard", shard()}};
  return digest_of(to_json_text(canonical));
}

}  // namespace fsdp
