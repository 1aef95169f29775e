#include "planner/plan/check_dtypes.h"

#include <algorithm>
#include <string>

#include "models/graph/four_bits.h"
#include "models/graph/module_names.h"
#include "models/hub/tensors.h"
#include "models/index.h"
#include "planner/plan/refusal.h"
#include "planner/tensor/float8.h"

namespace fsdp {
namespace {

std::string shown(const Unit& u) { return u.modules.empty() || u.modules[0].empty() ? "the root" : u.modules[0]; }

void check_unit(const ShardingPlan& plan, const Unit& u, const std::string& at, std::string_view where) {
  const auto check = [&](const std::optional<DType>& dtype, const char* name_of) {
    if (!dtype) return;
    const std::string field = at + name_of;
    if (*dtype == DType::i64 || *dtype == DType::f8)
      refuse(where, field, std::string(name(*dtype)) + " cannot hold gradients", "use fp64, fp32, bf16 or fp16");
    const bool mixed = plan.dialect == Dialect::fsdp1 && of_adapters(u) && !u.output_dtype;  // MixedPrecision of it
    if (plan.dialect != Dialect::fsdp2 && !mixed)
      refuse(where, field, "dtypes of one unit are not known under " + std::string(name(plan.dialect)),
             "leave it out, or use fsdp2");
    if (plan.torch.before(2, 15) && !mixed)
      refuse(where, field, "dtypes of one unit are known as they are in PyTorch 2.15", "leave it out, or use fsdp2");
    if (plan.tensor() > 1)
      refuse(where, field, "dtypes of one unit are not known beside tensor parallelism",
             "leave it out, or use a mesh without a tensor dimension");
  };
  check(u.param_dtype, "param_dtype");
  check(u.reduce_dtype, "reduce_dtype");
  check(u.output_dtype, "output_dtype");
  if (!u.cast_forward_inputs && (plan.dialect != Dialect::fsdp2 || plan.torch.before(2, 15)))
    refuse(where, at + "cast_forward_inputs", "what a unit casts is known for fsdp2 of PyTorch 2.15", "leave it out");
  if (u.output_dtype && std::find(u.modules.begin(), u.modules.end(), "") != u.modules.end())
    refuse(where, at + "output_dtype", "casting what the root returns is not known here", "leave it out");
}

}  // namespace

void check_dtypes(const ShardingPlan& plan, std::string_view where) {
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    check_unit(plan, plan.units[u], "units[" + std::to_string(u) + "].", where);
  if (!plan.several_dtypes()) return;
  const auto refuse_if = [&](bool used, const char* name_of, const std::string& what) {
    if (used)
      refuse(where, name_of, what + " is not known beside units that compute in several dtypes",
             "leave it out, or use one param_dtype for all units");
  };
  refuse_if(plan.tensor() > 1, "mesh", "tensor parallelism");
  refuse_if(plan.float8.recipe != Float8Recipe::none, "float8", "multiplying in 8 bits");
  refuse_if(!plan.ignored.empty(), "ignored", "leaving parameters to themselves");
  refuse_if(plan.loop.chunk_head, "loop.chunk_head", "running the output layer a part at a time");
  for (const Unit& u : plan.units) {
    if (u.group_of) continue;  // has the hooks of another unit
    for (const std::string& module : u.modules)
      for (const std::string& checkpointed : plan.checkpointed)
        refuse_if(module != checkpointed && inside(module, checkpointed), "checkpointed",
                  "recomputing '" + checkpointed + "', which holds the unit '" + shown(u) + "',");
  }
}

namespace {

// te.Linear (transformer_engine/pytorch/utils.py, assert_dim_for_fp8_forward_exec), and Composer, whose precision
// context is around forward and loss alone: a checkpoint runs again in 16 bits, and may find other tensors saved.
void check_delayed(const ShardingPlan& plan, std::string_view where) {
  if (!plan.checkpointed.empty())
    refuse(
        where, "checkpointed",
        "what is recomputed beside TransformerEngine's products runs outside of te.fp8_autocast, in 16 bits, which is "
        "not known here",
        "recompute nothing, or use a recipe of torchao");
  for (const std::int64_t sequences : plan.micro_batches)
    if (sequences * plan.seq_len % 8 != 0)
      refuse(where, "seq_len",
             "TransformerEngine multiplies no micro-batch of " + std::to_string(sequences * plan.seq_len) +
                 " tokens in 8 bits, as that is no multiple of 8",
             "use one that is");
}

// torchao's casts by columns scale 32 tokens at a time; the output layer multiplies those of a part of the loss, where
// the plan says so.
void check_mxfp8(const ShardingPlan& plan, std::string_view where) {
  const std::int64_t parts = plan.loop.chunk_head ? plan.loss_chunks : 1;
  for (const std::int64_t sequences : plan.micro_batches)
    if (sequences * plan.seq_len % (32 * parts) != 0)
      refuse(where, "float8",
             "mxfp8 scales 32 tokens at a time, and a layer has " + std::to_string(sequences * plan.seq_len / parts) +
                 " of them",
             "choose micro-batches, or parts of the loss, of a multiple of 32 tokens");
}

// llm-foundry makes every layer of a block te.Linear, and filters none: only the output layer may be left.
void check_delayed(const ModelGraph& model, const std::vector<char>& converted, std::string_view where) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < model.ops.size(); ++i)
    if (model.ops[i].kind == OpKind::linear && converted[i] == 0) left.push_back(i);
  if (left.size() < 2) return;
  const Op& op = model.ops[left.front()];
  refuse(where, "float8",
         "te.Linear takes sides that are multiples of 16, and '" + model.modules[at(op.module)].name + "' is " +
             std::to_string(op.shape.in) + " by " + std::to_string(op.shape.out),
         "leave it out");
}

}  // namespace

