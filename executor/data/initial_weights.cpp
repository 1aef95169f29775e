#include "executor/data/initial_weights.h"

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

constexpr const char* kOtherModel = "give the weights of this model, or the model of these weights (--model)";

// "transformer." or "model.": what the names of the base model's parameters begin with.
std::string base_prefix(const ModelGraph& model) {
  const std::string& first = model.parameters.front().name;
  return first.substr(0, first.find('.') + 1);
}

// What transformers once wrote beside parameters; no model reads it back.
bool is_old_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool same_bytes(const SafetensorsFile& a, const SafetensorsTensor& x, const SafetensorsFile& b,
                const SafetensorsTensor& y) {
  if (x.type_name != y.type_name || x.shape != y.shape) return false;
  std::array<char, 16 * 1024> left{}, right{};
  for (std::int64_t done = 0; done < x.bytes; done += static_cast<std::int64_t>(left.size())) {
    const std::int64_t n = std::min(x.bytes - done, static_cast<std::int64_t>(left.size()));
    a.file().read(a.header().data_begin + x.begin + done, n, left.data());
    b.file().read(b.header().data_begin + y.begin + done, n, right.data());
    if (std::memcmp(left.data(), right.data(), static_cast<std::size_t>(n)) != 0) return false;
  }
  return true;
}

}  // namespace

InitialWeights::InitialWeights(const std::string& path, std::string_view where, const ModelGraph& model)
    : path_(path), named_(std::string(where) + ": \"" + printable(path) + "\"") {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    const fs::path folder(path);
    file = (folder / "model.safetensors").string();
    if (!fs::exists(file, error)) file = (folder / "model.safetensors.index.json").string();
    if (!fs::exists(file, error))
      throw InputError(named_, "holds neither model.safetensors nor model.safetensors.index.json",
                       "save the model there with save_pretrained(..., safe_serialization=True)");
  }
  if (file.ends_with(".json")) add_index(file, where);
  else add_file(file, where);
  const std::string prefix = model.parameters.empty() ? "" : base_prefix(model);
  for (const Parameter& p : model.parameters) claim(p, prefix);
  refuse_unclaimed();
}

void InitialWeights::add_file(const std::string& path, std::string_view where) {
  files_.push_back(std::make_shared<const SafetensorsFile>(path, where));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsTensor& t : file.header().tensors)
    if (const auto [other, fresh] = tensors_.try_emplace(t.name, Place{&file, &t}); !fresh)
      throw InputError(file.file().named(),
                       fmt::format("tensor \"{}\" is also in \"{}\"", printable(t.name),
                                   printable(other->second.file->file().path())),
                       "keep one");
}

// Which tensor is in which file: {"metadata": ..., "weight_map": {name: file}}. The files stand beside it.
void InitialWeights::add_index(const std::string& path, std::string_view where) {
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
  for (const std::string& name : names) add_file((fs::path(path).parent_path() / name).string(), where);
  for (const std::string& tensor : map.keys()) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || fs::path(found->second.file->file().path()).filename() != map.text(tensor))
      map.refuse(tensor, "the file that it names, " + printable(map.text(tensor)) + ", has no such tensor",
                 "download the files again");
  }
}

// Takes the tensors of a parameter out of `tensors_`.
void InitialWeights::claim(const Parameter& p, std::string_view prefix) {
  std::vector<std::string> names = {p.name};
  names.insert(names.end(), p.aliases.begin(), p.aliases.end());
  for (std::size_t i = 0, n = names.size(); i < n; ++i)
    if (!prefix.empty() && names[i].starts_with(prefix)) names.push_back(names[i].substr(prefix.size()));
  Place place;
  for (const std::string& name : names) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) continue;
    const Place here = found->second;
    const SafetensorsTensor& t = *here.tensor;
    const std::string tensor = "tensor \"" + name + "\"";
    if (t.shape != p.shape)
      throw InputError(
          here.file->file().named(),
          fmt::format("{} has the shape {}, the model needs {}", tensor, shape_text(t.shape), shape_text(p.shape)),
          kOtherModel);
    if (!t.type || *t.type == DType::i64)
      throw InputError(here.file->file().named(), tensor + " is of type " + t.type_name,
                       "save it as F64, F32, F16 or BF16");
    if (place.tensor != nullptr && !same_bytes(*place.file, *place.tensor, *here.file, t))
      throw InputError(
          here.file->file().named(),
          fmt::format("{} and \"{}\" differ, but the model has one weight for both", tensor, place.tensor->name),
          kOtherModel);
    if (place.tensor == nullptr) place = here;
    ++types_[t.type_name];
    tensors_.erase(found);
  }
  if (place.tensor == nullptr)
    throw InputError(
        named_, "has no tensor \"" + names.front() + "\"" + (names.size() > 1 ? " (nor \"" + names[1] + "\")" : ""),
        kOtherModel);
  parameters_[p.name] = place;
}

void InitialWeights::refuse_unclaimed() const {
  for (const auto& [name, place] : tensors_)
    if (!is_old_buffer(name))
      throw InputError(place.file->file().named(), "tensor \"" + printable(name) + "\" is not one of the model's",
                       kOtherModel);
}

StateReader InitialWeights::reader() const {
  return [files = files_, parameters = parameters_](const Parameter& p, StatePart part, const Slab& slab, DType type,
                                                    std::byte* to) {
    if (part != StatePart::parameter) return;
    const auto found = parameters.find(p.name);
    if (found == parameters.end())
      throw MachineError("initial weights are asked of parameter " + p.name + ", which the model did not have");
    const auto dim = static_cast<std::size_t>(slab.dim);
    std::int64_t before = 1, after = 1;  // elements of the dimensions on either side of the sharded one
    for (std::size_t d = 0; d < p.shape.size(); ++d) (d < dim ? before : after) *= d == dim ? 1 : p.shape[d];
    for (std::int64_t i = 0; i < before; ++i) {
      const std::int64_t n = slab.rows * after;
      found->second.file->read(*found->second.tensor, (i * p.shape[dim] + slab.begin) * after, n, type, to);
      to += n * size_of(type);
    }
  };
}

std::string InitialWeights::describe() const {
  std::vector<std::string> types;
  for (const auto& [type, unused] : types_) types.push_back(type);
  return fmt::format("{}: {} tensors in {} {}, {}", printable(path_), parameters_.size(), files_.size(),
                     files_.size() == 1 ? "file" : "files", join(types));
}

}  // namespace fsdp
