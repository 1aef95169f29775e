// What `checkpoint export` writes: the tensors and the configuration that other programs load. That they do is tried
// with transformers and peft by tests/torch/hub_folders.py.
#include "executor/checkpoint/export.h"

#include <nlohmann/json.hpp>

#include "executor/checkpoint/model_source.h"
#include "executor/data/initial_weights.h"
#include "executor/data/safetensors.h"
#include "models/graph/lora.h"
#include "models/hub/tensors.h"
#include "tests/support/checkpoint_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr const char* kMixtral =
    R"({"model_type": "mixtral", "capacity_factor": 2.0, "hidden_size": 24, "intermediate_size": 20, "eos_token_id": 2,
        "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1, "num_key_value_heads": 2,
        "num_local_experts": 4, "vocab_size": 41})";
constexpr const char* kLlama =
    R"({"model_type": "llama", "vocab_size": 40, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16"})";

struct SavedRun {
  ModelGraph model;
  Trained trained;
};
// Two steps on three ranks, saved into `directory`.
SavedRun save(const ModelSource& source, const std::string& directory) {
  SavedRun run{graph_of(source, 8, "config.json"), {}};
  PlanWords words{.shard = 3, .micro_batches = {2}};
  words.compute = words.reduce = words.master = DType::f32;
  const ShardingPlan plan = make_plan(run.model, words);
  SaveOptions options;
  options.directory = directory;
  options.source = source;
  RunOptions more;
  more.after_step = checkpoint_saver(run.model, plan, options);
  static_cast<void>(claim_folder(options.files, directory, 0));
  run.trained = train(run.model, plan, 2, more);
  return run;
}

Exported export_to(const std::string& directory, const std::string& output, std::int64_t max_file_bytes = 0,
                   std::optional<DType> dtype = {}) {
  ExportOptions options;
  options.output = output;
  options.max_file_bytes = max_file_bytes;
  options.dtype = dtype;
  return export_checkpoint(Checkpoint(directory), options);
}

