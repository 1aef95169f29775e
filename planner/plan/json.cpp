// A plan on disk: schema "fsdp-plan/plan/1". Types are checked here, meaning in `check`.
#include "models/input/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/input/error.h"
#include "models/input/limits.h"
#include "planner/plan.h"
#include "planner/plan/file.h"

namespace fsdp {
namespace {

constexpr std::string_view kSchema = "fsdp-plan/plan/1";
constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr double kLargest = std::numeric_limits<double>::max();

using Json = nlohmann::ordered_json;  // keys stay in the order of this file

Json reshard_json(Reshard r) {
  if (r.ranks > 1) return r.ranks;
  return r == Reshard::automatic ? Json("auto") : Json(r == Reshard::yes);
}

Reshard read_reshard(const JsonValue& value) {
  if (value.is_integer()) return {value.integer(1, kMaxInteger)};
  if (!value.is_text()) return value.boolean() ? Reshard::yes : Reshard::no;
  if (value.text() != "auto")
    value.refuse("unknown value '" + value.text() + "'", "use \"auto\", true, false or a number of ranks");
  return Reshard::automatic;
}

Json optimizer_json(const Optimizer& o) {
  Json json = {{"kind", name(o.kind)}, {"lr", o.lr},   {"beta1", o.beta1},
               {"beta2", o.beta2},     {"eps", o.eps}, {"weight_decay", o.weight_decay}};
  if (o.momentum != 0) json["momentum"] = o.momentum;
  return json;
}

Optimizer read_optimizer(JsonObject json) {
  Optimizer o;
  o.kind = parse_optimizer(json.text("kind"), json.where("kind"));
  o.lr = json.number("lr", -kLargest, kLargest);
  o.beta1 = json.number("beta1", -kLargest, kLargest);
  o.beta2 = json.number("beta2", -kLargest, kLargest);
  o.eps = json.number("eps", -kLargest, kLargest);
  o.weight_decay = json.number("weight_decay", -kLargest, kLargest);
  o.momentum = json.optional_number("momentum", -kLargest, kLargest).value_or(o.momentum);
  json.finish();
  return o;
}

// A file says over how many ranks parameters are sharded: left out it would be one, and the plan another than was
// meant.
std::vector<MeshDim> read_mesh(JsonObject& plan) {
  std::vector<MeshDim> mesh;
  for (const JsonValue& item : plan.array("mesh")) {
    JsonObject json = item.object();
    mesh.push_back({json.text("name"), json.integer("size", kLowest, kMaxInteger)});
    json.finish();
  }
  if (std::none_of(mesh.begin(), mesh.end(), [](const MeshDim& d) { return d.name == "shard"; }))
    throw InputError(plan.where("mesh"), "has no dimension 'shard'",
                     "add {\"name\": \"shard\", \"size\": N}, the ranks that parameters are sharded over; 1 for none");
  return mesh;
}

std::optional<DType> optional_dtype(JsonObject& json, std::string_view key) {
  const auto text = json.optional_text(key);
  return text ? std::optional(parse_dtype(*text, json.where(key))) : std::nullopt;
}

std::vector<std::string> optional_texts(JsonObject& json, std::string_view key) {
  const auto value = json.find(key);
  return value ? value->texts() : std::vector<std::string>{};
}

Unit read_unit(JsonObject json) {
  std::vector<std::string> modules = json.texts("modules");
  const auto reshard = json.find("reshard_after_forward");
  if (!reshard)
    throw InputError(json.where("reshard_after_forward"), "is missing",
                     "add true, false, \"auto\" or a number of ranks");
  Unit u{std::move(modules), read_reshard(*reshard)};
  u.reshard_after_backward = json.optional_boolean("reshard_after_backward").value_or(u.reshard_after_backward);
  u.unshard_in_backward = json.optional_boolean("unshard_in_backward").value_or(u.unshard_in_backward);
  if (const auto sync = json.optional_text("grad_sync")) u.grad_sync = parse_grad_sync(*sync, json.where("grad_sync"));
  u.gradient_divide_factor = json.optional_number("gradient_divide_factor", -kLargest, kLargest);
  u.forward_prefetch = optional_texts(json, "forward_prefetch");
  u.backward_prefetch = optional_texts(json, "backward_prefetch");
  u.param_dtype = optional_dtype(json, "param_dtype");
  u.reduce_dtype = optional_dtype(json, "reduce_dtype");
  u.output_dtype = optional_dtype(json, "output_dtype");
  u.cast_forward_inputs = json.optional_boolean("cast_forward_inputs").value_or(u.cast_forward_inputs);
  u.shard = json.optional_integer("shard", 1, kMaxInteger).value_or(u.shard);
  u.group_of = json.optional_text("group_of");
  json.finish();
  return u;
}

Json unit_json(const Unit& u) {
  const Unit usual;
  Json json = {{"modules", u.modules}, {"reshard_after_forward", reshard_json(u.reshard_after_forward)}};
  if (u.reshard_after_backward != usual.reshard_after_backward)
    json["reshard_after_backward"] = u.reshard_after_backward;
  if (u.unshard_in_backward != usual.unshard_in_backward) json["unshard_in_backward"] = u.unshard_in_backward;
  if (u.grad_sync) json["grad_sync"] = name(*u.grad_sync);
  if (u.gradient_divide_factor) json["gradient_divide_factor"] = *u.gradient_divide_factor;
  if (!u.forward_prefetch.empty()) json["forward_prefetch"] = u.forward_prefetch;
  if (!u.backward_prefetch.empty()) json["backward_prefetch"] = u.backward_prefetch;
  if (u.param_dtype) json["param_dtype"] = name(*u.param_dtype);
  if (u.reduce_dtype) json["reduce_dtype"] = name(*u.reduce_dtype);
  if (u.output_dtype) json["output_dtype"] = name(*u.output_dtype);
  if (u.cast_forward_inputs != usual.cast_forward_inputs) json["cast_forward_inputs"] = u.cast_forward_inputs;
  if (u.shard > 0) json["shard"] = u.shard;
  if (u.group_of) json["group_of"] = *u.group_of;
  return json;
}

std::vector<Unit> read_units(const std::vector<JsonValue>& items) {
  std::vector<Unit> units;
  for (const JsonValue& item : items) units.push_back(read_unit(item.object()));
  return units;
}

Json tensor_plan_json(const TensorPlan& plan) {
  Json json;
  json["loss_parallel"] = plan.loss_parallel;
  json["modules"] = Json::array();
  for (const ModuleStyle& m : plan.modules) json["modules"].push_back({{"module", m.module}, {"style", name(m.style)}});
  return json;
}

TensorPlan read_tensor_plan(JsonObject json) {
  TensorPlan plan;
  plan.loss_parallel = json.optional_boolean("loss_parallel").value_or(true);
  for (const JsonValue& item : json.array("modules")) {
    JsonObject m = item.object();
    plan.modules.push_back({m.text("module"), parse_tensor_style(m.text("style"), m.where("style"))});
    m.finish();
  }
  json.finish();
  return plan;
}

Json float8_json(const Float8Plan& plan) {
  return {
      {"recipe", name(plan.recipe)}, {"all_gather", plan.all_gather}, {"precomputed_scales", plan.precomputed_scales}};
}

Float8Plan read_float8(JsonObject json) {
  Float8Plan plan;
  plan.recipe = parse_float8_recipe(json.text("recipe"), json.where("recipe"));
  plan.all_gather = json.optional_boolean("all_gather").value_or(plan.all_gather);
  plan.precomputed_scales = json.optional_boolean("precomputed_scales").value_or(plan.precomputed_scales);
  json.finish();
  return plan;
}

Json loop_json(const LoopPlan& loop) {
  const LoopPlan usual;
  Json json = Json::object();
  if (loop.unshard_async) json["unshard_async"] = true;
  if (loop.post_optim_event) json["post_optim_event"] = true;
  if (loop.last_backward) json["last_backward"] = true;
  if (loop.forwards != usual.forwards) json["forwards"] = loop.forwards;
  if (loop.loss_in_model) json["loss_in_model"] = true;
  if (loop.host_threads != usual.host_threads) json["host_threads"] = loop.host_threads;
  if (loop.chunk_head) json["chunk_head"] = true;
  if (!loop.unshard.empty()) json["unshard"] = loop.unshard;
  if (!loop.reshard.empty()) json["reshard"] = loop.reshard;
  return json;
}

LoopPlan read_loop(JsonObject json) {
  LoopPlan loop;
  loop.unshard_async = json.optional_boolean("unshard_async").value_or(loop.unshard_async);
  loop.post_optim_event = json.optional_boolean("post_optim_event").value_or(loop.post_optim_event);
  loop.last_backward = json.optional_boolean("last_backward").value_or(loop.last_backward);
  loop.forwards = static_cast<int>(json.optional_integer("forwards", 1, kGradAccum.most).value_or(loop.forwards));
  loop.loss_in_model = json.optional_boolean("loss_in_model").value_or(loop.loss_in_model);
  loop.host_threads =
      static_cast<int>(json.optional_integer("host_threads", 1, kHostThreads.most).value_or(loop.host_threads));
  loop.chunk_head = json.optional_boolean("chunk_head").value_or(loop.chunk_head);
  loop.unshard = optional_texts(json, "unshard");
  loop.reshard = optional_texts(json, "reshard");
  json.finish();
  return loop;
}

// Choices that are written only where they differ from the default.
void write_uncommon(Json& json, const ShardingPlan& plan) {
  const ShardingPlan usual;
  if (plan.clip_norm_type != usual.clip_norm_type)
    json["clip_norm_type"] = std::isinf(plan.clip_norm_type) ? Json("inf") : Json(plan.clip_norm_type);
  if (plan.checkpoint_policy != usual.checkpoint_policy) json["checkpoint_policy"] = name(plan.checkpoint_policy);
  if (plan.trained_dtype) json["trained_dtype"] = name(*plan.trained_dtype);
  if (plan.loss_chunks != usual.loss_chunks) json["loss_chunks"] = plan.loss_chunks;
  if (plan.offload != usual.offload) json["offload"] = plan.offload;
  if (plan.offload_optimizer != usual.offload_optimizer) json["offload_optimizer"] = plan.offload_optimizer;
  if (!plan.offload_activations.empty()) json["offload_activations"] = plan.offload_activations;
  if (!plan.ignored.empty()) json["ignored"] = plan.ignored;
  for (const ShardDim& d : plan.shard_dims) json["shard_dims"].push_back({{"parameter", d.parameter}, {"dim", d.dim}});
  if (!plan.tensor_plan.modules.empty()) json["tensor_plan"] = tensor_plan_json(plan.tensor_plan);
  if (plan.float8 != usual.float8) json["float8"] = float8_json(plan.float8);
  if (plan.loop != usual.loop) json["loop"] = loop_json(plan.loop);
  if (plan.reduce_scatter_buffers != usual.reduce_scatter_buffers)
    json["reduce_scatter_buffers"] = plan.reduce_scatter_buffers;
  if (plan.separate_reduce_scatter != usual.separate_reduce_scatter)
    json["separate_reduce_scatter"] = plan.separate_reduce_scatter;
  if (plan.force_sum_reduction != usual.force_sum_reduction) json["force_sum_reduction"] = plan.force_sum_reduction;
  if (plan.share_comm_context != usual.share_comm_context) json["share_comm_context"] = plan.share_comm_context;
  if (plan.backward_post != usual.backward_post) json["backward_post"] = plan.backward_post;
  if (plan.limit_all_gathers != usual.limit_all_gathers) json["limit_all_gathers"] = plan.limit_all_gathers;
  if (plan.use_orig_params != usual.use_orig_params) json["use_orig_params"] = plan.use_orig_params;
  if (plan.trained_outermost != usual.trained_outermost) json["trained_outermost"] = plan.trained_outermost;
  if (plan.reentrant != usual.reentrant) json["reentrant"] = plan.reentrant;
}

double read_norm_type(const JsonValue& value) {
  if (!value.is_text()) return value.number(-kLargest, kLargest);
  if (value.text() != "inf") value.refuse("unknown norm '" + value.text() + "'", "use a number or \"inf\"");
  return std::numeric_limits<double>::infinity();
}

void read_uncommon(JsonObject& json, ShardingPlan& plan) {
  if (const auto type = json.find("clip_norm_type")) plan.clip_norm_type = read_norm_type(*type);
  if (const auto kind = json.optional_text("checkpoint_policy"))
    plan.checkpoint_policy = parse_checkpoint_policy(*kind, json.where("checkpoint_policy"));
  if (const auto type = json.optional_text("trained_dtype"))
    plan.trained_dtype = parse_dtype(*type, json.where("trained_dtype"));
  plan.loss_chunks =
      json.optional_integer("loss_chunks", kLossChunks.least, kLossChunks.most).value_or(plan.loss_chunks);
  plan.offload = json.optional_boolean("offload").value_or(plan.offload);
  plan.offload_optimizer = json.optional_boolean("offload_optimizer").value_or(plan.offload_optimizer);
  plan.offload_activations = optional_texts(json, "offload_activations");
  plan.ignored = optional_texts(json, "ignored");
  if (const auto dims = json.find("shard_dims")) {
    for (const JsonValue& item : dims->array()) {
      JsonObject d = item.object();
      plan.shard_dims.push_back({d.text("parameter"), d.integer("dim", 0, kMaxInteger)});
      d.finish();
    }
  }
  if (const auto tensor = json.find("tensor_plan")) plan.tensor_plan = read_tensor_plan(tensor->object());
  if (const auto float8 = json.find("float8")) plan.float8 = read_float8(float8->object());
  if (const auto loop = json.find("loop")) plan.loop = read_loop(loop->object());
  plan.reduce_scatter_buffers =
      static_cast<int>(json.optional_integer("reduce_scatter_buffers", 1, 1024).value_or(plan.reduce_scatter_buffers));
  plan.separate_reduce_scatter =
      json.optional_boolean("separate_reduce_scatter").value_or(plan.separate_reduce_scatter);
  plan.force_sum_reduction = json.optional_boolean("force_sum_reduction").value_or(plan.force_sum_reduction);
  plan.share_comm_context = json.optional_boolean("share_comm_context").value_or(plan.share_comm_context);
  plan.backward_post = json.optional_boolean("backward_post").value_or(plan.backward_post);
  plan.limit_all_gathers = json.optional_boolean("limit_all_gathers").value_or(plan.limit_all_gathers);
  plan.use_orig_params = json.optional_boolean("use_orig_params").value_or(plan.use_orig_params);
  plan.trained_outermost = json.optional_boolean("trained_outermost").value_or(plan.trained_outermost);
  plan.reentrant = json.optional_boolean("reentrant").value_or(plan.reentrant);
}

// "fsdp2" or "fsdp2@2.11".
void read_dialect(JsonObject& json, ShardingPlan& plan) {
  const std::string text = json.text("dialect");
  const Origin where = json.where("dialect");
  const std::size_t at = text.find('@');
  plan.dialect = parse_dialect(std::string_view(text).substr(0, at), where);
  if (at != std::string::npos) plan.torch = parse_torch_version(std::string_view(text).substr(at + 1), where);
}

int read_int(JsonObject& json, std::string_view key) {
  return static_cast<int>(json.integer(key, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
}

DType read_dtype(JsonObject& json, std::string_view key) { return parse_dtype(json.text(key), json.where(key)); }

std::optional<FoundFor> read_found_for(JsonObject& json) {
  const auto note = json.find("found_for");
  if (!note) return std::nullopt;
  JsonObject object = note->object();
  const FoundFor found{object.text("implementation"), object.boolean("compile"),
                       object.optional_boolean("async_tensor").value_or(false)};
  object.finish();
  return found;
}

}  // namespace

std::string to_json_text(const ShardingPlan& plan) { return to_json_text(PlanFile{plan, std::nullopt}); }

std::string to_json_text(const PlanFile& file) {
  const ShardingPlan& plan = file.plan;
  Json json;
  json["schema"] = kSchema;
  json["dialect"] = dialect_text(plan);
  json["model_name"] = plan.model_name;
  json["model_digest"] = plan.model_digest;
  json["wrap"] = plan.wrap;
  if (file.found_for)
    json["found_for"] = {{"implementation", file.found_for->implementation}, {"compile", file.found_for->compiled}};
  if (file.found_for && file.found_for->async_tensor) json["found_for"]["async_tensor"] = true;
  json["mesh"] = Json::array();
  for (const MeshDim& d : plan.mesh) json["mesh"].push_back({{"name", d.name}, {"size", d.size}});
  json["seq_len"] = plan.seq_len;
  json["micro_batches"] = plan.micro_batches;
  json["grad_sync"] = name(plan.grad_sync);
  json["forward_prefetch"] = plan.forward_prefetch;
  json["backward_prefetch"] = plan.backward_prefetch;
  json["param_dtype"] = name(plan.param_dtype);
  json["reduce_dtype"] = name(plan.reduce_dtype);
  json["master_dtype"] = name(plan.master_dtype);
  json["optimizer"] = optimizer_json(plan.optimizer);
  json["clip_norm"] = plan.clip_norm ? Json(*plan.clip_norm) : Json(nullptr);
  json["seed"] = plan.seed;
  json["checkpointed"] = plan.checkpointed;
  write_uncommon(json, plan);
  json["units"] = Json::array();
  for (const Unit& u : plan.units) json["units"].push_back(unit_json(u));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

ShardingPlan parse_plan(std::string_view json_text, std::string_view where) {
  return parse_plan_file(json_text, where).plan;
}

PlanFile parse_plan_file(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kSchema);
  JsonObject json = document.root();
  PlanFile file{{}, read_found_for(json)};
  ShardingPlan& plan = file.plan;
  read_dialect(json, plan);
  plan.model_name = json.text("model_name");
  plan.model_digest = json.text("model_digest");
  if (const auto label = json.find("wrap")) plan.wrap = label->any_text();
  plan.mesh = read_mesh(json);
  plan.seq_len = json.integer("seq_len", kLowest, kMaxInteger);
  plan.micro_batches = json.integers("micro_batches", kLowest, kMaxInteger);
  plan.grad_sync = parse_grad_sync(json.text("grad_sync"), json.where("grad_sync"));
  plan.forward_prefetch = read_int(json, "forward_prefetch");
  plan.backward_prefetch = read_int(json, "backward_prefetch");
  plan.param_dtype = read_dtype(json, "param_dtype");
  plan.reduce_dtype = read_dtype(json, "reduce_dtype");
  plan.master_dtype = read_dtype(json, "master_dtype");
  plan.optimizer = read_optimizer(json.object("optimizer"));
  plan.clip_norm = json.optional_number("clip_norm", -kLargest, kLargest);
  plan.seed = json.unsigned_integer("seed");
  plan.checkpointed = json.texts("checkpointed");
  read_uncommon(json, plan);
  plan.units = read_units(json.array("units"));
  json.finish();
  return file;
}

}  // namespace fsdp
