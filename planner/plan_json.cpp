// A plan on disk: schema "fsdp-plan/plan/1". Types are checked here, meaning in `check`.
#include <limits>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/json.h"
#include "planner/plan.h"

namespace fsdp {
namespace {

constexpr std::string_view kSchema = "fsdp-plan/plan/1";
constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr double kLargest = std::numeric_limits<double>::max();

using Json = nlohmann::ordered_json;  // keys stay in the order of this file

Json reshard_json(Reshard r) { return r == Reshard::automatic ? Json("auto") : Json(r == Reshard::yes); }

Reshard read_reshard(const JsonValue& value) {
  if (!value.is_text()) return value.boolean() ? Reshard::yes : Reshard::no;
  if (value.text() != "auto") value.refuse("unknown value '" + value.text() + "'", "use \"auto\", true or false");
  return Reshard::automatic;
}

Json optimizer_json(const Optimizer& o) {
  return {{"kind", name(o.kind)}, {"lr", o.lr},   {"beta1", o.beta1},
          {"beta2", o.beta2},     {"eps", o.eps}, {"weight_decay", o.weight_decay}};
}

Optimizer read_optimizer(JsonObject json) {
  Optimizer o;
  o.kind = parse_optimizer(json.text("kind"), json.where("kind"));
  o.lr = json.number("lr", -kLargest, kLargest);
  o.beta1 = json.number("beta1", -kLargest, kLargest);
  o.beta2 = json.number("beta2", -kLargest, kLargest);
  o.eps = json.number("eps", -kLargest, kLargest);
  o.weight_decay = json.number("weight_decay", -kLargest, kLargest);
  json.finish();
  return o;
}

std::vector<MeshDim> read_mesh(const std::vector<JsonValue>& items) {
  std::vector<MeshDim> mesh;
  for (const JsonValue& item : items) {
    JsonObject json = item.object();
    mesh.push_back({json.text("name"), json.integer("size", kLowest, kMaxInteger)});
    json.finish();
  }
  return mesh;
}

std::vector<Unit> read_units(const std::vector<JsonValue>& items) {
  std::vector<Unit> units;
  for (const JsonValue& item : items) {
    JsonObject json = item.object();
    units.push_back({json.texts("modules"), read_reshard(json.at("reshard_after_forward"))});
    json.finish();
  }
  return units;
}

int read_int(JsonObject& json, std::string_view key) {
  return static_cast<int>(json.integer(key, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
}

DType read_dtype(JsonObject& json, std::string_view key) { return parse_dtype(json.text(key), json.where(key)); }

}  // namespace

std::string to_json_text(const ShardingPlan& plan) {
  Json json;
  json["schema"] = kSchema;
  json["dialect"] = name(plan.dialect);
  json["model_name"] = plan.model_name;
  json["model_digest"] = plan.model_digest;
  json["wrap"] = plan.wrap;
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
  json["units"] = Json::array();
  for (const Unit& u : plan.units)
    json["units"].push_back({{"modules", u.modules}, {"reshard_after_forward", reshard_json(u.reshard_after_forward)}});
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

ShardingPlan parse_plan(std::string_view json_text, std::string_view where) {
  const JsonDocument document = parse_document(json_text, where, kSchema);
  JsonObject json = document.root();
  ShardingPlan plan;
  plan.dialect = parse_dialect(json.text("dialect"), json.where("dialect"));
  plan.model_name = json.text("model_name");
  plan.model_digest = json.text("model_digest");
  if (const auto label = json.find("wrap")) plan.wrap = label->any_text();
  plan.mesh = read_mesh(json.array("mesh"));
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
  plan.units = read_units(json.array("units"));
  json.finish();
  return plan;
}

}  // namespace fsdp
