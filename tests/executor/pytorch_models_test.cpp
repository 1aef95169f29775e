// Llama with grouped queries, a tied one, GPT-2 and MPT (ALiBi) against transformers' own classes trained by PyTorch on
// the same text, from the same weights, with clipping and a learning-rate schedule: tests/golden/hf_models.json,
// recorded by tests/torch/record_hf_models.py.
#include <fstream>
#include <nlohmann/json.hpp>

#include "executor/data/initial_weights.h"
#include "executor/data/token_file.h"
#include "executor/training/learning_rate.h"
#include "models/input/error.h"
#include "tests/support/refusal.h"
#include "tests/support/run_support.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const nlohmann::json& golden() {
  static const nlohmann::json document = [] {
    std::ifstream file(FSDP_TESTS_DIR "/golden/hf_models.json");
    REQUIRE(file.good());
    return nlohmann::json::parse(file);
  }();
  return document;
}

ShardingPlan plan_of(const ModelGraph& model, std::int64_t ranks, DType type, std::vector<std::int64_t> micro_batches,
                     std::int64_t replicate = 1) {
  const auto& g = golden();
  PlanWords words{.shard = ranks / replicate,
                  .replicate = replicate,
                  .micro_batches = std::move(micro_batches),
                  .seq_len = g["seq_len"]};
  words.seed = g["seed"];
  words.clip_norm = g["clip_norm"].get<double>();
  words.compute = type;
  words.reduce = words.master = type == DType::bf16 ? DType::f32 : type;
  ShardingPlan plan = make_plan(model, words);
  const auto& a = g["adamw"];
  plan.optimizer = {OptimizerKind::adamw, a["lr"], a["beta1"], a["beta2"], a["eps"], a["weight_decay"]};
  return plan;
}

RunOptions options_of(const ModelGraph& model, const ShardingPlan& plan) {
  const auto& g = golden();
  RunOptions o;
  o.warmup_steps = 1;
  o.steps = g["steps"].get<int>() - 1;
  o.keep_parameters = true;
  o.training.tokens = TokenFile(FSDP_TESTS_DIR "/golden/text.txt", "text.txt",
                                {DataType::automatic, model.vocab, plan.seq_len, plan.seed})
                          .reader();
  o.training.learning_rate = LearningRate{Decay::cosine, plan.optimizer.lr, g["lr_min"], g["lr_warmup"], g["steps"]};
  return o;
}

struct Tolerance {
  double losses, gradients, parameters;
};

void check_equals(const nlohmann::json& recorded, const RunResult& result, const Tolerance& t) {
  const auto losses = recorded["losses"].get<std::vector<double>>();
  REQUIRE(result.measurement.losses.size() == losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(result.measurement.losses[i] - losses[i]) <= t.losses * losses[i]);
  }
  REQUIRE(result.first_gradients.size() == recorded["first_gradient_norms"].size());
  for (const NamedTensor& g : result.first_gradients) {
    CAPTURE(g.name);
    REQUIRE(recorded["first_gradient_norms"].contains(g.name));
    const double expected = recorded["first_gradient_norms"][g.name];
    CHECK(std::abs(norm(g.values) - expected) <= t.gradients * expected);
    if (recorded["first_gradients"].contains(g.name))
      CHECK(distance(g.values, recorded["first_gradients"][g.name].get<std::vector<double>>()) <= t.gradients);
  }
  for (const NamedTensor& p : result.parameters) {
    CAPTURE(p.name);
    const double expected = recorded["final_norms"][p.name];
    CHECK(std::abs(norm(p.values) - expected) <= t.parameters * expected);
    if (recorded["final_values"].contains(p.name))
      CHECK(distance(p.values, recorded["final_values"][p.name].get<std::vector<double>>()) <= t.parameters);
  }
}

// Every recorded model on these ranks; the 6 sequences of a step in these micro-batches per rank.
void check_models(const char* key, DType type, std::int64_t ranks, const std::vector<std::int64_t>& micro_batches,
                  const Tolerance& t, std::int64_t replicate = 1) {
  int models = 0;
  for (const auto& m : golden()["models"]) {
    CAPTURE(m["name"].get<std::string>());
    CAPTURE(ranks);
    const ModelGraph model = model_from_config(m["config"].get<std::string>(), "config.json", golden()["seq_len"]);
    const ShardingPlan plan = plan_of(model, ranks, type, micro_batches, replicate);
    check_equals(m[key], execute(model, plan, options_of(model, plan)), t);
    ++models;
  }
  CHECK(models == 4);
}

std::string folder_of(const std::string& name) { return FSDP_TESTS_DIR "/golden/hf/" + name; }

