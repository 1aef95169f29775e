#include "executor/data/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// What to do with a folder that holds no weights of that name.
std::string remedy(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "adapter_model.safetensors", error))
    return "it holds adapters: give the folder of the base model, and this one for the adapters";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename() == "manifest.json" || entry.path().filename().string().starts_with("step-"))
      return "it is a checkpoint of a run: `fsdp-plan checkpoint export` makes such a folder of it";
  return "save the model there with save_pretrained";
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path, std::string_view where, std::string_view stem)
    : named_(std::string(where) + ": \"" + printable(path) + "\"") {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    const fs::path folder(path);
    const std::string one = fmt::format("{}.safetensors", stem), several = one + ".index.json";
    file = (folder / one).string();
    if (!fs::exists(file, error)) file = (folder / several).string();
    if (!fs::exists(file, error)) throw InputError(named_, "holds neither " + one + " nor " + several, remedy(folder));
  }
  if (file.ends_with(".json")) add_index(file, where);
  else add_file(file, where);
}

void WeightFiles::add_file(const std::string& path, std::string_view where) {
  files_.push_back(std::make_shared<const SafetensorsFile>(path, where));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsTensor& t : file.header().tensors)
    if (const auto [other, fresh] = tensors_.try_emplace(t.name, WeightPlace{&file, &t}); !fresh)
      throw InputError(file.file().named(),
                       fmt::format("tensor \"{}\" is also in \"{}\"", printable(t.name),
                                   printable(other->second.file->file().path())),
                       "keep one");
}

// Which tensor is in which file: {"metadata": ..., "weight_map": {name: file}}. The files stand beside it.
void WeightFiles::add_index(const std::string& path, std::string_view where) {
  const std::string text = read_file(path, where);
  const JsonDocument document = parse_document(text, path, "");
  JsonObject root = document.root();
  root.ignore("metadata");
  JsonObject map = root.object("weight_map");
  root.finish();
  std::set<std::string> names;
  for (const std::string& tensor : map.keys()) {
    const std::string name = map.text(tensor);
    if (name.empty() || name.find('/') != std::string::npos || !name.ends_with(".safetensors"))
      map.refuse(tensor, "\"" + printable(name) + "\" is not the name of a safetensors file beside the index",
                 "correct the index");
    names.insert(name);
  }
  if (names.empty()) throw InputError(named_, "has a weight_map without tensors", "download the files again");
  for (const std::string& name : names) add_file((fs::path(path).parent_path() / name).string(), where);
  for (const std::string& tensor : map.keys()) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || fs::path(found->second.file->file().path()).filename() != map.text(tensor))
      map.refuse(tensor, "the file that it names, " + printable(map.text(tensor)) + ", has no such tensor",
                 "download the files again");
  }
}

std::optional<WeightPlace> WeightFiles::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return std::nullopt;
  const WeightPlace place = found->second;
  const SafetensorsTensor& t = *place.tensor;
  if (t.shape != shape)
    throw InputError(place.file->file().named(),
                     fmt::format("tensor \"{}\" has the shape {}, the model needs {}", printable(name),
                                 shape_text(t.shape), shape_text(shape)),
                     kOtherModel);
  if (!t.type || *t.type == DType::i64)
    throw InputError(place.file->file().named(),
                     fmt::format("tensor \"{}\" is of type {}", printable(name), t.type_name),
                     "save it as F64, F32, F16 or BF16");
  ++types_[t.type_name];
  tensors_.erase(found);
  return place;
}

std::string WeightFiles::types() const {
  std::vector<std::string> types;
  for (const auto& [type, unused] : types_) types.push_back(type);
  return join(types);
}

bool same_tensor(const WeightPlace& a, const WeightPlace& b) {
  const SafetensorsTensor &x = *a.tensor, &y = *b.tensor;
  if (x.type_name != y.type_name || x.shape != y.shape) return false;
  std::array<char, 16 * 1024> left{}, right{};
  for (std::int64_t done = 0; done < x.bytes; done += static_cast<std::int64_t>(left.size())) {
    const std::int64_t n = std::min(x.bytes - done, static_cast<std::int64_t>(left.size()));
    a.file->file().read(a.file->header().data_begin + x.begin + done, n, left.data());
    b.file->file().read(b.file->header().data_begin + y.begin + done, n, right.data());
    if (std::memcmp(left.data(), right.data(), static_cast<std::size_t>(n)) != 0) return false;
  }
  return true;
}

}  // namespace fsdp
