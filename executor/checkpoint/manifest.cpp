#include "executor/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "executor/checkpoint/checksum.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "fsdp-plan/checkpoint/1";
constexpr const char* kSums = "crc32c";
constexpr std::int64_t kMaxFiles = 65'536, kMaxBlock = std::int64_t{1} << 30;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 53;

// A box is one array: file, offsets, sizes, first byte, bytes, checksums. There are many of them.
Json to_json(const SavedBox& b) { return {b.file, b.box.offsets, b.box.sizes, b.begin, b.bytes, b.checksums}; }

std::uint32_t sum_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text.data(), text.size()))); }

std::string body(const Manifest& m) {
  Json j;
  j["schema"] = kSchema;
  j["model"] = m.model;
  j["model_digest"] = m.model_digest;
  j["plan_digest"] = m.plan_digest;
  if (!m.source.config.empty()) j["config"] = m.source.config;
  if (!m.source.lora.empty()) j["lora"] = m.source.lora;
  j["step"] = m.step;
  j["sequences"] = m.sequences;
  j["seq_len"] = m.seq_len;
  j["seed"] = m.seed;
  j["optimizer"] = name(m.optimizer);
  j["mesh"] = Json::array();
  for (const MeshDim& d : m.mesh) j["mesh"].push_back({{"name", d.name}, {"size", d.size}});
  j["checksums"] = kSums;
  j["block_bytes"] = m.block_bytes;
  j["files"] = Json::array();
  for (const SavedFile& f : m.files)
    j["files"].push_back({{"name", f.name},
                          {"bytes", f.bytes},
                          {"header_bytes", f.header_bytes},
                          {"header_checksum", f.header_checksum}});
  std::string text = j.dump(1);
  text.resize(text.size() - 2);  // "\n}"
  text += ",\n \"tensors\": [";
  const char* comma = "";
  for (const SavedTensor& t : m.tensors) {  // a line each, a line per box
    text += fmt::format("{}\n  {{\"name\": {}, \"dtype\": \"{}\", \"shape\": {}, \"boxes\": [", comma,
                        Json(t.name).dump(), fsdp::name(t.dtype), Json(t.shape).dump());
    const char* between = "";
    for (const SavedBox& b : t.boxes) {
      text += fmt::format("{}\n   {}", between, to_json(b).dump());
      between = ",";
    }
    text += "]}";
    comma = ",";
  }
  return text + "\n ],\n \"checksum\": ";
}

std::uint32_t sum(std::int64_t value) { return static_cast<std::uint32_t>(value); }

SavedFile parse_file(const JsonValue& item, std::int64_t index) {
  JsonObject o = item.object();
  SavedFile f;
  f.name = o.text("name");
  if (f.name != rank_file_name(index))
    o.refuse("name", "is '" + f.name + "', where " + rank_file_name(index) + " belongs");
  f.header_bytes = o.integer("header_bytes", 8, kMaxJsonBytes);
  f.bytes = o.integer("bytes", f.header_bytes, kMaxBytes);
  f.header_checksum = sum(o.integer("header_checksum", 0, 0xFFFFFFFF));
  o.finish();
  return f;
}

SavedBox parse_box(const JsonValue& item, const SavedTensor& tensor, const Manifest& m) {
  const std::vector<JsonValue> part = item.array();
  if (part.size() != 6)
    item.refuse("has " + std::to_string(part.size()) + " parts, not file, offsets, sizes, begin, bytes, checksums");
  SavedBox b;
  b.file = static_cast<std::int32_t>(part[0].integer(0, static_cast<std::int64_t>(m.files.size()) - 1));
  b.box = {part[1].integers(0, kMaxBytes), part[2].integers(1, kMaxBytes)};
  const SavedFile& file = m.files[static_cast<std::size_t>(b.file)];
  b.begin = part[3].integer(file.header_bytes, file.bytes);
  b.bytes = part[4].integer(1, file.bytes - b.begin);
  if (checked_mul(b.box.volume(item.where().text()), size_of(tensor.dtype), item.where().text()) != b.bytes)
    part[4].refuse(fmt::format("is not what {} elements of {} take", b.box.volume(), name(tensor.dtype)));
  for (const std::int64_t s : part[5].integers(0, 0xFFFFFFFF)) b.checksums.push_back(sum(s));
  const auto blocks = static_cast<std::size_t>((b.bytes + m.block_bytes - 1) / m.block_bytes);
  if (b.checksums.size() != blocks)
    part[5].refuse(fmt::format("has {} checksums, where {} belong", b.checksums.size(), blocks));
  return b;
}