ModelGraph model_in(const std::string& folder) { return load_model(folder, golden()["seq_len"]); }

std::string refuses(const std::string& path, const ModelGraph& model) {
  return refusal([&] { return InitialWeights(path, "--init-from", model).describe(); });
}

}  // namespace

TEST_CASE(
    "fp64: eight steps on text with clipping and a cosine schedule equal PyTorch's to 1e-9, however they are divided") {
  constexpr Tolerance tight{1e-9, 1e-9, 1e-9};
  check_models("fp64", DType::f64, 1, {6}, tight);
  check_models("fp64", DType::f64, 2, {1, 2}, tight);
  check_models("fp64", DType::f64, 3, {2}, tight);
  check_models("fp64", DType::f64, 6, {1}, tight, 2);
}

// transformers computes in fp32 throughout here, as the kernels do. Losses follow eight updates; Adam divides small
// gradients by small roots.
TEST_CASE("fp32: first gradients equal PyTorch's to 1e-5") {
  check_models("fp32", DType::f32, 1, {6}, {1e-6, 1e-5, 1e-4});
  check_models("fp32", DType::f32, 3, {1, 1}, {1e-6, 1e-5, 1e-4});
}

// bf16 has 8 bits: each rounding is up to 2^-9 = 0.2 %, and both sides round at different places. Adam makes whole
// steps of it where a gradient is nothing but rounding (the key part of GPT-2's biases, which cannot change a softmax):
// final values to 5 %.
TEST_CASE("bf16: losses equal PyTorch's to 0.1 %, first gradients to 4 %") {
  check_models("bf16", DType::bf16, 1, {6}, {1e-3, 4e-2, 5e-2});
  check_models("bf16", DType::bf16, 2, {3}, {1e-3, 4e-2, 5e-2});
}

TEST_CASE("a run from what save_pretrained wrote begins with the loss of what from_pretrained reads") {
  for (const auto& saved : golden()["saved"]) {
    const std::string folder = folder_of(saved["folder"]);
    CAPTURE(folder);
    const ModelGraph model = model_in(folder);
    for (const std::int64_t ranks : {1, 3}) {
      const ShardingPlan plan = plan_of(model, ranks, DType::f64, {6 / ranks});
      RunOptions options = options_of(model, plan);
      options.steps = 1;
      const double before = execute(model, plan, options).measurement.losses.front();
      options.training.state = InitialWeights(folder, "--init-from", model).reader();
      const double loss = execute(model, plan, options).measurement.losses.front();
      CHECK(std::abs(loss - saved["loss"].get<double>()) <= 1e-9 * loss);
      CHECK(std::abs(before - loss) > 1e-3);  // other weights than those that the seed makes
    }
  }
}

TEST_CASE("a dimension other than the first is read by its columns") {
  const ModelGraph model = model_in(folder_of("gpt2"));
  const InitialWeights weights(folder_of("gpt2"), "--init-from", model);
  const StateReader read = weights.reader();
  for (const Parameter& p : model.parameters) {
    if (p.name != "transformer.h.0.attn.c_attn.weight") continue;
    std::vector<float> whole(21 * 63), part(21 * 20);
    read(p, StatePart::parameter, {0, 0, 21}, DType::f32, reinterpret_cast<std::byte*>(whole.data()));
    read(p, StatePart::parameter, {1, 40, 20}, DType::f32, reinterpret_cast<std::byte*>(part.data()));
    for (std::size_t row = 0; row < 21; ++row)
      for (std::size_t column = 0; column < 20; ++column)
        CHECK(part[row * 20 + column] == whole[row * 63 + 40 + column]);
  }
}

TEST_CASE("weights say where they come from") {
  CHECK(holds(InitialWeights(folder_of("llama"), "t", model_in(folder_of("llama"))).describe(),
              "20 tensors in 2 files, BF16"));
  CHECK(holds(InitialWeights(folder_of("gpt2") + "/model.safetensors", "t", model_in(folder_of("gpt2"))).describe(),
              "28 tensors in 1 file, F32"));
  CHECK(holds(InitialWeights(folder_of("llama") + "/model.safetensors.index.json", "t", model_in(folder_of("llama")))
                  .describe(),
              "in 2 files"));
}