void check_float8(const ShardingPlan& plan, std::string_view where) {
  const Float8Plan& f = plan.float8;
  const std::string recipe(name(f.recipe));
  if (f.recipe == Float8Recipe::none) {
    if (f.all_gather || f.precomputed_scales)
      refuse(where, "float8", "says how weights are gathered in 8 bits, but nothing multiplies in 8 bits",
             "use the recipe tensorwise, or leave it out");
    return;
  }
  if (plan.dialect != Dialect::fsdp2 && (plan.dialect != Dialect::fsdp1 || f.recipe != Float8Recipe::delayed))
    refuse(where, "float8", "products in 8 bits beside " + std::string(name(plan.dialect)) + " are not known here",
           "use fsdp2, or " + std::string(plan.dialect == Dialect::fsdp1 ? "the recipe delayed of TransformerEngine"
                                                                         : "leave it out"));
  if (plan.tensor() > 1)
    refuse(where, "float8", "products in 8 bits of layers split over tensor ranks are not known here",
           "use a tensor dimension of 1, or leave it out");
  if (plan.param_dtype != DType::bf16)
    refuse(where, "float8",
           recipe + " beside computing in " + std::string(name(plan.param_dtype)) + " is not known here",
           "set param_dtype to bf16");
  if (f.all_gather && f.recipe != Float8Recipe::tensorwise)
    refuse(where, "float8",
           f.recipe == Float8Recipe::delayed
               ? "TransformerEngine casts weights that are gathered, and gathers none in 8 bits"
               : "torchao gathers weights in 8 bits with one scale per tensor only, and " + recipe + " has more",
           "use tensorwise, or gather in 16 bits");
  if (f.precomputed_scales && !f.all_gather)
    refuse(where, "float8",
           "scales are computed ahead for weights that are gathered in 8 bits, and these are gathered in 16",
           "gather in 8 bits, or leave them out");
  if (f.recipe == Float8Recipe::delayed) check_delayed(plan, where);
  if (f.recipe == Float8Recipe::mxfp8) check_mxfp8(plan, where);
  if (!f.all_gather) return;
  if (plan.shard() == 1)
    refuse(where, "float8", "one rank gathers nothing, in 8 bits or others",
           "shard over at least 2 ranks, or gather in 16 bits");
  if (plan.master_dtype != DType::f32 && plan.master_dtype != DType::bf16)
    refuse(where, "float8",
           "casting shards in " + std::string(name(plan.master_dtype)) + " to 8 bits is not known here",
           "set master_dtype to fp32 or bf16, or gather in 16 bits");
  if (plan.offload)
    refuse(where, "float8", "casting shards that live in host memory to 8 bits is not known here",
           "set offload to false, or gather in 16 bits");
}

void check_float8(const ShardingPlan& plan, const ModelGraph& model, const std::vector<UnitLayout>& layouts,
                  std::string_view where) {
  if (plan.float8.recipe == Float8Recipe::none) return;
  const auto unknown = [&](bool broken, const std::string& what) {
    if (broken)
      refuse(where, "float8", "products in 8 bits of '" + model.name + "', " + what + ", are not known here",
             "leave it out");
  };
  unknown(!model.trace.empty(), "which PyTorch exported");
  unknown(std::any_of(model.ops.begin(), model.ops.end(), [](const Op& op) { return op.shape.experts.count > 0; }),
          "a mixture of experts");
  unknown(
      std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return !p.trainable; }),
      "some of whose parameters are frozen");
  const std::vector<char> converted = float8_layers(model, plan.float8);
  if (std::none_of(converted.begin(), converted.end(), [](char c) { return c != 0; }))
    refuse(where, "float8",
           "no linear layer of '" + model.name + "' is converted: sides that are multiples of " +
               (plan.float8.recipe == Float8Recipe::mxfp8 ? "32" : "16, the output layer left out"),
           "leave it out");
  if (plan.float8.recipe == Float8Recipe::delayed) check_delayed(model, converted, where);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const std::int64_t group = plan.units[u].reshard_after_forward.ranks;
    for (const ShardedParam& p : layouts[u].params) {
      if (!p.float8) continue;
      const std::string& weight = model.parameters[at(p.param)].name;
      if (group > 1 && group < plan.shard())
        refuse(where, "units[" + std::to_string(u) + "].reshard_after_forward",
               "PyTorch cannot gather '" + weight + "' in 8 bits from a part of the ranks",
               "use true or false, or gather in 16 bits");
      if (p.dim > 0)
        refuse(where, "shard_dims", "gathering '" + weight + "' in 8 bits is known on dimension 0 only",
               "leave it out there, or gather in 16 bits");
      if (p.rows % plan.shard() != 0)
        refuse(where, "float8",
               "torchao cannot gather '" + weight + "' in 8 bits: " + std::to_string(plan.shard()) +
                   " ranks do not divide its " + std::to_string(p.rows) + " rows",
               "shard over a divisor of them, or gather in 16 bits");
    }
  }
}