SavedTensor parse_tensor(const JsonValue& item, const Manifest& m) {
  JsonObject o = item.object();
  SavedTensor t;
  t.name = o.text("name");
  t.dtype = parse_dtype(o.text("dtype"), o.where("dtype"));
  t.shape = o.integers("shape", 0, kMaxBytes);
  std::vector<Box> boxes;
  for (const JsonValue& b : o.array("boxes")) {
    t.boxes.push_back(parse_box(b, t, m));
    boxes.push_back(t.boxes.back().box);
  }
  o.finish();
  static_cast<void>(checked_mul(whole(t.shape).volume(o.where().text()), size_of(t.dtype), o.where().text()));
  check_cover(t.shape, boxes, o.where().text() + " (" + printable(t.name) + ")");
  return t;
}

// No byte of a file belongs to two boxes, and no tensor is there twice.
void check_places(const Manifest& m, const std::string& where) {
  struct Place {
    std::int32_t file;
    std::int64_t begin, end;
    const SavedTensor* tensor;
  };
  std::vector<Place> places;
  std::vector<std::string_view> names;
  for (const SavedTensor& t : m.tensors) {
    names.push_back(t.name);
    for (const SavedBox& b : t.boxes) places.push_back({b.file, b.begin, b.begin + b.bytes, &t});
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    throw InputError(where, "tensor '" + printable(*twice) + "' is listed twice");
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return std::tie(a.file, a.begin) < std::tie(b.file, b.begin); });
  for (std::size_t i = 1; i < places.size(); ++i)
    if (places[i].file == places[i - 1].file && places[i].begin < places[i - 1].end)
      throw InputError(where, fmt::format("tensors '{}' and '{}' share bytes of {}",
                                          printable(places[i - 1].tensor->name), printable(places[i].tensor->name),
                                          m.files[static_cast<std::size_t>(places[i].file)].name));
}

Manifest parse_fields(JsonObject& root, const std::string& where) {
  Manifest m;
  m.model = root.text("model");
  m.model_digest = root.text("model_digest");
  m.plan_digest = root.text("plan_digest");
  if (const auto config = root.find("config")) m.source.config = config->any_text();
  m.source.lora = root.optional_text("lora").value_or("");
  m.step = root.integer("step", 0, kMaxSavedStep);
  m.sequences = root.integer("sequences", 0, kMaxInteger);
  m.seq_len = root.integer("seq_len", 1, kMaxInteger);
  m.seed = root.unsigned_integer("seed");
  m.optimizer = parse_optimizer(root.text("optimizer"), root.where("optimizer"));
  for (const JsonValue& item : root.array("mesh")) {
    JsonObject o = item.object();
    m.mesh.push_back({o.text("name"), o.integer("size", 1, kMaxFiles)});
    o.finish();
  }
  if (const std::string sums = root.text("checksums"); sums != kSums)
    root.refuse("checksums", "are '" + sums + "', not crc32c");
  m.block_bytes = root.integer("block_bytes", 1, kMaxBlock);
  for (const JsonValue& item : root.array("files"))
    m.files.push_back(parse_file(item, static_cast<std::int64_t>(m.files.size())));
  if (m.files.empty() || static_cast<std::int64_t>(m.files.size()) > kMaxFiles)
    root.refuse("files", "are none, or more than 65,536");
  for (const JsonValue& item : root.array("tensors")) m.tensors.push_back(parse_tensor(item, m));
  check_places(m, where);
  return m;
}

}  // namespace

const SavedTensor* Manifest::find(std::string_view tensor) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const SavedTensor& t) { return t.name == tensor; });
  return found == tensors.end() ? nullptr : &*found;
}

std::int64_t Manifest::tensor_bytes() const {
  std::int64_t sum = 0;
  for (const SavedTensor& t : tensors)
    for (const SavedBox& b : t.boxes) sum += b.bytes;
  return sum;
}

std::string to_json_text(const Manifest& m) {
  const std::string text = body(m);
  return fmt::format("{}{}\n}}\n", text, sum_of(text));
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const JsonDocument document = parse_document(text, where, kSchema);
  JsonObject root = document.root();
  const std::uint32_t expected = sum(root.integer("checksum", 0, 0xFFFFFFFF));
  Manifest m = parse_fields(root, where);
  root.finish();
  if (sum_of(body(m)) != expected)
    throw InputError(where, "does not match its own checksum", "it was changed; use another checkpoint");
  return m;
}

std::string name_of(const Parameter& p, StatePart part, OptimizerKind optimizer) {
  if (part == StatePart::parameter) return p.name;
  const auto states = facts_of(optimizer).states;
  const auto k = static_cast<std::size_t>(part) - 1;
  if (k >= states.size()) throw InternalError(fmt::format("{} has no state {}", name(optimizer), k + 1));
  return fmt::format("optimizer.{}.{}", states[k], p.name);
}

bool is_optimizer_state(std::string_view tensor) {
  for (int kind = 0; kind < kOptimizers; ++kind)
    for (const std::string_view state : facts_of(static_cast<OptimizerKind>(kind)).states)
      if (tensor.starts_with(fmt::format("optimizer.{}.", state))) return true;
  return false;
}

std::string rank_file_name(std::int64_t rank) { return fmt::format("rank-{:05}.safetensors", rank); }
std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

}  // namespace fsdp
