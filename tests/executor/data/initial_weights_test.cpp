// Weights of mixtures and of models with adapters, from files made here: what is read is what stands there, and files
// of another model are refused by name. Files of transformers and peft: tests/torch/hub_folders.py.
#include "executor/data/initial_weights.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "models/graph/lora.h"
#include "models/hub/tensors.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

std::string bytes_of(const std::vector<FileTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const FileTensor& t : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(t.values.data()), 4 * t.values.size());
    header[t.name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string json = header.dump();
  const std::uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json + data;
}

// Every element of a model has a value of its own: parameter * 100,000 + index.
float value(std::size_t parameter, std::int64_t index) {
  return static_cast<float>(parameter * 100'000 + static_cast<std::size_t>(index));
}

FileTensor counted(std::size_t parameter, const HubTensor& t) {
  FileTensor file{t.name, t.shape, {}};
  std::int64_t n = 1;
  for (const std::int64_t d : t.shape) n *= d;
  for (std::int64_t i = 0; i < n; ++i) file.values.push_back(value(parameter, t.begin + i));
  return file;
}

using Kept = std::function<bool(const Parameter&)>;
// As the hub has them, or each parameter whole.
std::vector<FileTensor> tensors_of(const ModelGraph& model, bool stacked, const Kept& kept) {
  std::vector<FileTensor> tensors;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const Parameter& parameter = model.parameters[p];
    if (!kept(parameter)) continue;
    if (stacked) tensors.push_back(counted(p, {parameter.name, parameter.shape, 0}));
    else
      for (const HubTensor& t : hub_tensors(model, parameter)) tensors.push_back(counted(p, t));
  }
  return tensors;
}
std::vector<FileTensor> hub_file(const ModelGraph& model) {
  return tensors_of(model, false, [](const Parameter&) { return true; });
}

std::vector<float> slab_of(const StateReader& read, const Parameter& p, const Slab& slab) {
  std::vector<float> values(static_cast<std::size_t>(elements_of(slab, p)), -1);
  read(p, StatePart::parameter, slab, DType::f32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// Every slab of every dimension.
void check_counted(const StateReader& read, const ModelGraph& model, const Kept& kept) {
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& p = model.parameters[i];
    if (!kept(p)) continue;
    CAPTURE(p.name);
    for (std::size_t dim = 0; dim < p.shape.size(); ++dim)
      for (std::int64_t begin = 0, rows = 3; begin < p.shape[dim]; begin += rows) {
        const Slab slab{static_cast<std::int64_t>(dim), begin, std::min(rows, p.shape[dim] - begin)};
        std::vector<float> expected;
        std::int64_t inner = 1;
        for (std::size_t d = dim + 1; d < p.shape.size(); ++d) inner *= p.shape[d];
        for (std::int64_t e = 0; e < p.numel(); ++e)
          if (const std::int64_t row = e / inner % p.shape[dim]; row >= begin && row < begin + slab.rows)
            expected.push_back(value(i, e));
        REQUIRE(slab_of(read, p, slab) == expected);
      }
  }
}

std::string refuses(const std::string& path, const ModelGraph& model) {
  return refusal([&] { return InitialWeights(path, "--init-from", model).describe(); });
}

FileTensor& named(std::vector<FileTensor>& tensors, const std::string& name) {
  for (FileTensor& t : tensors)
    if (t.name == name) return t;
  FAIL("no tensor ", name);
  return tensors.front();
}

const Kept kAll = [](const Parameter&) { return true; };
const Kept kBase = [](const Parameter& p) { return lora_part(p) == LoraPart::none; };
const Kept kAdapters = [](const Parameter& p) { return lora_part(p) != LoraPart::none; };

ModelGraph adapted_llama() { return add_lora(small_llama(), {.rank = 2, .alpha = 4, .targets = {"q_proj"}}, "lora"); }

}  // namespace

