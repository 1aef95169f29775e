// model.json from hostile hands: an InputError, or a graph that keeps its promises. tests/exported/tape_test.cpp has
// the tapes of good ones.
#include <doctest/doctest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/lowering/tape/tape.h"

using namespace fsdp;
using nlohmann::json;

namespace {

json document(const std::string& name) {
  std::ifstream in(FSDP_TESTS_DIR "/golden/exported/" + name + ".json");
  REQUIRE(in);
  return json::parse(in)["model"];
}

// True: it was read, and what it says of memory adds up.
bool reads(const json& values) {
  try {
    const ModelGraph model = model_from_config(values.dump(), "model.json");
    check_graph(model, "model.json");
    const Workload work{2, model.trace.seq_len, size_of(model.trace.dtype)};
    (void)make_tape(model, usual_implementation(model, false, false, ""), work, model.trace.dtype, {});
    return true;
  } catch (const InputError&) {
    return false;
  }
}

std::string refusal(const json& values) {
  try {
    (void)model_from_config(values.dump(), "model.json");
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

bool holds(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("an exported model is read, and its digest is that of what decides a result") {
  const json good = document("own");
  REQUIRE(reads(good));
  const ModelGraph model = model_from_config(good.dump(), "a.json");
  CHECK(model.name == "own");
  CHECK(model.trace.seq_len == 64);
  CHECK(model.max_seq_len == 64);
  CHECK(model.parameters.front().aliases == std::vector<std::string>{"head.weight"});
  json other = good;
  other["name"] = "another";
  CHECK(model_from_config(other.dump(), "b.json").digest() == model.digest());
  other["kinds"][0]["makes"][0][1] = 6146;
  CHECK(model_from_config(other.dump(), "b.json").digest() != model.digest());
}

TEST_CASE("no number of it, changed, makes more than a refusal or another model") {
  const json good = document("own");
  int read = 0, refused = 0, place = 0;
  const json flat = good.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    if (!value.is_number_integer() || ++place % 4 != 0) continue;
    for (const std::int64_t changed :
         {std::int64_t{-1}, value.get<std::int64_t>() + 1, std::numeric_limits<std::int64_t>::max()}) {
      CAPTURE(pointer);
      CAPTURE(changed);
      json bad = good;
      bad[json::json_pointer(pointer)] = changed;
      (reads(bad) ? read : refused) += 1;
    }
  }
  CHECK(read > 100);
  CHECK(refused > 400);
}

TEST_CASE("nothing of it can be left out but its notes") {
  const json good = document("own");
  for (const auto& [key, value] : good.items()) {
    CAPTURE(key);
    json bad = good;
    bad.erase(key);
    CHECK(reads(bad) == (key == "notes" || key == "torch"));
  }
}

TEST_CASE("what does not add up is refused by what it is") {
  json bad = document("own");
  bad["ops"][0][3] = json::array({1 << 20});
  CHECK(holds(refusal(bad), "ops[0]: it names a value that no op before it makes"));
  bad = document("own");
  bad["kinds"][0]["forward"] = json::array({0, 0, 1, 0, 1, 0});
  CHECK(holds(refusal(bad), "a value goes that is not there"));
  bad = document("own");
  bad["kinds"][0]["forward"] = json::array();
  CHECK(holds(refusal(bad), "a value never appears"));
  bad = document("own");
  bad["modules"][1][0] = "nowhere.to.be.found";
  CHECK(holds(refusal(bad), "modules[1]: stands before the module that it is in"));
  bad = document("own");
  bad["kinds"][0]["kind"] = "magic";
  CHECK(holds(refusal(bad), "'magic' is no kind of op"));
}

TEST_CASE("implementations of the program's own models refuse it, and the other way round") {
  const auto refused = [](const ModelGraph& model, std::string_view name) {
    try {
      (void)facts(find_implementation(name, false, ""), model.ops[0], {1, 64, 2});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const ModelGraph exported = model_from_config(document("own").dump(), "model.json");
  CHECK(usual_implementation(exported, false, false, "").name == "traced");
  CHECK(find_implementation("traced-expandable", false, "").memory == MemorySource::caching_expandable);
  CHECK(refused(exported, "traced-expandable").empty());
  CHECK(holds(refused(exported, "hf"), "this one was exported from PyTorch; leave it out, or use traced"));
  CHECK(holds(refused(load_model("tiny-llama"), "traced"), "is of models that PyTorch ran"));
  CHECK(refused(exported, "traced").empty());
}

TEST_CASE("it takes neither adapters nor other frozen parameters: those belong to the export") {
  const ModelGraph exported = model_from_config(document("own").dump(), "model.json");
  const auto refused = [](const auto& change) {
    try {
      (void)change();
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(holds(refused([&] { return add_lora(exported, parse_lora("8", "--lora"), "--lora"); }),
              "put them into the model (peft) and export that"));
  const std::vector<std::string> head = {"down"};
  CHECK(holds(refused([&] { return freeze(exported, head, "freeze"); }), "freeze the parameters in PyTorch"));
  const Workload work{1, exported.trace.seq_len, 2};
  const Implementation& other = find_implementation("hf", false, "");
  CHECK(holds(refused([&] { return make_tape(exported, other, work, DType::bf16, {}); }), "use traced"));
}
