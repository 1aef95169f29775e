// Nothing of a plan is lost in silence: for every field of a plan and every format, what becomes of it in the file.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/input/error.h"
#include "planner/emit.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/families.h"
#include "planner/wrap.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using Effect = Inexact::Effect;

namespace {

// What a format does with a value that is not the base plan's.
enum class Fate {
  expressed,  // the file differs
  written,    // the file has another value: said, and the plan that the file describes has it
  unknown,    // the same, but no plan can say it
  elsewhere,  // said: it is set elsewhere, or without effect on time and memory
};
using enum Fate;

struct FieldCase {
  const char* field;  // a key of plan.json, or of its units
  std::function<void(ShardingPlan&)> change;
  Fate pytorch, accelerate, torchtitan;
};

const ModelGraph& model() {
  static const ModelGraph graph = small_llama({.layers = 4, .hidden = 32, .inner = 48});
  return graph;
}

// As near to what the format can express as a plan can be, so that a change stands alone.
ShardingPlan base_of(const std::string& format) {
  ShardingPlan plan = naive_plan(model(), {.ranks = 8, .replicate = 2, .seq_len = 16, .micro_batches = {1, 1}});
  plan.wrap = format == "automodel" ? "block" : "titan";
  plan.units = wrap(model(), plan.wrap, "test");
  plan.clip_norm = 1.0;
  return plan;
}

std::size_t block_count() {
  return static_cast<std::size_t>(
      std::count_if(model().modules.begin(), model().modules.end(), [](const Module& m) { return m.block; }));
}

// The unit of the first block.
Unit& block_unit(ShardingPlan& plan) {
  return *std::find_if(plan.units.begin(), plan.units.end(),
                       [](const Unit& u) { return u.modules.front() == "model.layers.0"; });
}
Unit& embedding_unit(ShardingPlan& plan) {  // or the root, which holds it
  const auto unit = std::find_if(plan.units.begin(), plan.units.end(),
                                 [](const Unit& u) { return u.modules.front() == "model.embed_tokens"; });
  return unit == plan.units.end() ? plan.units.back() : *unit;
}

void split_in_two(ShardingPlan& plan) {
  plan.mesh = {{"replicate", 2}, {"shard", 2}, {"tensor", 2}};
  plan.tensor_plan = family_tensor_plan(model());
}

template <class T>
std::function<void(ShardingPlan&)> set(T ShardingPlan::*member, std::type_identity_t<T> value) {
  return [=](ShardingPlan& plan) { plan.*member = value; };
}
template <class T>
std::function<void(ShardingPlan&)> set_unit(T Unit::*member, std::type_identity_t<T> value) {
  return [=](ShardingPlan& plan) { block_unit(plan).*member = value; };
}

const std::vector<FieldCase>& fields() {
  using P = ShardingPlan;
  using Names = std::vector<std::string>;
  static const std::vector<FieldCase> list = {
      {"dialect", set(&P::torch, {2, 14}), elsewhere, elsewhere, elsewhere},
      {"mesh",
       [](P& p) {
         p.mesh = {{"shard", 8}};
       },
       expressed, expressed, expressed},
      {"seq_len", set(&P::seq_len, 32), expressed, elsewhere, expressed},
      {"micro_batches", set(&P::micro_batches, {2, 2}), expressed, elsewhere, expressed},
      {"micro_batches", set(&P::micro_batches, {1, 1, 1}), expressed, elsewhere, expressed},
      {"micro_batches", set(&P::micro_batches, {2, 1}), expressed, elsewhere, written},
      {"grad_sync", set(&P::grad_sync, GradSync::reduce_scatter_only), expressed, written, written},
      {"forward_prefetch", set(&P::forward_prefetch, 2), expressed, written, written},
      {"backward_prefetch", set(&P::backward_prefetch, 0), expressed, written, written},
      {"backward_prefetch", set(&P::backward_prefetch, 3), expressed, written, written},
      {"param_dtype", set(&P::param_dtype, DType::f32), expressed, expressed, expressed},
      {"param_dtype", set(&P::param_dtype, DType::f64), expressed, unknown, written},
      {"param_dtype", set(&P::param_dtype, DType::f16), expressed, expressed, written},
      {"reduce_dtype", set(&P::reduce_dtype, DType::f16), expressed, written, written},
      {"master_dtype", set(&P::master_dtype, DType::bf16), expressed, unknown, expressed},
      {"master_dtype", set(&P::master_dtype, DType::f64), expressed, unknown, unknown},
      {"optimizer", [](P& p) { p.optimizer.kind = OptimizerKind::sgd; }, expressed, elsewhere, written},
      {"optimizer", [](P& p) { p.optimizer.kind = OptimizerKind::adamw_8bit; }, expressed, elsewhere, written},
      {"optimizer",
       [](P& p) {
         p.optimizer.kind = OptimizerKind::sgd;
         p.optimizer.momentum = 0.5;
       },
       expressed, elsewhere, written},
      {"optimizer", [](P& p) { p.optimizer.lr = 0.5; }, expressed, elsewhere, expressed},
      {"optimizer", [](P& p) { p.optimizer.beta1 = 0.5; }, expressed, elsewhere, expressed},
      {"optimizer", [](P& p) { p.optimizer.beta2 = 0.5; }, expressed, elsewhere, expressed},
      {"optimizer", [](P& p) { p.optimizer.eps = 0.5; }, expressed, elsewhere, expressed},
      {"optimizer", [](P& p) { p.optimizer.weight_decay = 0.5; }, expressed, elsewhere, expressed},
      {"clip_norm", set(&P::clip_norm, std::nullopt), expressed, elsewhere, written},
      {"clip_norm", set(&P::clip_norm, 2.5), expressed, elsewhere, expressed},
      {"clip_norm_type", set(&P::clip_norm_type, 3), expressed, elsewhere, written},
      {"seed", set(&P::seed, 77), expressed, elsewhere, elsewhere},
      {"checkpointed", [](P& p) { set_checkpointing(p, model(), "full", "test"); }, expressed, expressed, expressed},
      {"checkpointed", [](P& p) { set_checkpointing(p, model(), "every-2", "test"); }, expressed, written, written},
      {"checkpointed", set(&P::checkpointed, {"model.layers.1", "model.layers.3"}), expressed, written, expressed},
      {"checkpointed", set(&P::checkpointed, {"model.layers.0.mlp"}), expressed, written, written},
      {"checkpoint_policy", [](P& p) { set_checkpointing(p, model(), "selective-op", "test"); }, expressed, written,
       expressed},
      {"loss_chunks", set(&P::loss_chunks, 4), expressed, written, written},
      {"loop", [](P& p) { p.loop.forwards = 2; }, written, written, written},
      {"loop", [](P& p) { p.loop.unshard_async = true; }, written, written, written},
      {"loop", [](P& p) { p.loop.loss_in_model = true; }, expressed, elsewhere, written},
      {"loop", [](P& p) { p.loop.host_threads = 8; }, expressed, elsewhere, elsewhere},
      {"offload", [](P& p) { p.offload = true, p.clip_norm.reset(); }, expressed, expressed, expressed},
      {"offload_optimizer", set(&P::offload_optimizer, true), expressed, written, written},
      {"float8",
       [](P& p) {
         p.float8 = {Float8Recipe::tensorwise, true, true};
       },
       written, expressed, expressed},
      {"float8",
       [](P& p) {
         p.float8 = {Float8Recipe::tensorwise, true};
       },
       written, written, expressed},
      {"float8", [](P& p) { p.float8 = {Float8Recipe::rowwise_with_gw_hp}; }, written, expressed, expressed},
      {"float8", [](P& p) { p.float8 = {Float8Recipe::delayed}; }, written, written, written},
      {"float8", [](P& p) { p.float8 = {Float8Recipe::mxfp8}, p.seq_len = 32; }, written, written, expressed},
      {"tensor_plan", [](P& p) { split_in_two(p); }, expressed, written, expressed},
      {"tensor_plan", [](P& p) { split_in_two(p), p.tensor_plan.loss_parallel = false; }, expressed, written,
       expressed},
      {"ignored", [](P& p) { p.clip_norm.reset(), p.ignored = {"model.norm"}, p.param_dtype = DType::f32; }, expressed,
       written, written},
      {"shard_dims", set(&P::shard_dims, {{"model.layers.0.mlp.down_proj.weight", 1}}), expressed, written, written},
      {"reduce_scatter_buffers", set(&P::reduce_scatter_buffers, 2), expressed, written, written},
      {"separate_reduce_scatter", set(&P::separate_reduce_scatter, true), expressed, written, written},
      {"force_sum_reduction", set(&P::force_sum_reduction, true), expressed, written, written},
      {"units", [](P& p) { p.units = wrap(model(), "block:2", "test"); }, expressed, written, written},
      {"units", [](P& p) { p.units = wrap(model(), "params:900", "test"); }, expressed, written, written},
      {"reshard_after_forward", set_unit(&Unit::reshard_after_forward, Reshard::no), expressed, written, written},
      {"reshard_after_forward", set_unit(&Unit::reshard_after_forward, Reshard{2}), expressed, written, written},
      {"reshard_after_forward", [](P& p) { set_reshard(p, Reshard::no); }, expressed, expressed, expressed},
      {"reshard_after_backward", set_unit(&Unit::reshard_after_backward, false), expressed, written, written},
      {"unshard_in_backward", [](P& p) { embedding_unit(p).unshard_in_backward = false; }, expressed, written, written},
      {"grad_sync", set_unit(&Unit::grad_sync, GradSync::last), expressed, written, written},
      {"gradient_divide_factor", set_unit(&Unit::gradient_divide_factor, 3.0), expressed, written, written},
      {"forward_prefetch", set_unit(&Unit::forward_prefetch, Names{"model.layers.2"}), expressed, written, written},
      {"backward_prefetch", set_unit(&Unit::backward_prefetch, Names{"model.layers.1"}), expressed, written, written},
      {"param_dtype", set_unit(&Unit::param_dtype, DType::f32), expressed, written, written},
      {"reduce_dtype", set_unit(&Unit::reduce_dtype, DType::bf16), expressed, written, written},
      {"output_dtype", set_unit(&Unit::output_dtype, DType::bf16), expressed, written, written},
      {"cast_forward_inputs", set_unit(&Unit::cast_forward_inputs, false), expressed, written, written},
  };
  return list;
}

// Choices of fsdp1, which Accelerate alone can write.
const std::vector<FieldCase>& fsdp1_fields() {
  using P = ShardingPlan;
  static const std::vector<FieldCase> list = {
      {"backward_post", set(&P::backward_post, true), elsewhere, expressed, elsewhere},
      {"limit_all_gathers", set(&P::limit_all_gathers, false), elsewhere, written, elsewhere},
      {"use_orig_params", set(&P::use_orig_params, false), elsewhere, expressed, elsewhere},
      {"forward_prefetch", set(&P::forward_prefetch, 1), elsewhere, expressed, elsewhere},
      {"backward_prefetch", set(&P::backward_prefetch, 0), elsewhere, expressed, elsewhere},
      {"mesh",
       [](P& p) {
         p.mesh = {{"shard", 8}};
       },
       elsewhere, expressed, elsewhere},
      {"checkpointed", [](P& p) { set_checkpointing(p, model(), "full", "test"); }, elsewhere, expressed, elsewhere},
      {"checkpointed", [](P& p) { set_checkpointing(p, model(), "every-2", "test"); }, elsewhere, written, elsewhere},
      {"reshard_after_forward", [](P& p) { set_reshard(p, Reshard::no); }, elsewhere, expressed, elsewhere},
      {"reshard_after_forward", set_unit(&Unit::reshard_after_forward, Reshard::no), elsewhere, written, elsewhere},
      {"ignored",
       [](P& p) { p.clip_norm.reset(), p.ignored = {"model.norm"}, p.param_dtype = p.reduce_dtype = DType::f32; },
       elsewhere, written, elsewhere},
      {"loss_chunks", set(&P::loss_chunks, 4), elsewhere, written, elsewhere},
  };
  return list;
}

// Without comments, which hold the plan's digest.
std::string body(const std::string& text) {
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);)
    if (line.empty() || line[0] != '#') out += line + "\n";
  return out;
}

