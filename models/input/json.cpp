#include "models/input/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

std::string_view type_name(const nlohmann::json& j) {
  switch (j.type()) {
    case nlohmann::json::value_t::object: return "an object";
    case nlohmann::json::value_t::array: return "an array";
    case nlohmann::json::value_t::string: return "a text";
    case nlohmann::json::value_t::boolean: return "true or false";
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned: return "an integer";
    case nlohmann::json::value_t::number_float:
      return std::abs(j.get<double>()) < 9.2e18 ? "a fraction" : "a number of more than 64 bits";
    default: return "null";
  }
}

// Names reach terminals and the comments of emitted scripts, where a line break or an escape sequence would act.
bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

[[noreturn]] void refuse_syntax(std::string_view text, std::string_view where, std::size_t byte) {
  if (byte > text.size()) {
    throw InputError(std::string(where), "the JSON ends too early (the file was cut short, or is empty)",
                     "write the file again");
  }
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  throw InputError(std::string(where), fmt::format("not valid JSON at line {}, column {}", line, column),
                   "correct the file there");
}

// Depth and duplicate keys, before a document is made of the text. (The library's parser with a callback would look
// through an array again at the end of each object in it.) What is no JSON is left to that parser.
class Guard : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Guard(std::string_view where) : where_(where) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second)
      throw InputError(where_, "the key \"" + printable(key) + "\" occurs twice in one object", "remove one");
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  bool enter() {
    if (keys_.size() == kMaxJsonDepth)
      throw InputError(where_, fmt::format("nested deeper than {} levels", kMaxJsonDepth), "use a flatter document");
    keys_.emplace_back();
    return true;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::string where_;
  std::vector<std::set<std::string>> keys_;  // of each object that is open; of an array none
};

}  // namespace

// --- JsonValue

Origin JsonValue::where() const { return {file_, path_}; }
bool JsonValue::is_null() const { return value_->is_null(); }
bool JsonValue::is_integer() const { return value_->is_number_integer(); }
bool JsonValue::is_text() const { return value_->is_string(); }
bool JsonValue::is_object() const { return value_->is_object(); }

void JsonValue::refuse(const std::string& problem, const std::string& remedy) const {
  throw InputError(where(), problem, remedy);
}

void JsonValue::wrong_type(std::string_view expected) const {
  refuse(fmt::format("is {}", type_name(*value_)), fmt::format("expected {}", expected));
}

JsonValue JsonValue::element(std::size_t index) const {
  return {(*value_)[index], file_, fmt::format("{}[{}]", path_, index)};
}

std::int64_t JsonValue::integer(std::int64_t min, std::int64_t max) const {
  const bool any = min == std::numeric_limits<std::int64_t>::min() && max == kMaxInteger;
  if (!value_->is_number_integer()) wrong_type(any ? "an integer" : fmt::format("an integer from {} to {}", min, max));
  const bool huge =
      value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxInteger);
  const std::int64_t v = huge ? 0 : value_->get<std::int64_t>();
  if (huge || v < min || v > max)
    refuse(fmt::format("{} is out of range", value_->dump()),
           fmt::format("expected an integer from {} to {}", min, max));
  return v;
}

std::uint64_t JsonValue::unsigned_integer() const {
  if (value_->is_number_integer() && !value_->is_number_unsigned())
    refuse(value_->dump() + " is out of range", "expected an integer that is not negative");
  if (!value_->is_number_unsigned()) wrong_type("an integer that is not negative");
  return value_->get<std::uint64_t>();
}

double JsonValue::number(double min, double max) const {
  if (!value_->is_number()) wrong_type("a number");
  const double v = value_->get<double>();
  if (!(v >= min && v <= max))
    refuse(fmt::format("{} is out of range", v), fmt::format("expected a number from {} to {}", min, max));
  return v;
}

bool JsonValue::boolean() const {
  if (!value_->is_boolean()) wrong_type("true or false");
  return value_->get<bool>();
}

std::string JsonValue::any_text() const {
  if (!value_->is_string()) wrong_type("a text in quotes");
  return value_->get<std::string>();
}

std::string JsonValue::text() const {
  std::string text = any_text();
  if (has_control(text))
    refuse("\"" + printable(text) + "\" holds a control character", "write it in one line of plain text");
  return text;
}

JsonObject JsonValue::object() const { return JsonObject(*this); }

std::vector<JsonValue> JsonValue::array() const {
  if (!value_->is_array()) wrong_type("an array");
  std::vector<JsonValue> out;
  out.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) out.push_back(element(i));
  return out;
}

std::vector<std::int64_t> JsonValue::integers(std::int64_t min, std::int64_t max) const {
  if (!value_->is_array()) wrong_type("an array of integers");
  std::vector<std::int64_t> out(value_->size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const nlohmann::json& e = (*value_)[i];
    const bool plain = e.is_number_integer() &&
                       !(e.is_number_unsigned() && e.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxInteger));
    out[i] = plain ? e.get<std::int64_t>() : 0;
    if (!plain || out[i] < min || out[i] > max)
      out[i] = element(i).integer(min, max);  // throws, with the element's path
  }
  return out;
}

std::vector<double> JsonValue::numbers(double min, double max) const {
  if (!value_->is_array()) wrong_type("an array of numbers");
  std::vector<double> out(value_->size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const nlohmann::json& e = (*value_)[i];
    out[i] = e.is_number() ? e.get<double>() : 0;
    if (!e.is_number() || !(out[i] >= min && out[i] <= max)) out[i] = element(i).number(min, max);  // throws
  }
  return out;
}

