#include "executor/checkpoint/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "executor/data/safetensors_writer.h"
#include "executor/kernels/host_kernel_set.h"
#include "models/graph/lora.h"
#include "models/hub/adapters.h"
#include "models/hub/config.h"
#include "models/hub/tensors.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

struct OutputTensor {
  const SavedTensor* saved = nullptr;
  HubTensor as;
};
struct OutputFile {
  std::string name;
  std::vector<OutputTensor> tensors;
};
// All that is written, and under which names.
struct Layout {
  std::string stem = "model";  // of the files of tensors
  std::vector<OutputTensor> tensors;
  std::string config_name, config, note;
};

DType type_of(const OutputTensor& t, const ExportOptions& o) { return o.dtype.value_or(t.saved->dtype); }
std::int64_t bytes_of(const OutputTensor& t, const ExportOptions& o) {
  return checked_mul(whole(t.as.shape).volume(), size_of(type_of(t, o)), t.as.name);
}

Layout layout_without_model(const Manifest& m) {
  Layout layout;
  for (const SavedTensor& t : m.tensors)
    if (!is_optimizer_state(t.name)) layout.tensors.push_back({&t, {t.name, t.shape, 0}});
  layout.note =
      "no config.json is written: the checkpoint does not hold the model's, as those of older versions do not; put it "
      "beside the weights";
  return layout;
}

Layout layout_of(const Checkpoint& saved, const ExportOptions& o) {
  const Manifest& m = saved.manifest();
  if (m.source.config.empty()) return layout_without_model(m);
  const std::string where = saved.folder() + "/" + kManifestName;
  const ModelGraph model = graph_of(m.source, m.seq_len, where + ": config");
  const bool adapters = has_adapters(model);
  Layout layout;
  for (const Parameter& p : model.parameters) {
    const SavedTensor* const t = saved.find(p.name);
    if (t == nullptr || t->shape != p.shape)
      throw InputError(where, "holds no tensor " + p.name + " as its own config describes it",
                       "use another checkpoint");
    if (adapters && lora_part(p) == LoraPart::none) continue;
    for (HubTensor& as : hub_tensors(model, p)) layout.tensors.push_back({t, std::move(as)});
  }
  if (model.digest() != m.model_digest)
    throw InputError(where, "keeps a config that does not describe its model", "use another checkpoint");
  if (adapters) {
    layout.stem = "adapter_model";
    layout.config_name = "adapter_config.json";
    layout.note = "these are the adapters alone: peft puts them on the weights that the training began with";
    layout.config = adapter_config(model, parse_lora(m.source.lora, where + ": lora"));
    return layout;
  }
  HubConfig config = hub_config(m.source.config, model, type_of(layout.tensors.front(), o));
  layout.config = std::move(config.text);
  layout.note = layout.config.empty() ? "no config.json is written: " + config.problem : std::move(config.problem);
  if (!layout.config.empty()) layout.config_name = "config.json";
  return layout;
}

std::vector<OutputFile> divide(const Layout& layout, const ExportOptions& o) {
  std::vector<OutputFile> files;
  std::int64_t held = 0;
  const bool one = o.max_file_bytes == 0 || layout.stem != "model";
  for (const OutputTensor& t : layout.tensors) {
    const std::int64_t bytes = bytes_of(t, o);
    if (files.empty() || (!one && held + bytes > o.max_file_bytes)) {
      files.emplace_back();
      held = 0;
    }
    files.back().tensors.push_back(t);
    held += bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name = files.size() == 1 ? layout.stem + ".safetensors"
                                      : fmt::format("{}-{:05}-of-{:05}.safetensors", layout.stem, i + 1, files.size());
  return files;
}

// Rows [begin, begin + n) of the tensor that is written: of the saved one, or of a matrix of one of its experts.
Box rows_of(const OutputTensor& t, std::int64_t begin, std::int64_t n) {
  const std::vector<std::int64_t>& shape = t.saved->shape;
  if (t.as.shape.size() == shape.size()) return shape.empty() ? whole(shape) : box_of({0, begin, n}, shape);
  const std::int64_t row = t.as.begin / shape[2];
  return {{row / shape[1], row % shape[1] + begin, 0}, {1, n, shape[2]}};
}

// Rows at a time; where a row alone is too much, all the same.
void write_tensor(const Checkpoint& saved, const OutputTensor& t, const ExportOptions& o, FileWriter& file) {
  const DType from = t.saved->dtype, type = type_of(t, o);
  const std::int64_t rows = t.as.shape.empty() ? 1 : t.as.shape[0];
  const std::int64_t row = rows == 0 ? 0 : whole(t.as.shape).volume() / rows;
  const std::int64_t at_once = std::max<std::int64_t>(1, row == 0 ? rows : o.part_bytes / (row * size_of(from)));
  std::vector<std::byte> read, converted;
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const std::int64_t n = std::min(at_once, rows - begin), elements = n * row;
    read.resize(static_cast<std::size_t>(elements * size_of(from)));
    saved.read(*t.saved, rows_of(t, begin, n), read);
    if (type == from) {
      file.append(read);
      continue;
    }
    converted.resize(static_cast<std::size_t>(elements * size_of(type)));
    host_kernel_set().convert(from, {read.data(), elements * size_of(from)}, type,
                              {converted.data(), elements * size_of(type)}, elements, false);
    file.append(converted);
  }
}