std::string bytes_in(const SafetensorsFile& file, const SafetensorsTensor& t, DType type) {
  std::string bytes(static_cast<std::size_t>(t.numel() * size_of(type)), '\xFF');
  file.read(t, 0, t.numel(), type, reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

}  // namespace

TEST_CASE("a mixture is exported expert by expert, with its config, and a run starts from it: the very values") {
  const Folder folder;
  const SavedRun run = save({kMixtral, ""}, folder / "ckpt");
  const Exported exported = export_to(folder / "ckpt", folder / "one");
  CHECK(exported.tensors == 22);
  CHECK(exported.config == "config.json");
  CHECK(exported.note.empty());
  const SafetensorsFile file(folder / "one/model.safetensors", "test");
  CHECK(file.header().tensors.size() == 22);
  for (const Parameter& p : run.model.parameters)
    for (const HubTensor& t : hub_tensors(run.model, p)) {
      CAPTURE(t.name);
      const SafetensorsTensor* found = file.header().find(t.name);
      REQUIRE(found != nullptr);
      CHECK(found->shape == t.shape);
      const std::string bytes = bytes_in(file, *found, DType::f32);
      CHECK(bytes == run.trained.after.at(2).at(p.name).substr(static_cast<std::size_t>(4 * t.begin), bytes.size()));
    }
  const auto config = nlohmann::json::parse(read_bytes(folder / "one/config.json"));
  CHECK(config["architectures"] == std::vector<std::string>{"MixtralForCausalLM"});
  CHECK(config["dtype"] == "float32");
  CHECK(config["eos_token_id"] == 2);
  CHECK(export_to(folder / "ckpt", folder / "many", 3000).files > 5);
  CHECK(nlohmann::json::parse(read_bytes(folder / "many/model.safetensors.index.json"))["weight_map"].size() == 22);
  for (const char* out : {"one", "many"}) {
    const StateReader read = InitialWeights(folder / out, "--init-from", run.model).reader();
    for (const Parameter& p : run.model.parameters) {
      std::string bytes(static_cast<std::size_t>(p.numel() * 4), '\xFF');
      read(p, StatePart::parameter, {0, 0, p.shape[0]}, DType::f32, reinterpret_cast<std::byte*>(bytes.data()));
      CHECK(bytes == run.trained.after.at(2).at(p.name));
    }
  }
}

TEST_CASE("a tensor that is written row by row is the same file") {
  const Folder folder;
  static_cast<void>(save({kMixtral, ""}, folder / "ckpt"));
  ExportOptions options;
  for (const std::int64_t part : {std::int64_t{1}, std::int64_t{300}, std::int64_t{1} << 26}) {
    options.output = folder / std::to_string(part);
    options.part_bytes = part;
    options.dtype = DType::f64;
    static_cast<void>(export_checkpoint(Checkpoint(folder / "ckpt"), options));
    CHECK(read_bytes(options.output + "/model.safetensors") == read_bytes(folder / "1/model.safetensors"));
  }
}

TEST_CASE("the config says the type that weights are exported in") {
  const Folder folder;
  static_cast<void>(save({kLlama, ""}, folder / "ckpt"));
  static_cast<void>(export_to(folder / "ckpt", folder / "out", 0, DType::f16));
  const auto config = nlohmann::json::parse(read_bytes(folder / "out/config.json"));
  CHECK(config["dtype"] == "float16");
  CHECK(config["torch_dtype"] == "float16");
  CHECK(config["tie_word_embeddings"] == false);
}

TEST_CASE("of a model with adapters the adapters alone are exported, as peft has them, in one file") {
  const Folder folder;
  const SavedRun run = save({kLlama, "rank=2,alpha=4,targets=q_proj+v_proj"}, folder / "ckpt");
  const Exported exported = export_to(folder / "ckpt", folder / "out", 1);
  CHECK(exported.tensors == 8);
  CHECK(exported.files == 1);
  CHECK(exported.config == "adapter_config.json");
  CHECK(holds(exported.note, "the adapters alone"));
  CHECK(files_below(folder / "out").size() == 2);
  const SafetensorsFile file(folder / "out/adapter_model.safetensors", "test");
  const SafetensorsTensor* b = file.header().find("base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight");
  REQUIRE(b != nullptr);
  CHECK(b->shape == std::vector<std::int64_t>{12, 2});
  CHECK(bytes_in(file, *b, DType::f32) ==
        run.trained.after.at(2).at("model.layers.1.self_attn.v_proj.lora_B.default.weight"));
  const auto config = nlohmann::json::parse(read_bytes(folder / "out/adapter_config.json"));
  CHECK(config["r"] == 2);
  CHECK(config["lora_alpha"] == 4);
  CHECK(config["target_modules"] == std::vector<std::string>{"q_proj", "v_proj"});
}

TEST_CASE("a checkpoint without its model's config is exported under its own names, and the lack is said") {
  const Folder folder;
  const ModelGraph model = graph_of({kMixtral, ""}, 8, "config.json");
  const ShardingPlan plan = make_plan(model, {.shard = 2, .micro_batches = {2}});
  static_cast<void>(train(model, plan, 2, saving(model, plan, folder / "ckpt")));
  const Exported exported = export_to(folder / "ckpt", folder / "out");
  CHECK(exported.config.empty());
  CHECK(holds(exported.note, "no config.json is written: the checkpoint does not hold the model's"));
  CHECK(exported.tensors == static_cast<std::int64_t>(model.parameters.size()));
  CHECK(files_below(folder / "out").size() == 1);
}

TEST_CASE("a manifest keeps what its model was built from, and one that describes another model is refused") {
  const Folder folder;
  static_cast<void>(save({kLlama, "rank=2"}, folder / "ckpt"));
  const std::string path = folder / "ckpt/step-00000002/manifest.json";
  const std::string text = read_bytes(path);
  Manifest m = parse_manifest(text, "manifest.json");
  CHECK(m.source == ModelSource{kLlama, "rank=2"});
  CHECK(to_json_text(m) == text);
  const auto refuses = [&](const ModelSource& source) {
    m.source = source;
    write_bytes(path, to_json_text(m));
    return refusal([&] { return export_to(folder / "ckpt", folder / "out").files; });
  };
  CHECK(holds(refuses({kMixtral, ""}), "manifest.json: holds no tensor model.embed_tokens.weight as its own config"));
  CHECK(holds(refuses({kLlama, "rank=3"}), "lora_A.default.weight as its own config describes it"));
  CHECK(holds(refuses({kLlama, "rank=x"}), "manifest.json: config"));
  CHECK(holds(refuses({"{", ""}), "manifest.json: config"));
  CHECK(holds(refuses({R"({"model_type": "bert"})", ""}), "manifest.json: config"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK_FALSE(std::filesystem::exists(folder / ".exporting-out"));
}