bool same(const Inexact& a, const Inexact& b) { return a.field == b.field && a.what == b.what && a.effect == b.effect; }

// What is said about `field` of this plan and not of the base.
std::vector<Inexact> said(const Emitted& out, const Emitted& base, const std::string& field) {
  std::vector<Inexact> list;
  for (const Inexact& i : out.cannot_express)
    if (i.text().find(field) != std::string::npos &&
        std::none_of(base.cannot_express.begin(), base.cannot_express.end(), [&](auto& b) { return same(i, b); }))
      list.push_back(i);
  return list;
}

bool any_effect(const std::vector<Inexact>& list, Effect effect) {
  return std::any_of(list.begin(), list.end(), [=](const Inexact& i) { return i.effect == effect; });
}

// Keys of plan.json in which two plans differ; those of units by themselves.
std::set<std::string> differing(const ShardingPlan& a, const ShardingPlan& b) {
  const auto x = nlohmann::json::parse(to_json_text(a)), y = nlohmann::json::parse(to_json_text(b));
  std::set<std::string> keys;
  const auto compare = [&](const nlohmann::json& one, const nlohmann::json& other) {
    for (const auto& [key, value] : one.items())
      if (key != "units" && key != "wrap" && (!other.contains(key) || other[key] != value))
        keys.insert(key == "modules" ? "units" : key);
  };
  compare(x, y), compare(y, x);
  if (x["units"].size() != y["units"].size()) keys.insert("units");
  else
    for (std::size_t u = 0; u < x["units"].size(); ++u)
      compare(x["units"][u], y["units"][u]), compare(y["units"][u], x["units"][u]);
  return keys;
}

