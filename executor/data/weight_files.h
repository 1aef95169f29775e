// The tensors of one safetensors file, of an index of several, or of a folder that holds model.safetensors or
// model.safetensors.index.json, by name; whoever needs a tensor takes it out, and what is left at the end belongs to
// another model. Files are opened and their headers checked; data is read later.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "executor/data/safetensors.h"

namespace fsdp {

struct WeightPlace {
  const SafetensorsFile* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};

class WeightFiles {
 public:
  using Tensors = std::map<std::string, WeightPlace, std::less<>>;

  // `stem` is "model", or "adapter_model" of peft. Throws InputError(`where`: "path", ...).
  WeightFiles(const std::string& path, std::string_view where, std::string_view stem);

  [[nodiscard]] bool has(std::string_view name) const { return tensors_.contains(name); }
  // Empty: there is none, or it was taken. Throws InputError naming file and tensor for another shape, and for a type
  // that nothing is trained from.
  [[nodiscard]] std::optional<WeightPlace> take(std::string_view name, const std::vector<std::int64_t>& shape);
  [[nodiscard]] const Tensors& left() const { return tensors_; }

  [[nodiscard]] const std::vector<std::shared_ptr<const SafetensorsFile>>& files() const { return files_; }
  [[nodiscard]] const std::string& named() const { return named_; }  // for errors: `where`: "path"
  [[nodiscard]] std::string types() const;                           // of the tensors that were taken: "BF16, F32"

 private:
  void add_file(const std::string& path, std::string_view where);
  void add_index(const std::string& path, std::string_view where);

  std::string named_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  Tensors tensors_;
  std::map<std::string, std::int64_t> types_;  // how many tensors of each were taken
};

// What to do about files of another model.
inline constexpr const char* kOtherModel = "give the weights of this model, or the model of these weights (--model)";

// The same type, shape and bytes.
[[nodiscard]] bool same_tensor(const WeightPlace&, const WeightPlace&);

}  // namespace fsdp
