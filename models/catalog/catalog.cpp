#include "models/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/catalog/advice.h"
#include "models/catalog/names.h"
#include "models/catalog/text_tower.h"
#include "models/importers/importers.h"
#include "models/input/embedded.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"
#include "models/trace/model_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

struct Family {
  std::string_view model_type;
  Importer* import;
};
constexpr std::array kFamilies{Family{"llama", import_llama},
                               Family{"mistral", import_llama},
                               Family{"qwen2", import_llama},
                               Family{"qwen2_5_vl_text", import_llama},
                               Family{"qwen3", import_llama},
                               Family{"mixtral", import_llama},
                               Family{"qwen3_moe", import_llama},
                               Family{"olmoe", import_llama},
                               Family{"olmo2", import_llama},
                               Family{"granite", import_llama},
                               Family{"glm4_moe", import_llama},
                               Family{"deepseek_v2", import_llama},
                               Family{"deepseek_v3", import_llama},
                               Family{"gpt_oss", import_gpt_oss},
                               Family{"phi3", import_phi3},
                               Family{"gemma2", import_gemma2},
                               Family{"gemma3_text", import_gemma3},
                               Family{"falcon", import_falcon},
                               Family{"gpt_neox", import_gpt_neox},
                               Family{"gpt2", import_gpt2},
                               Family{"mpt", import_mpt}};

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

// What a config says beside the model that is trained.
std::vector<std::string> notes_on(JsonObject& config) {
  std::vector<std::string> notes;
  if (const auto quantised = config.find("quantization_config")) {
    const std::string method =
        quantised->is_object() ? quantised->object().optional_text("quant_method").value_or("") : std::string();
    notes.push_back("quantization_config" + (method.empty() ? "" : " (" + printable(method) + ")") +
                    " is left out: the checkpoint is quantised, the parameters that are trained here are not");
  }
  return notes;
}

// The file that `spec` names, or of the catalog.
struct FoundConfig {
  std::string text, where;
};
FoundConfig find_config(std::string_view spec) {
  const std::string catalog = fmt::format("configs/{}.json", spec);
  if (const std::string_view text = embedded_file(catalog); !text.empty()) return {std::string(text), catalog};
  const std::string path = config_path(spec);
  if (path.empty()) {
    if (const std::string meant = catalog_name(spec); !meant.empty()) return find_config(meant);
    const bool looks_like_path = spec.find('/') != std::string_view::npos || spec.ends_with(".json");
    throw InputError(
        setting("model"),
        "\"" + printable(spec) +
            (looks_like_path ? "\": there is no such file or folder" : "\" is not in the catalog, nor a file"),
        name_advice(spec));
  }
  if (path.ends_with(".safetensors")) {
    throw InputError(setting("model"), "\"" + printable(path) + "\": weights files cannot be read yet",
                     "give the config.json beside it");
  }
  return {read_file(path, setting("model")), path};
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
  for (const std::string_view type : text_tower_types()) names.emplace_back(type);
  return names;
}

ModelGraph model_from_config(std::string_view json_text, std::string_view where, std::int64_t seq_len) {
  if (seq_len < 0 || seq_len > std::int64_t{1} << 31)
    throw InputError(setting("seq_len"), fmt::format("{} is out of range", seq_len), "use 1 to 2147483648");
  const JsonDocument document = parse_document(json_text, where, "");
  JsonObject config = document.root();
  if (const auto schema = config.find("schema"); schema && schema->is_text() && schema->text() == kModelSchema)
    return model_from_trace(config, where, seq_len);
  std::string type = config.optional_text("model_type").value_or("");
  std::vector<std::string> notes = notes_on(config);
  if (type.empty() && looks_like_llama(config)) {
    type = "llama";
    notes.emplace_back("it states no model_type; its keys are Llama's");
  }
  ModelGraph graph;
  if (const TextTower* tower = find_text_tower(type)) {
    const std::string text = text_config(*tower, json_text, where);
    graph = inside_whole(*tower, model_from_config(text, std::string(where) + ": text_config", seq_len));
  } else {
    const auto* const family =
        std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.model_type == type; });
    if (family == kFamilies.end()) refuse_family(config, type);
    graph = family->import(config, where, seq_len);
  }
  graph.notes.insert(graph.notes.begin(), notes.begin(), notes.end());
  graph.name = model_name(where);
  return graph;
}

ModelGraph load_model(std::string_view spec, std::int64_t seq_len) {
  const FoundConfig found = find_config(spec);
  return model_from_config(found.text, found.where, seq_len);
}

std::string load_config(std::string_view spec) { return find_config(spec).text; }

}  // namespace fsdp