void check_fate(const std::string& format, const FieldCase& c, Fate fate, const ShardingPlan& base) {
  ShardingPlan plan = base;
  c.change(plan);
  CAPTURE(format);
  CAPTURE(c.field);
  CAPTURE(static_cast<int>(fate));
  const Emitted before = emit(format, base, model()), out = emit(format, plan, model());
  CAPTURE(out.text.substr(0, 3000));
  const std::vector<Inexact> list = said(out, before, c.field);
  const bool changes = any_effect(list, Effect::written) || any_effect(list, Effect::unknown);
  if (fate == expressed) {
    CHECK(body(out.text) != body(before.text));
    CHECK_FALSE(changes);
  }
  if (fate == elsewhere) CHECK((any_effect(list, Effect::none) && !changes));
  if (fate == written) {
    CHECK(any_effect(list, Effect::written));
    CHECK(out.changes_prediction());
    CHECK(differing(plan, out.written).contains(c.field));
  }
  if (fate == unknown) {
    CHECK(any_effect(list, Effect::unknown));
    CHECK(out.changes_prediction());
    CHECK_FALSE(out.predictable());
  }
  // The file's own plan differs from the plan in nothing that is not said, and is a legal plan.
  for (const std::string& key : differing(plan, out.written)) {
    CAPTURE(key);
    CHECK(std::any_of(out.cannot_express.begin(), out.cannot_express.end(),
                      [&](const Inexact& i) { return i.field == key && i.effect == Effect::written; }));
  }
  CHECK_NOTHROW(check(out.written, model(), "written"));
}

}  // namespace

