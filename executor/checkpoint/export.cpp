#include "executor/checkpoint/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "executor/data/safetensors_writer.h"
#include "executor/kernels/host_kernel_set.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kPart = std::int64_t{64} << 20;

struct OutputFile {
  std::string name;
  std::vector<const SavedTensor*> tensors;
};

bool is_parameter(const SavedTensor& t) { return !is_optimizer_state(t.name); }
DType type_of(const SavedTensor& t, const ExportOptions& o) { return o.dtype.value_or(t.dtype); }
std::int64_t bytes_of(const SavedTensor& t, const ExportOptions& o) {
  return checked_mul(whole(t.shape).volume(), size_of(type_of(t, o)), t.name);
}

std::vector<OutputFile> divide(const Manifest& m, const ExportOptions& o) {
  std::vector<OutputFile> files;
  std::int64_t held = 0;
  for (const SavedTensor& t : m.tensors) {
    if (!is_parameter(t)) continue;
    const std::int64_t bytes = bytes_of(t, o);
    if (files.empty() || (o.max_file_bytes > 0 && held + bytes > o.max_file_bytes)) {
      files.emplace_back();
      held = 0;
    }
    files.back().tensors.push_back(&t);
    held += bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

// Rows at a time; where a row alone is too much, all the same.
void write_tensor(const Checkpoint& saved, const SavedTensor& t, const ExportOptions& o, FileWriter& file) {
  const DType type = type_of(t, o);
  const std::int64_t rows = t.shape.empty() ? 1 : t.shape[0];
  const std::int64_t row = rows == 0 ? 0 : whole(t.shape).volume() / rows;
  const std::int64_t at_once = std::max<std::int64_t>(1, row == 0 ? rows : kPart / (row * size_of(t.dtype)));
  std::vector<std::byte> read, converted;
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    const std::int64_t n = std::min(at_once, rows - begin), elements = n * row;
    read.resize(static_cast<std::size_t>(elements * size_of(t.dtype)));
    saved.read(t, t.shape.empty() ? whole(t.shape) : box_of({0, begin, n}, t.shape), read);
    if (type == t.dtype) {
      file.append(read);
      continue;
    }
    converted.resize(static_cast<std::size_t>(elements * size_of(type)));
    host_kernel_set().convert(t.dtype, {read.data(), elements * size_of(t.dtype)}, type,
                              {converted.data(), elements * size_of(type)}, elements, false);
    file.append(converted);
  }
}

void write_index(const std::vector<OutputFile>& files, const ExportOptions& o, std::int64_t bytes,
                 const std::string& folder) {
  nlohmann::json index;
  index["metadata"]["total_size"] = bytes;
  for (const OutputFile& f : files)
    for (const SavedTensor* t : f.tensors) index["weight_map"][t->name] = f.name;
  FileWriter file(o.files, folder + "/model.safetensors.index.json");
  file.append(index.dump(2) + "\n");
  file.finish();
}

// What an export that was ended left, or this one: files of ours and nothing else.
void remove_temporary(const FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  if (files.list(folder, names) < 0) return;
  for (const std::string& name : names)
    if (name.starts_with("model")) files.remove_file(folder + "/" + name);
  files.remove_folder(folder);
}

Exported write_all(const Checkpoint& saved, const ExportOptions& o, const std::string& folder) {
  const std::vector<OutputFile> files = divide(saved.manifest(), o);
  std::int64_t all = 0;
  for (const OutputFile& f : files)
    for (const SavedTensor* t : f.tensors) all = checked_add(all, bytes_of(*t, o), "export");
  Exported result;
  for (const OutputFile& f : files) {
    std::vector<HeaderTensor> tensors;
    for (const SavedTensor* t : f.tensors) tensors.push_back({t->name, type_of(*t, o), t->shape});
    FileWriter file(o.files, folder + "/" + f.name);
    file.append(safetensors_header(tensors, {{"format", "pt"}}));
    for (const SavedTensor* t : f.tensors) {
      write_tensor(saved, *t, o, file);
      ++result.tensors;
      result.bytes += bytes_of(*t, o);
      if (o.progress) o.progress(result.bytes, all);
    }
    file.finish();
    ++result.files;
  }
  if (files.size() > 1) write_index(files, o, all, folder);
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
  remove_temporary(options.files, folder);
  if (const int made = options.files.make_folder(folder); made < 0)
    throw InputError("-o", fmt::format("'{}' cannot be made ({})", options.output, std::strerror(-made)),
                     "give a folder in one that exists and can be written");
  try {
    const Exported result = write_all(saved, options, folder);
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
