#include "models/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/importers/importers.h"
#include "models/input/embedded.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Family {
  std::string_view model_type;
  Importer import;
};
constexpr std::array kFamilies{
    Family{"llama", import_llama}, Family{"mistral", import_llama}, Family{"qwen2", import_llama},
    Family{"qwen3", import_llama}, Family{"mixtral", import_llama}, Family{"qwen3_moe", import_llama},
    Family{"olmoe", import_llama}, Family{"gpt2", import_gpt2},     Family{"mpt", import_mpt}};

std::string stem(std::string_view file) { return fs::path(file).stem().string(); }

std::vector<std::string> names_in(std::string_view folder) {
  std::vector<std::string> names;
  for (const EmbeddedFile& f : embedded_files()) {
    if (f.path.starts_with(folder)) names.push_back(stem(f.path));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "runs/llama/config.json" is called "llama", "my-model.json" is called "my-model".
std::string model_name(std::string_view where) {
  const fs::path path(where);
  const std::string folder = path.parent_path().filename().string();
  return path.filename() == "config.json" && !folder.empty() && folder != "." ? folder : path.stem().string();
}

// A file, or the config.json of a folder; empty if `spec` names neither.
std::string config_path(std::string_view spec) {
  std::error_code error;
  const fs::path path(spec);
  if (fs::is_directory(path, error)) {
    const fs::path config = path / "config.json";
    if (!fs::exists(config, error))
      throw InputError(setting("model"), "\"" + printable(spec) + "\": the folder holds no config.json",
                       "give the folder of a Hugging Face model");
    return config.string();
  }
  return fs::exists(path, error) ? path.string() : std::string();
}

}  // namespace

std::string_view embedded_file(std::string_view path) {
  for (const EmbeddedFile& f : embedded_files()) {
    if (f.path == path) return f.text;
  }
  return {};
}

std::vector<std::string> model_names() { return names_in("configs/"); }
std::vector<std::string> cluster_names() {
  std::vector<std::string> names = names_in("clusters/");
  names.emplace_back("host");
  std::sort(names.begin(), names.end());
  return names;
}
std::vector<std::string> gpu_names() { return names_in("gpus/"); }
std::vector<std::string> model_families() {
  std::vector<std::string> names;
  for (const Family& f : kFamilies) names.emplace_back(f.model_type);
  return names;
}

ModelGraph model_from_config(std::string_view json_text, std::string_view where, std::int64_t seq_len) {
  if (seq_len < 0 || seq_len > std::int64_t{1} << 31)
    throw InputError(setting("seq_len"), fmt::format("{} is out of range", seq_len), "use 1 to 2147483648");
  const JsonDocument document = parse_document(json_text, where, "");
  JsonObject config = document.root();
  const std::string type = config.text("model_type");
  for (const Family& f : kFamilies) {
    if (f.model_type != type) continue;
    ModelGraph graph = f.import(config, where, seq_len);
    graph.name = model_name(where);
    return graph;
  }
  config.refuse("model_type", "\"" + printable(type) + "\" is not a known family",
                "known are " + join(model_families()));
}

ModelGraph load_model(std::string_view spec, std::int64_t seq_len) {
  const std::string catalog = fmt::format("configs/{}.json", spec);
  if (const std::string_view text = embedded_file(catalog); !text.empty())
    return model_from_config(text, catalog, seq_len);
  const std::string path = config_path(spec);
  if (path.empty()) {
    const bool looks_like_path = spec.find('/') != std::string_view::npos || spec.ends_with(".json");
    if (looks_like_path)
      throw InputError(setting("model"), "\"" + printable(spec) + "\": there is no such file or folder",
                       "check the path");
    throw InputError(setting("model"), "\"" + printable(spec) + "\" is not in the catalog, nor a file",
                     suggestion(spec, model_names()));
  }
  if (path.ends_with(".safetensors")) {
    throw InputError(setting("model"), "\"" + printable(path) + "\": weights files cannot be read yet",
                     "give the config.json beside it");
  }
  return model_from_config(read_file(path, setting("model")), path, seq_len);
}

}  // namespace fsdp