TEST_CASE("every field of a plan is in an emitted file, or named with what the file does instead") {
  for (const FieldCase& c : fields()) {
    check_fate("pytorch", c, c.pytorch, base_of("pytorch"));
    check_fate("accelerate", c, c.accelerate, base_of("accelerate"));
    check_fate("torchtitan-toml", c, c.torchtitan, base_of("torchtitan-toml"));
  }
  ShardingPlan fsdp1 = base_of("accelerate");
  fsdp1.dialect = Dialect::fsdp1;
  fsdp1.grad_sync = GradSync::last;
  fsdp1.wrap = "class:LlamaDecoderLayer";
  fsdp1.units = wrap(model(), fsdp1.wrap, "test");
  for (const FieldCase& c : fsdp1_fields()) check_fate("accelerate", c, c.accelerate, fsdp1);
}

TEST_CASE("every format: what changes in a plan is in the file or named, and the file's own plan is a legal one") {
  for (const std::string& format : emit_formats()) {
    const ShardingPlan base = base_of(format);
    const Emitted before = emit(format, base, model());
    for (const FieldCase& c : fields()) {
      const bool root = base.units.size() == 1 + block_count() && std::string(c.field) == "unshard_in_backward";
      if (root) continue;  // of an embedding alone: no plan has it of the root
      CAPTURE(format);
      CAPTURE(std::string(c.field));
      ShardingPlan plan = base;
      c.change(plan);
      const Emitted out = emit(format, plan, model());
      CAPTURE(out.text);
      const auto says = [&](const std::string& field, bool changes) {
        return std::any_of(out.cannot_express.begin(), out.cannot_express.end(), [&](const Inexact& i) {
          return i.field == field && (!changes || i.effect == Effect::written);
        });
      };
      CHECK(
          (body(out.text) != body(before.text) || says(c.field, false) || out.cannot_express != before.cannot_express));
      for (const std::string& key : differing(plan, out.written)) {
        CAPTURE(key);
        CHECK(says(key, true));
      }
      CHECK_NOTHROW(check(out.written, model(), "written"));
    }
  }
}