void check_trained_dtype(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  if (!plan.trained_dtype) return;
  const std::string kept(name(*plan.trained_dtype));
  const auto refuse_if = [&](bool broken, const std::string& problem, const std::string& remedy) {
    if (broken) refuse(where, "trained_dtype", problem, remedy);
  };
  refuse_if(plan.trained_dtype == plan.master_dtype, "all parameters are kept in " + kept, "leave it out");
  refuse_if(!model.trace.empty(), "'" + model.name + "' is as PyTorch exported it, in one dtype", "leave it out");
  refuse_if(
      std::all_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return p.trainable; }),
      "every parameter of '" + model.name + "' is trained", "set master_dtype to " + kept);
  const auto is_ignored = [&](const Parameter& p) {
    return std::any_of(plan.ignored.begin(), plan.ignored.end(),
                       [&](const std::string& name) { return p.name == name || inside(p.name, name); });
  };
  const bool ddp = plan.dialect == Dialect::ddp;
  for (const Parameter& p : model.parameters)
    refuse_if(p.trainable && lora_part(p) == LoraPart::none && (ddp || is_ignored(p)),
              std::string(ddp ? "ddp casts nothing" : "nothing casts what is ignored") + ": '" + p.name +
                  "' would be multiplied in " + kept + " with " + std::string(name(plan.param_dtype)) +
                  ", which PyTorch refuses (only peft's adapters cast)",
              ddp ? "leave it out, or use fsdp2" : "leave it out, or let a unit hold that");
}

void check_four_bits(const ShardingPlan& plan, const ModelGraph& model, const std::vector<UnitLayout>& layouts,
                     std::string_view where) {
  if (four_bits_of(model) == FourBits::none) return;
  if (size_of(plan.master_dtype) != 2)
    refuse(where, "master_dtype",
           "weights in 4 bits stand in elements of 16 bits, which are no " + std::string(name(plan.master_dtype)),
           "set master_dtype to bf16, and trained_dtype to fp32 if adapters are");
  if (model.prepared && plan.dialect != Dialect::ddp)
    refuse(where, "dialect", "trl prepares no model in 4 bits that is sharded",
           "use ddp, or leave prepared out (--lora)");
  if (model.prepared && plan.param_dtype != DType::bf16)
    refuse(where, "param_dtype", "a prepared model was recorded under autocast in bf16 alone",
           "set param_dtype to bf16");
  if (model.prepared && plan.trained_dtype != DType::f32)
    refuse(where, "trained_dtype", "peft makes the adapters of a prepared model in fp32", "set trained_dtype to fp32");
  if (model.prepared && plan.checkpoint_policy != CheckpointPolicy::full)
    refuse(where, "checkpoint_policy", "checkpoints of a prepared model are reentrant, which keep no results",
           "use full, or leave prepared out (--lora)");
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const std::vector<ShardedParam>& params = layouts[u].params;
    const bool packed = std::any_of(params.begin(), params.end(),
                                    [&](const ShardedParam& p) { return is_packed(model.parameters[at(p.param)]); });
    if (packed && layouts[u].param_dtype != plan.master_dtype)
      refuse(where, "param_dtype",
             "casting weights in 4 bits of " + shown(plan.units[u]) + " to " +
                 std::string(name(layouts[u].param_dtype)) + " would change them",
             "set param_dtype to " + std::string(name(plan.master_dtype)) + ", which they are kept in");
  }
  for (const ShardDim& d : plan.shard_dims)
    for (const Parameter& p : model.parameters)
      if (is_packed(p) && p.name == d.parameter && d.dim != 0)
        refuse(where, "shard_dims", "'" + p.name + "' is packed, [" + std::to_string(p.shape[0]) + ", 1]",
               "leave it out there");
}

}  // namespace fsdp
