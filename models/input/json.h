// Strict reading of JSON documents: every error is one sentence with file, field and remedy, and what is not known is
// refused by name. For .cpp files only (it does not drag nlohmann/json in, but nothing public should depend on it).
//
//   const JsonDocument document = parse_document(text, "plan.json", "fsdp-plan/plan/1");    // checks "schema"
//   JsonObject root = document.root();
//   plan.seq_len = root.integer("seq_len", 1, 1 << 24);
//   plan.clip_norm = root.optional_number("clip_norm", 0, 1e30);       // absent or null: nullopt
//   for (const JsonValue& item : root.array("units")) {                // errors say "plan.json: units[3].modules: ..."
//     JsonObject unit = item.object();
//     u.modules = unit.texts("modules");
//     unit.finish();
//   }
//   root.finish();                                                     // refuses keys that nobody asked for
//
// Values and objects refer to their document, which must outlive them. Limits: 64 MiB of text, nesting depth 64; a key
// that occurs twice in one object is refused. Numbers are never rounded silently: integer() refuses 1.0 and what
// exceeds 64 bits.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/input/error.h"

namespace fsdp {

inline constexpr std::int64_t kMaxJsonBytes = std::int64_t{64} << 20;
inline constexpr int kMaxJsonDepth = 64;
inline constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();

class JsonObject;

// One value and where it stands.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] std::int64_t integer(std::int64_t min, std::int64_t max) const;
  [[nodiscard]] std::uint64_t unsigned_integer() const;  // all 64 bits, for seeds
  [[nodiscard]] double number(double min, double max) const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string text() const;      // refuses control characters
  [[nodiscard]] std::string any_text() const;  // for what is checked before it is shown
  [[nodiscard]] JsonObject object() const;
  [[nodiscard]] std::vector<JsonValue> array() const;
  // Whole arrays of one type, without a JsonValue per element.
  [[nodiscard]] std::vector<std::int64_t> integers(std::int64_t min, std::int64_t max) const;
  [[nodiscard]] std::vector<double> numbers(double min, double max) const;
  // Where a number may be none (a loss that diverged): null stands for what is infinite or not a number, as JSON has no
  // word for them.
  [[nodiscard]] std::vector<double> numbers_or_nan() const;
  [[nodiscard]] std::vector<std::string> texts() const;

  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_text() const;
  [[nodiscard]] bool is_integer() const;
  [[nodiscard]] bool is_object() const;
  [[nodiscard]] Origin where() const;  // "plan.json: units[3].modules"
  [[noreturn]] void refuse(const std::string& problem,
                           const std::string& remedy = "") const;  // throws InputError(where(), ...)

 private:
  friend class JsonObject;
  [[noreturn]] void wrong_type(std::string_view expected) const;
  [[nodiscard]] JsonValue element(std::size_t index) const;
  const nlohmann::json* value_;
  std::string file_, path_;
};

// An object being read; remembers which keys were asked for.
class JsonObject {
 public:
  explicit JsonObject(JsonValue value);  // throws InputError if it is not an object

  [[nodiscard]] JsonValue at(std::string_view key);                   // throws if absent
  [[nodiscard]] std::optional<JsonValue> find(std::string_view key);  // absent or null: nullopt

  // Required ...
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max) {
    return at(key).integer(min, max);
  }
  [[nodiscard]] std::uint64_t unsigned_integer(std::string_view key) { return at(key).unsigned_integer(); }
  [[nodiscard]] double number(std::string_view key, double min, double max) { return at(key).number(min, max); }
  [[nodiscard]] bool boolean(std::string_view key) { return at(key).boolean(); }
  [[nodiscard]] std::string text(std::string_view key) { return at(key).text(); }
  [[nodiscard]] JsonObject object(std::string_view key) { return at(key).object(); }
  [[nodiscard]] std::vector<JsonValue> array(std::string_view key) { return at(key).array(); }
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key, std::int64_t min, std::int64_t max) {
    return at(key).integers(min, max);
  }
  [[nodiscard]] std::vector<double> numbers(std::string_view key, double min, double max) {
    return at(key).numbers(min, max);
  }
  [[nodiscard]] std::vector<double> numbers_or_nan(std::string_view key) { return at(key).numbers_or_nan(); }
  [[nodiscard]] std::vector<std::string> texts(std::string_view key) { return at(key).texts(); }
  // ... and optional; JSON null counts as absent.
  [[nodiscard]] std::optional<std::int64_t> optional_integer(std::string_view key, std::int64_t min, std::int64_t max);
  [[nodiscard]] std::optional<double> optional_number(std::string_view key, double min, double max);
  [[nodiscard]] std::optional<bool> optional_boolean(std::string_view key);
  [[nodiscard]] std::optional<std::string> optional_text(std::string_view key);
  [[nodiscard]] std::optional<JsonObject> optional_object(std::string_view key);

  [[nodiscard]] bool has(std::string_view key);  // present, null included
  // Throws InputError naming all of `keys` that are absent, so that a file is completed in one go.
  void require(std::initializer_list<std::string_view> keys, const std::string& remedy) const;
  void ignore(std::string_view key) { asked_.emplace(key); }  // allowed, unread (comments, "source")
  void finish() const;                                        // throws InputError naming the first unknown key
  [[nodiscard]] std::vector<std::string> keys() const;        // as they stand, sorted
  [[nodiscard]] Origin where(std::string_view key) const;     // of a field, present or not: for parse_bytes & Co.
  [[nodiscard]] Origin where() const { return value_.where(); }
  [[noreturn]] void refuse(std::string_view key, const std::string& problem, const std::string& remedy = "") const;

 private:
  JsonValue value_;
  std::set<std::string, std::less<>> asked_;
};

// A parsed file. Movable; values stay valid when it moves.
class JsonDocument {
 public:
  JsonDocument(std::unique_ptr<nlohmann::json> json, std::string file);
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();
  // The root, which must be an object. Its "schema", if one was asked for, counts as read.
  [[nodiscard]] JsonObject root() const&;
  JsonObject root() const&& = delete;

 private:
  std::unique_ptr<nlohmann::json> json_;
  std::string file_;
};

// `where`: the file's name for errors. `expected_schema`: "fsdp-plan/plan/1", or empty for documents that carry none.
[[nodiscard]] JsonDocument parse_document(std::string_view text, std::string_view where,
                                          std::string_view expected_schema);

// The text of a regular file of at most kMaxJsonBytes; throws InputError. `where`: what named the file.
[[nodiscard]] std::string read_file(const std::string& path, const Origin& where);

}  // namespace fsdp