TEST_CASE("weights of another model, and broken ones, are refused by name before a step is run") {
  const TemporaryFolder folder;
  const ModelGraph llama = model_in(folder_of("llama")), gpt2 = model_in(folder_of("gpt2"));
  const auto copy = [&](const std::string& name) {
    std::filesystem::remove_all(folder.at(name));
    std::filesystem::copy(folder_of(name), folder.at(name));
    return folder.at(name);
  };
  const auto replace = [&](const std::string& path, const std::string& from, const std::string& to) {
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const std::size_t at = bytes.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE((from.size() == to.size() || path.ends_with(".json")));
    std::ofstream(path, std::ios::binary) << bytes.replace(at, from.size(), to);
    return path;
  };
  CHECK(holds(refuses(folder_of("llama"), gpt2), "has no tensor \"transformer.wte.weight\" (nor \"lm_head.weight\")"));
  CHECK(holds(refuses(folder.at("absent"), gpt2), "there is no such file"));
  CHECK(
      holds(refuses(folder.path().string(), gpt2), "holds neither model.safetensors nor model.safetensors.index.json"));
  CHECK(holds(refuses(folder_of("gpt2") + "/config.json", gpt2), "weight_map"));
  // GPT-2, in one file: a name, a shape, a type.
  CHECK(holds(refuses(replace(copy("gpt2") + "/model.safetensors", "\"h.0.ln_1.bias\"", "\"h.0.ln_1.bios\""), gpt2),
              "has no tensor \"transformer.h.0.ln_1.bias\" (nor \"h.0.ln_1.bias\")"));
  CHECK(holds(refuses(replace(copy("gpt2") + "/model.safetensors", "[21,63]", "[63,21]"), gpt2),
              "tensor \"h.0.attn.c_attn.weight\" has the shape [63, 21], the model needs [21, 63]"));
  CHECK(holds(refuses(replace(copy("gpt2") + "/model.safetensors", "F32", "I32"), gpt2),
              "is of type I32; save it as F64, F32, F16 or BF16"));
  // Llama, in two files with an index.
  const std::string index = "/model.safetensors.index.json", first = "model-00001-of-00002.safetensors";
  CHECK(holds(refuses(replace(copy("llama") + index, first, "../" + first), llama),
              "is not the name of a safetensors file beside the index"));
  CHECK(holds(refuses(replace(copy("llama") + index, first, "other.safetensors"), llama),
              "other.safetensors\": there is no such file"));
  CHECK(holds(
      refuses(replace(copy("llama") + index, "model.norm.weight", "model.nrom.weight"), llama),
      "weight_map.model.nrom.weight: the file that it names, model-00002-of-00002.safetensors, has no such tensor"));
  (void)replace(copy("llama") + "/" + first, "layers.0.self_attn.q_proj", "layers.9.self_attn.q_proj");
  CHECK(holds(refuses(folder.at("llama"), llama),
              "weight_map.model.layers.0.self_attn.q_proj.weight: the file that it names"));
  std::filesystem::resize_file(copy("llama") + "/" + first, 9000);
  CHECK(holds(refuses(folder.at("llama"), llama), "the file was cut short"));
}

TEST_CASE(
    "tensors beyond the model are refused, but not the buffers of old files; a tied weight may be there twice if it is "
    "one") {
  const TemporaryFolder folder;
  const ModelGraph model = model_from_config(
      R"({"model_type": "gpt2", "vocab_size": 2, "n_positions": 1, "n_embd": 1, "n_layer": 1, "n_head": 1, "n_inner": 1})",
      "config.json");
  const auto file_with = [&](const std::vector<std::pair<std::string, std::vector<float>>>& more) {
    nlohmann::json header;
    std::string data;
    const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                         const std::vector<float>& values) {
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(values.data()), 4 * values.size());
      header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    };
    for (const Parameter& p : model.parameters)
      add(p.name, p.shape, std::vector<float>(static_cast<std::size_t>(p.numel()), 0.5F));
    for (const auto& [name, values] : more)
      add(name, name == "lm_head.weight" ? std::vector<std::int64_t>{2, 1} : std::vector<std::int64_t>{2}, values);
    const std::string json = header.dump();
    const std::uint64_t length = json.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return folder.write("model.safetensors", bytes + json + data);
  };
  CHECK(refuses(file_with({}), model) == "");
  CHECK(refuses(file_with({{"transformer.h.0.attn.bias", {1, 1}}, {"transformer.h.0.attn.masked_bias", {1, 1}}}),
                model) == "");
  CHECK(holds(refuses(file_with({{"transformer.h.1.ln_1.weight", {1, 1}}}), model),
              "tensor \"transformer.h.1.ln_1.weight\" is not one of the model's"));
  CHECK(refuses(file_with({{"lm_head.weight", {0.5F, 0.5F}}}), model) == "");
  CHECK(holds(refuses(file_with({{"lm_head.weight", {0.5F, 0.25F}}}), model),
              "\"lm_head.weight\" and \"transformer.wte.weight\" differ"));
}