TEST_CASE("experts are read one by one, in every slab, and stacked, and from several files") {
  const TemporaryFolder folder;
  const ModelGraph model = small_mixtral();
  const std::vector<FileTensor> tensors = hub_file(model);
  const std::string path = folder.write("model.safetensors", bytes_of(tensors));
  const InitialWeights weights(path, "t", model);
  CHECK(holds(weights.describe(), "22 tensors in 1 file, F32"));  // 10 and 12 of experts
  check_counted(weights.reader(), model, kAll);

  check_counted(
      InitialWeights(folder.write("stacked.safetensors", bytes_of(tensors_of(model, true, kAll))), "t", model).reader(),
      model, kAll);

  const ModelGraph one = small_mixtral(1);  // whose experts have a first dimension of 1, and their tensors none
  check_counted(InitialWeights(folder.write("one.safetensors", bytes_of(hub_file(one))), "t", one).reader(), one, kAll);

  // Every other tensor in the second file: the matrices of one expert are apart.
  std::vector<FileTensor> halves[2];
  nlohmann::json index;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    halves[i % 2].push_back(tensors[i]);
    index["weight_map"][tensors[i].name] = i % 2 == 0 ? "a.safetensors" : "b.safetensors";
  }
  (void)folder.write("a.safetensors", bytes_of(halves[0]));
  (void)folder.write("b.safetensors", bytes_of(halves[1]));
  const InitialWeights divided(folder.write("model.safetensors.index.json", index.dump()), "t", model);
  CHECK(holds(divided.describe(), "22 tensors in 2 files"));
  check_counted(divided.reader(), model, kAll);
}

TEST_CASE("experts that are missing, too many, of another shape or there twice are refused by name") {
  const TemporaryFolder folder;
  const ModelGraph model = small_mixtral();
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  const auto with = [&](const std::function<void(std::vector<FileTensor>&)>& change) {
    std::vector<FileTensor> tensors = hub_file(model);
    change(tensors);
    return refuses(folder.write("model.safetensors", bytes_of(tensors)), model);
  };
  const auto without = [&](const std::string& part) {
    return with(
        [&](auto& tensors) { std::erase_if(tensors, [&](const FileTensor& t) { return holds(t.name, part); }); });
  };
  CHECK(with([](auto&) {}).empty());
  CHECK(
      holds(without("experts.2.w3."), "model.safetensors\": has no tensor \"" + experts +
                                          "2.w3.weight\" (nor \"layers.0.block_sparse_moe.experts.2.w3.weight\"), but "
                                          "others of the 4 experts of model.layers.0.mlp.experts.gate_up_proj"));
  CHECK(holds(without("experts.3."), "has no tensor \"" + experts + "3.w1.weight\""));
  CHECK(holds(without("experts."),
              "has no tensor \"model.layers.0.mlp.experts.gate_up_proj\" (nor \"" + experts + "0.w1.weight\")"));
  CHECK(holds(without("moe.gate."), "has no tensor \"model.layers.0.block_sparse_moe.gate.weight\""));
  const auto more = [&](const std::string& name) {
    return with([&](auto& tensors) {
      tensors.push_back(named(tensors, experts + "0.w1.weight"));
      tensors.back().name = name;
    });
  };
  CHECK(holds(more(experts + "4.w1.weight"),
              "tensor \"" + experts + "4.w1.weight\" is not one of the model's, whose experts are 0 to 3"));
  CHECK(holds(more(experts + "99999999999999999999.w1.weight"), "99.w1.weight\" is not one of the model's"));
  CHECK(holds(more(experts + "-1.w1.weight"), "experts.-1.w1.weight\" is not one of the model's"));
  CHECK(holds(more(experts + "00.w1.weight"), "experts.00.w1.weight\" is not one of the model's"));
  CHECK(holds(more(experts + "0.w4.weight"), "experts.0.w4.weight\" is not one of the model's"));
  CHECK(holds(with([&](auto& tensors) {
                named(tensors, experts + "1.w2.weight").shape = {20, 24};
              }),
              "tensor \"" + experts + "1.w2.weight\" has the shape [20, 24], the model needs [24, 20]"));
  // Stacked and one by one.
  CHECK(holds(with([&](auto& tensors) {
                for (FileTensor& t : tensors_of(model, true, kAll))
                  if (holds(t.name, "experts.down_proj")) tensors.push_back(std::move(t));
              }),
              "experts.0.w2.weight\" is not one of the model's"));
  // In two files, and in one that was cut short.
  const std::string whole = bytes_of(hub_file(model));
  (void)folder.write("a.safetensors", whole);
  (void)folder.write("b.safetensors", whole);
  CHECK(
      holds(refuses(folder.write("two.json", R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})"), model),
            "is also in"));
  CHECK(holds(refuses(folder.write("none.json", R"({"weight_map": {}})"), model), "has a weight_map without tensors"));
  CHECK(holds(refuses(folder.write("cut.safetensors", whole.substr(0, whole.size() - 4)), model),
              "the file was cut short"));
}

