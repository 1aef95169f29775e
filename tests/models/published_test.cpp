// Published models in full size: the config.json files that transformers' config classes write, against what
// transformers builds of them on the meta device (tests/torch/record_full_models.py), or the advice where a kind of
// model is not modelled.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/input/error.h"

using namespace fsdp;
using nlohmann::json;

namespace {

const std::filesystem::path kGolden = FSDP_TESTS_DIR "/torch/golden";

ModelGraph published(const std::string& name) { return load_model((kGolden / "configs" / (name + ".json")).string()); }

}  // namespace

TEST_CASE("parameters, ties and flops of published models are PyTorch's") {
  const json golden = json::parse(std::ifstream(kGolden / "full_models.json"));
  REQUIRE(golden["models"].size() == 18);
  const Workload w{1, golden["seq_len"], 2};
  for (const auto& [name, row] : golden["models"].items()) {
    CAPTURE(name);
    const ModelGraph m = published(name);
    CHECK(m.parameter_count() == row["parameter_count"].get<std::int64_t>());
    CHECK(m.parameters.size() == row["parameter_tensors"].get<std::size_t>());
    std::map<std::string, const Parameter*> ours;
    for (const Parameter& p : m.parameters) ours[p.name] = &p;
    for (const json& p : row["parameters"]) {
      CAPTURE(p[0].get<std::string>());
      REQUIRE(ours.count(p[0]) == 1);
      CHECK(json(ours[p[0]]->shape) == p[1]);
      CHECK(json(ours[p[0]]->aliases) == p[2]);
    }
    if (!row.contains("linear_forward_flops")) continue;
    double linear = 0, square = 0;
    for (const Op& op : m.ops) {
      if (op.kind == OpKind::linear) linear += forward_flops(op, w);
      if (op.kind != OpKind::attention) continue;
      Op all = op;
      all.shape.causal = false;
      all.shape.window = 0;
      square += forward_flops(all, w);
    }
    CHECK(linear == row["linear_forward_flops"].get<double>());
    CHECK(square == row["attention_square_forward_flops"].get<double>());
  }
}
