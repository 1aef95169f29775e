// Errors are values: their parts are read, never cut out of what() again.
#include "models/input/error.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <type_traits>

#include "models/catalog.h"
#include "models/graph.h"
#include "models/input/json.h"
#include "planner/plan.h"
#include "planner/plan/naive_plan.h"

using namespace fsdp;

namespace {

// The parts of the InputError that `call` throws.
template <class Call>
InputError refused(Call call) {
  try {
    static_cast<void>(call());
  } catch (const InputError& e) {
    return e;
  }
  FAIL("nothing was refused");
  return {"", ""};
}

}  // namespace

TEST_CASE("an input error has a file, a field, a problem and a remedy") {
  const InputError e({"plan.json", "units[3].modules"}, "is empty", "name a module");
  CHECK(e.file() == "plan.json");
  CHECK(e.field() == "units[3].modules");
  CHECK(e.problem() == "is empty");
  CHECK(e.remedy() == "name a module");
  CHECK(std::string(e.what()) == "plan.json: units[3].modules: is empty; name a module");
  CHECK(std::string(InputError("plan.json", "is empty").what()) == "plan.json: is empty");
  CHECK(std::string(e.at("--wrap").what()) == "--wrap: is empty; name a module");
  static_assert(std::is_nothrow_copy_constructible_v<InputError>);
}

TEST_CASE("a setting has no file") {
  const InputError e(setting("seq_len"), "0 is out of range");
  CHECK(e.file().empty());
  CHECK(e.field() == "seq_len");
  CHECK(std::string(e.what()) == "seq_len: 0 is out of range");
}

TEST_CASE("documents, plans and catalogs say file and field apart") {
  const auto read = [](const char* text) {
    const JsonDocument document = parse_document(text, "a.json", "");
    JsonObject root = document.root();
    for (const JsonValue& item : root.array("rows")) (void)item.object().integer("size", 1, 9);
    return 0;
  };
  const InputError type = refused([&] { return read(R"({"rows": [{"size": 1}, {"size": "x"}]})"); });
  CHECK(type.file() == "a.json");
  CHECK(type.field() == "rows[1].size");
  CHECK(type.problem() == "is a text");
  const InputError missing = refused([&] { return read(R"({"rows": [{}]})"); });
  CHECK(missing.field() == "rows[0].size");
  CHECK(missing.remedy() == "add it");

  const ModelGraph model = load_model("tiny-llama");
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
  plan.units[0].modules = {"nope"};
  const InputError rule = refused([&] {
    check(plan, model, "my.json");
    return 0;
  });
  CHECK(rule.file() == "my.json");
  CHECK(rule.field() == "units[0].modules");
  const InputError word = refused([] { return parse_dialect("fsdp3", Origin("my.json", "dialect")); });
  CHECK(word.field() == "dialect");

  const InputError name = refused([] { return load_model("llama9"); });
  CHECK(name.file().empty());
  CHECK(name.field() == "model");
}

TEST_CASE("an error of ours asks to be reported, and is neither bad input nor a failing machine") {
  const InternalError e("a steady step leaks");
  CHECK(std::string(e.what()).starts_with("a steady step leaks; "));
  CHECK(std::string(e.what()).find("please report") != std::string::npos);
  static_assert(!std::is_base_of_v<MachineError, InternalError> && !std::is_base_of_v<InputError, InternalError>);
}