TEST_CASE("lightning: the plan in the file is what its header says, and no text in it ends the Python around it") {
  const std::string open = "PLAN = json.loads(r'''\n", close = "''')\n";
  for (const char* field : {"loop", "float8"}) {
    ShardingPlan plan = base_of("lightning");
    plan.wrap = "'''); print('of a plan') #\\'''\"";
    if (std::string(field) == "loop") plan.loop.forwards = 2;
    else plan.float8 = {Float8Recipe::rowwise_with_gw_hp};
    const Emitted out = emit("lightning", plan, model());
    CAPTURE(out.text);
    REQUIRE(out.text.find(open) != std::string::npos);
    const std::size_t begin = out.text.find(open) + open.size(), end = out.text.find("'''", begin);
    CHECK(out.text.compare(end, close.size(), close) == 0);
    const auto inside = nlohmann::json::parse(out.text.substr(begin, end - begin));
    CHECK(inside == nlohmann::json::parse(to_json_text(out.written)));
    CHECK(inside["wrap"] == plan.wrap);
    CHECK_FALSE(inside.contains(field));
    CHECK(differing(plan, out.written) == std::set<std::string>{field});
  }
}

TEST_CASE("accelerate: fsdp1 units that it cannot wrap are recomputed in the file as in the plan that it describes") {
  ShardingPlan plan = base_of("accelerate");
  plan.dialect = Dialect::fsdp1;
  plan.grad_sync = GradSync::last;
  plan.reduce_dtype = DType::bf16;
  plan.wrap = "";
  plan.units = wrap(model(), "class:LlamaDecoderLayer", "test");
  plan.units.erase(plan.units.begin() + 1);  // some modules of a class
  set_checkpointing(plan, model(), "full", setting("activation_checkpointing"));
  REQUIRE_FALSE(plan.checkpointed.empty());
  const Emitted out = emit("accelerate", plan, model());
  CAPTURE(out.text);
  CHECK(out.changes_prediction());
  const bool recomputed = out.text.find("fsdp_activation_checkpointing: true") != std::string::npos;
  CHECK(recomputed == !out.written.checkpointed.empty());
}

