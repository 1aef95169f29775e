// Configurations as keys and values, and which of them were asked for. Private to planner/lint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/input/error.h"

namespace fsdp {

struct FlatValue {
  std::string key, value;  // "parallelism.data_parallel_shard_degree", "8"; items of a list joined by commas
  int line = 0;
  bool asked = false;
};

class FlatConfig {
 public:
  explicit FlatConfig(std::string where) : where_(std::move(where)) {}
  void add(std::string key, std::string value, int line);  // refuses a key that stands there already

  [[nodiscard]] std::optional<std::string> text(std::string_view key);  // absent, empty, null or None: nullopt
  [[nodiscard]] std::optional<bool> boolean(std::string_view key);
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max);
  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] std::string place(std::string_view key) const;  // "model.name (line 3)"
  void ignore(std::string_view key);                            // has no say in time or memory
  void ignore_section(std::string_view name);                   // all keys that begin so
  void leave(std::string_view key);                             // is not read, also where its value was asked for
  [[nodiscard]] std::vector<std::string> unread() const;
  [[noreturn]] void refuse(std::string_view key, const std::string& problem, const std::string& remedy = "") const;
  [[nodiscard]] const std::vector<FlatValue>& values() const { return values_; }
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[nodiscard]] const FlatValue* find(std::string_view key) const;
  FlatValue* find(std::string_view key);
  std::string where_;
  std::vector<FlatValue> values_;
};

// Does this word of a command line name an argument, as torchtitan's do?
[[nodiscard]] inline bool names_argument(std::string_view word) {
  return word.size() > 2 && word[0] == '-' && word[1] == '-' && word[2] != '-';
}

// The parts of these formats that configurations of training use. What is beyond (anchors, texts of several lines,
// tables of arrays) is refused with its line.
[[nodiscard]] FlatConfig flat_yaml(std::string_view text, std::string_view where);
[[nodiscard]] FlatConfig flat_toml(std::string_view text, std::string_view where);
[[nodiscard]] FlatConfig flat_arguments(std::string_view text, std::string_view where);  // of a command line
// Python that sets a configuration: "config.training.steps = 5", and the arguments of DistributedConfig(...) and of
// torchtitan's ParallelismConfig(...), TrainingConfig(...), CompileConfig(...) and more, whose sections they are; of
// its converters also that they are there ("Float8LinearConverter", "true"). Numbers may be products, lists are joined
// by commas. Everything else is read over.
[[nodiscard]] FlatConfig flat_python(std::string_view text, std::string_view where);
[[nodiscard]] bool looks_like_python(std::string_view text);

}  // namespace fsdp