void write_text(const std::string& path, const std::string& text, const ExportOptions& o) {
  FileWriter file(o.files, path);
  file.append(text);
  file.finish();
}

std::string index_text(const std::vector<OutputFile>& files, std::int64_t bytes) {
  nlohmann::json index;
  index["metadata"]["total_size"] = bytes;
  for (const OutputFile& f : files)
    for (const OutputTensor& t : f.tensors) index["weight_map"][t.as.name] = f.name;
  return index.dump(2) + "\n";
}

// What an export that was ended left, or this one: files of ours and nothing else.
void remove_temporary(const FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  if (files.list(folder, names) < 0) return;
  for (const std::string& name : names)
    if (name.starts_with("model") || name.starts_with("adapter_") || name == "config.json")
      files.remove_file(folder + "/" + name);
  files.remove_folder(folder);
}

Exported write_all(const Checkpoint& saved, const Layout& layout, const ExportOptions& o, const std::string& folder) {
  const std::vector<OutputFile> files = divide(layout, o);
  std::int64_t all = 0;
  for (const OutputTensor& t : layout.tensors) all = checked_add(all, bytes_of(t, o), "export");
  Exported result;
  result.config = layout.config_name;
  result.note = layout.note;
  for (const OutputFile& f : files) {
    std::vector<HeaderTensor> tensors;
    for (const OutputTensor& t : f.tensors) tensors.push_back({t.as.name, type_of(t, o), t.as.shape});
    FileWriter file(o.files, folder + "/" + f.name);
    file.append(safetensors_header(tensors, {{"format", "pt"}}));
    for (const OutputTensor& t : f.tensors) {
      write_tensor(saved, t, o, file);
      ++result.tensors;
      result.bytes += bytes_of(t, o);
      if (o.progress) o.progress(result.bytes, all);
    }
    file.finish();
    ++result.files;
  }
  if (files.size() > 1) write_text(folder + "/" + layout.stem + ".safetensors.index.json", index_text(files, all), o);
  if (!layout.config.empty()) write_text(folder + "/" + layout.config_name, layout.config, o);
  return result;
}

}  // namespace

Exported export_checkpoint(const Checkpoint& saved, const ExportOptions& options) {
  std::string output = options.output;
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  const std::size_t slash = output.find_last_of('/');
  const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : output.substr(0, slash);
  const std::string folder = parent + "/.exporting-" + output.substr(slash == std::string::npos ? 0 : slash + 1);
  Entry entry;
  if (output.empty() || options.files.inspect(output, entry) == 0)
    throw InputError("-o", "'" + options.output + "' exists already", "give the name of a new folder");
  const Layout layout = layout_of(saved, options);
  remove_temporary(options.files, folder);
  if (const int made = options.files.make_folder(folder); made < 0)
    throw InputError("-o", fmt::format("'{}' cannot be made ({})", options.output, std::strerror(-made)),
                     "give a folder in one that exists and can be written");
  try {
    const Exported result = write_all(saved, layout, options, folder);
    sync_folder(options.files, folder);
    if (const int moved = options.files.rename(folder, output); moved < 0)
      fail_machine(output, "could not be put in its place", moved);
    sync_folder(options.files, parent);
    return result;
  } catch (const std::exception&) {
    remove_temporary(options.files, folder);
    throw;
  }
}

}  // namespace fsdp