TEST_CASE("switches of units are named although the file has other units") {
  for (const char* format : {"accelerate", "torchtitan"}) {
    ShardingPlan plan = base_of(format);
    plan.wrap = "block:2";
    plan.units = wrap(model(), plan.wrap, "test");
    plan.units[0].gradient_divide_factor = 3;
    plan.units[0].reshard_after_backward = false;
    const Emitted out = emit(format, plan, model());
    CAPTURE(out.text);
    for (const char* field : {"gradient_divide_factor", "reshard_after_backward"}) {
      CAPTURE(field);
      CHECK(std::any_of(out.cannot_express.begin(), out.cannot_express.end(),
                        [&](const Inexact& i) { return i.field == field && i.effect == Effect::written; }));
    }
  }
}

TEST_CASE("the table of fields holds every key that a plan's file can have") {
  ShardingPlan plan = base_of("pytorch");
  for (const FieldCase& c : fields()) {
    const bool replaces_units = std::string(c.field) == "units";
    if (!replaces_units) c.change(plan);
  }
  for (const FieldCase& c : fsdp1_fields()) c.change(plan);
  std::set<std::string> keys, known = {"schema", "model_name", "model_digest", "wrap", "modules"};  // of no effect
  const auto json = nlohmann::json::parse(to_json_text(plan));
  for (const auto& [key, value] : json.items()) keys.insert(key);
  for (const auto& unit : json["units"])
    for (const auto& [key, value] : unit.items()) keys.insert(key);
  for (const auto* list : {&fields(), &fsdp1_fields()})
    for (const FieldCase& c : *list) known.insert(c.field);
  for (const std::string& key : keys) {
    CAPTURE(key);
    CHECK(known.contains(key));
  }
  CHECK(keys.size() >= 34);  // those of a plan in which everything is chosen
}

TEST_CASE("a plan that a format expresses changes nothing that was predicted") {
  ShardingPlan titan = base_of("torchtitan");
  CHECK_FALSE(emit("torchtitan", titan, model()).changes_prediction());
  CHECK(emit("torchtitan", titan, model()).written == titan);
  CHECK_FALSE(emit("pytorch", titan, model()).changes_prediction());
  ShardingPlan one_type = base_of("accelerate");
  one_type.reduce_dtype = DType::bf16;
  one_type.micro_batches = {1};
  const Emitted out = emit("accelerate", one_type, model());
  CAPTURE(out.text);
  CHECK_FALSE(out.changes_prediction());
}

