// Model configs from arbitrary text: an InputError, or a graph that keeps every promise of its header.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/catalog.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::ModelGraph model = fsdp::model_from_config(text, "fuzz");
    bool kept = true;
    try {
      fsdp::check_graph(model, "fuzz");
    } catch (const fsdp::InputError&) {
      kept = false;
    }
    fsdp::fuzz::require(kept, "an imported model passes check_graph");
    fsdp::fuzz::require(model.parameter_count() > 0, "an imported model has parameters");
  });
  return 0;
}
