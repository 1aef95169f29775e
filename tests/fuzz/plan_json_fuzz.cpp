// Plans from arbitrary text: an InputError, or a plan that survives the trip through its JSON; checking it against a
// model never ends in anything but an InputError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/catalog.h"
#include "planner/plan/file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fsdp::ModelGraph kModel = fsdp::load_model("tiny-llama");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::PlanFile file = fsdp::parse_plan_file(text, "fuzz");
    fsdp::fuzz::require(fsdp::parse_plan_file(fsdp::to_json_text(file), "fuzz") == file,
                        "parse_plan_file(to_json_text(f)) == f");
    fsdp::fuzz::require(fsdp::parse_plan(text, "fuzz") == file.plan, "the plan of a file is the file's plan");
    fsdp::check(file.plan, kModel, "fuzz");
  });
  return 0;
}