TEST_CASE("the base model's folder fills what is frozen, and adapters begin as peft's: A uniform, B zero") {
  const TemporaryFolder folder;
  const ModelGraph model = adapted_llama();
  const InitialWeights weights(folder.write("model.safetensors", bytes_of(hub_file(small_llama()))), "t", model);
  const StateReader read = weights.reader(7), other = weights.reader(8);
  std::size_t base = 0;  // the base model's parameters stand in its order
  for (const Parameter& p : model.parameters) {
    CAPTURE(p.name);
    const std::vector<float> values = slab_of(read, p, {0, 0, p.shape[0]});
    if (kBase(p)) {
      for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == value(base, static_cast<std::int64_t>(i)));
      ++base;
      continue;
    }
    if (lora_part(p) == LoraPart::up) {
      CHECK(values == std::vector<float>(values.size(), 0.0F));
      continue;
    }
    // 48 values of 24 columns: within 1/sqrt(24) = 0.2041, whose uniform deviation is 0.1179.
    double sum = 0, squares = 0;
    for (const float v : values) {
      CHECK(std::abs(v) < 0.2042);
      sum += v;
      squares += static_cast<double>(v) * v;
    }
    const auto n = static_cast<double>(values.size());
    CHECK(std::abs(sum / n) < 0.06);
    CHECK(std::abs(std::sqrt(squares / n) - 0.1179) < 0.03);
    CHECK(slab_of(other, p, {0, 0, p.shape[0]}) != values);
    // A rank that holds columns has the same values.
    const std::vector<float> columns = slab_of(read, p, {1, 5, 3});
    for (std::size_t r = 0; r < 2; ++r)
      for (std::size_t c = 0; c < 3; ++c) CHECK(columns[r * 3 + c] == values[r * 24 + 5 + c]);
  }
  CHECK(base == small_llama().parameters.size());
}

TEST_CASE("adapters of peft are read, and those of another model refused") {
  const TemporaryFolder folder;
  const ModelGraph model = adapted_llama();
  const std::string weights = folder.write("model.safetensors", bytes_of(tensors_of(model, false, kBase)));
  const std::vector<FileTensor> adapters = tensors_of(model, false, kAdapters);
  CHECK(adapters.front().name == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  (void)folder.write("adapter_model.safetensors", bytes_of(adapters));
  const auto add = [&] {
    InitialWeights all(weights, "--init-from", model);
    all.add_adapters(folder.path().string(), "--init-adapters");
    return all;
  };
  const auto says = [&] { return refusal([&] { return add().describe(); }); };
  CHECK(holds(says(), "adapter_config.json"));  // it has to be there: it says by what adapters are scaled
  (void)folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
  check_counted(add().reader(), model, kAll);
  CHECK(holds(add().describe(), "; " + folder.path().string() + ": 6 tensors in 1 file, F32"));
  (void)folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2})");
  CHECK(holds(says(), "adapter_config.json: lora_alpha: scales the adapters by 1, the model's by 2"));
  (void)folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
  const auto with = [&](const std::function<void(std::vector<FileTensor>&)>& change) {
    std::vector<FileTensor> changed = adapters;
    change(changed);
    (void)folder.write("adapter_model.safetensors", bytes_of(changed));
    return says();
  };
  CHECK(holds(with([](auto& tensors) { tensors.pop_back(); }), "has no tensor \"base_model.model.model.layers.2."));
  CHECK(holds(with([](auto& tensors) {
                tensors[0].shape = {24, 2};
              }),
              "has the shape [24, 2], the model needs [2, 24]"));
  CHECK(holds(with([](auto& tensors) {
                tensors.push_back({"base_model.model.lm_head.weight", {1}, {1}});
              }),
              "tensor \"base_model.model.lm_head.weight\" is not one of the model's"));
  std::filesystem::remove(folder.at("adapter_model.safetensors"));
  CHECK(holds(says(), "holds neither adapter_model.safetensors nor"));
  // A model without adapters takes none.
  const ModelGraph plain = small_llama();
  InitialWeights base(weights, "--init-from", plain);
  CHECK(holds(refusal([&] { return (base.add_adapters(folder.path().string(), "--init-adapters"), 0); }),
              "the model has no adapters"));
}