TEST_CASE("what a prediction rests on beside the plan: compiled blocks, kernels, machines") {
  const ShardingPlan titan = base_of("torchtitan"), classes = base_of("accelerate");
  const EmitContext compiled{&torchtitan_implementation(true), 4}, hf{&hf_implementation(false), 8};
  const Emitted toml = emit("torchtitan-toml", titan, model(), compiled);
  CHECK(toml.text.find("[compile]\nenable = true\n") != std::string::npos);
  CHECK_FALSE(toml.changes_prediction());
  CHECK(emit("torchtitan-toml", titan, model()).text.find("[compile]\nenable = false\n") != std::string::npos);
  CHECK(emit("torchtitan-toml", titan, model(), hf).changes_prediction());
  for (const char* format : {"pytorch", "accelerate"}) {
    const Emitted out = emit(format, classes, model(), compiled);
    CHECK_FALSE(out.compiled);
    CHECK(std::any_of(out.cannot_express.begin(), out.cannot_express.end(),
                      [](const Inexact& i) { return i.field == "compile" && i.effect == Effect::written; }));
  }
  for (const char* other : {"hf-eager-attention", "foundry"})
    for (const char* format : {"pytorch", "accelerate"})
      CHECK_FALSE(emit(format, classes, model(), {&find_implementation(other, false, "test"), 8}).predictable());
  CHECK(emit("accelerate", classes, model(), compiled).text.find("\nnum_machines: 2\n") != std::string::npos);
  CHECK(emit("accelerate", classes, model(), hf).text.find("\nnum_machines: 1\n") != std::string::npos);
  const Emitted nowhere = emit("accelerate", classes, model());
  CHECK(std::any_of(nowhere.cannot_express.begin(), nowhere.cannot_express.end(),
                    [](const Inexact& i) { return i.field == "cluster"; }));
}

TEST_CASE("accelerate: a hybrid strategy shards over one machine, whatever the plan's mesh") {
  ShardingPlan hybrid = base_of("accelerate");
  hybrid.dialect = Dialect::fsdp1;
  hybrid.units = wrap(model(), "class:LlamaDecoderLayer", "test");
  hybrid.reduce_dtype = DType::bf16;
  hybrid.micro_batches = {1};
  CHECK_FALSE(emit("accelerate", hybrid, model(), {nullptr, 4}).changes_prediction());
  CHECK(emit("accelerate", hybrid, model(), {nullptr, 8}).changes_prediction());
  const Emitted unknown = emit("accelerate", hybrid, model());
  CHECK(std::any_of(unknown.cannot_express.begin(), unknown.cannot_express.end(), [](const Inexact& i) {
    return i.field == "cluster" && i.what.find("the plan over 4") != std::string::npos;
  }));
}

TEST_CASE("torchtitan: grouped blocks that stay gathered are not written as \"default\"") {
  ShardingPlan plan = base_of("torchtitan");
  plan.units = wrap(model(), "block:4", "test");
  set_reshard(plan, Reshard::no);
  const Emitted out = emit("torchtitan-toml", plan, model());
  CHECK(out.text.find("\nfsdp_reshard_after_forward = \"never\"\n") != std::string::npos);
  CHECK(out.changes_prediction());  // of the units
  plan.units = wrap(model(), "block:2", "test");
  plan.units[0].reshard_after_forward = Reshard::no;
  const Emitted mixed = emit("torchtitan", plan, model());
  CHECK(std::any_of(mixed.cannot_express.begin(), mixed.cannot_express.end(),
                    [](const Inexact& i) { return i.field == "reshard_after_forward"; }));
}

TEST_CASE("formats in which gradients are reduced in buckets, or that cannot shard over one rank, say so") {
  const ShardingPlan ddp = naive_plan(model(), {.ranks = 2, .seq_len = 16, .dialect = Dialect::ddp});
  ShardingPlan one = naive_plan(model(), {.ranks = 1, .seq_len = 16});
  one.clip_norm = 1.0;
  for (const std::string format :
       {"pytorch", "accelerate", "torchtitan", "torchtitan-args", "torchtitan-toml", "deepspeed"}) {
    CAPTURE(format);
    CHECK(emit(format, ddp, model()).changes_prediction());
    CHECK_FALSE(emit(format, ddp, model()).predictable());
    if (format != "pytorch") CHECK_FALSE(emit(format, one, model()).predictable());
  }
}

TEST_CASE("units with a mesh of their own are refused by every format, by name") {
  for (const std::string& format : emit_formats()) {
    CAPTURE(format);
    ShardingPlan plan = base_of("pytorch");
    plan.units.front().shard = 1;
    CHECK(testing::refusal([&] { static_cast<void>(emit(format, plan, model())); }).find("mesh of their own") !=
          std::string::npos);
  }
}