std::vector<double> JsonValue::numbers_or_nan() const {
  if (!value_->is_array()) wrong_type("an array of numbers or null");
  std::vector<double> out(value_->size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = (*value_)[i].is_null()
                 ? std::numeric_limits<double>::quiet_NaN()
                 : element(i).number(std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max());
  return out;
}

std::vector<std::string> JsonValue::texts() const {
  if (!value_->is_array()) wrong_type("an array of texts");
  std::vector<std::string> out;
  out.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    const nlohmann::json& e = (*value_)[i];
    const bool plain = e.is_string() && !has_control(e.get_ref<const std::string&>());
    out.push_back(plain ? e.get<std::string>() : element(i).text());  // throws, with the element's path
  }
  return out;
}

// --- JsonObject

JsonObject::JsonObject(JsonValue value) : value_(std::move(value)) {
  if (!value_.value_->is_object()) value_.wrong_type("an object");
}

Origin JsonObject::where(std::string_view key) const {
  return {value_.file_, value_.path_ + (value_.path_.empty() ? "" : ".") + printable(key)};
}

JsonValue JsonObject::at(std::string_view key) {
  asked_.emplace(key);
  const auto it = value_.value_->find(std::string(key));
  if (it == value_.value_->end()) throw InputError(where(key), "is missing", "add it");
  return {*it, value_.file_, value_.path_ + (value_.path_.empty() ? "" : ".") + std::string(key)};
}

std::optional<JsonValue> JsonObject::find(std::string_view key) {
  asked_.emplace(key);
  const auto it = value_.value_->find(std::string(key));
  if (it == value_.value_->end() || it->is_null()) return std::nullopt;
  return at(key);
}

bool JsonObject::has(std::string_view key) {
  asked_.emplace(key);
  return value_.value_->contains(std::string(key));
}

std::optional<std::int64_t> JsonObject::optional_integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const auto v = find(key);
  return v ? std::optional(v->integer(min, max)) : std::nullopt;
}
std::optional<double> JsonObject::optional_number(std::string_view key, double min, double max) {
  const auto v = find(key);
  return v ? std::optional(v->number(min, max)) : std::nullopt;
}
std::optional<bool> JsonObject::optional_boolean(std::string_view key) {
  const auto v = find(key);
  return v ? std::optional(v->boolean()) : std::nullopt;
}
std::optional<std::string> JsonObject::optional_text(std::string_view key) {
  const auto v = find(key);
  return v ? std::optional(v->text()) : std::nullopt;
}
std::optional<JsonObject> JsonObject::optional_object(std::string_view key) {
  const auto v = find(key);
  return v ? std::optional(v->object()) : std::nullopt;
}

void JsonObject::refuse(std::string_view key, const std::string& problem, const std::string& remedy) const {
  throw InputError(where(key), problem, remedy);
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, unused] : value_.value_->items()) out.push_back(key);
  return out;
}

void JsonObject::require(std::initializer_list<std::string_view> keys, const std::string& remedy) const {
  std::vector<std::string> absent;
  for (const std::string_view key : keys)
    if (!value_.value_->contains(std::string(key))) absent.push_back("\"" + std::string(key) + "\"");
  if (absent.empty()) return;
  std::string names = absent.front();
  for (std::size_t i = 1; i < absent.size(); ++i) names += (i + 1 == absent.size() ? " and " : ", ") + absent[i];
  throw InputError(where(), "lacks " + names, remedy);
}

void JsonObject::finish() const {
  for (const std::string& key : keys()) {
    if (!asked_.contains(key)) refuse(key, "is not a known key", suggestion(key, {asked_.begin(), asked_.end()}));
  }
}

// --- JsonDocument

JsonDocument::JsonDocument(std::unique_ptr<nlohmann::json> json, std::string file)
    : json_(std::move(json)), file_(std::move(file)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonObject JsonDocument::root() const& {
  JsonObject root(JsonValue(*json_, file_, ""));
  root.ignore("schema");
  return root;
}

JsonDocument parse_document(std::string_view text, std::string_view where, std::string_view expected_schema) {
  const std::string file(where);
  if (static_cast<std::int64_t>(text.size()) > kMaxJsonBytes)
    throw InputError(file, "is larger than 64 MiB", "give a smaller document");
  auto json = std::make_unique<nlohmann::json>();
  try {
    Guard guard(where);
    nlohmann::json::sax_parse(text, &guard);
    *json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    refuse_syntax(text, where, e.byte);
  } catch (const nlohmann::json::exception&) {
    throw InputError(file, "holds a number too large to represent", "correct the file");
  }
  JsonDocument document(std::move(json), file);
  JsonObject root = document.root();
  if (expected_schema.empty()) return document;
  if (!root.has("schema"))
    root.refuse("schema", "is missing", "add \"schema\": \"" + std::string(expected_schema) + "\"");
  const std::string schema = root.text("schema");
  if (schema != expected_schema) {
    root.refuse("schema", "is \"" + printable(schema) + "\"", "expected \"" + std::string(expected_schema) + "\"");
  }
  return document;
}

std::string read_file(const std::string& path, const Origin& where) {
  namespace fs = std::filesystem;
  const auto refuse = [&](const char* problem, const char* remedy) {
    throw InputError(where, "\"" + printable(path) + "\": " + problem, remedy);
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) refuse("there is no such file", "check the path");
  if (!fs::is_regular_file(status)) refuse("is not a regular file", "give a file");
  const auto size = fs::file_size(path, error);
  if (!error && size > static_cast<std::uintmax_t>(kMaxJsonBytes))
    refuse("is larger than 64 MiB", "give a smaller file");
  std::ifstream in(path, std::ios::binary);
  std::string text(error ? 0 : static_cast<std::size_t>(size), '\0');
  if (error || !in.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    refuse("cannot be read", "check its permissions");
  }
  return text;
}

}  // namespace fsdp
