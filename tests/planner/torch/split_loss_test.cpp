// torchtitan's compiled loss against Inductor's code for it (tests/torch/record_split_loss.py), of whole logits and of
// logits that are split over tensor ranks: what waits for backward, to the byte, and what forward holds.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"

namespace fsdp {

TEST_CASE("a compiled loss keeps and holds what Inductor's code does") {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/split_loss.json");
  REQUIRE(file);
  const nlohmann::json recorded = nlohmann::json::parse(file);
  int split = 0;
  for (const auto& c : recorded["cases"]) {
    const auto& config = c["config"];
    CAPTURE(config["name"].get<std::string>());
    const Workload w{config["sequences"], config["seq_len"], config["dtype"] == "bf16" ? 2 : 4};
    Op op;
    op.kind = OpKind::cross_entropy;
    op.shape.vocab_parts = config["ranks"].get<std::int64_t>();
    op.shape.vocab = config["vocab"].get<std::int64_t>() / op.shape.vocab_parts;
    const OpFacts f = facts(find_implementation("torchtitan", true, "test"), op, w);
    const std::int64_t logits = (f.saved_inputs & 1) != 0 ? w.tokens() * op.shape.vocab * w.element_bytes : 0;
    CHECK(f.saved_extra_bytes + logits == c["saved"].get<std::int64_t>());
    // Beside it what Inductor keeps per row while it works: maxima, sums, what is picked (fp32) and a bool.
    const std::int64_t held = c["forward"].get<std::int64_t>(), said = f.saved_extra_bytes + f.forward_scratch_bytes;
    CHECK(held - said >= 0);
    CHECK(held - said <= w.tokens() * 13);
    split += op.shape.vocab_parts > 1 ? 1 : 0;
  }
  CHECK(split >= 4);
}

}  // namespace fsdp
