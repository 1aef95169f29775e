// What transformers before 4.49 held around the loss (recorded by tests/torch/early/record_hf_loss.py).
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lowering/tape/tape.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ModelGraph model_of(const Json& c) {
  const Json config = {{"model_type", "llama"},
                       {"vocab_size", c["vocab"]},
                       {"hidden_size", c["hidden"]},
                       {"intermediate_size", c["inner"]},
                       {"num_hidden_layers", c["layers"]},
                       {"num_attention_heads", c["heads"]},
                       {"num_key_value_heads", c["heads"]}};
  return model_from_config(config.dump(), "golden");
}

// Within 1.5 %: the loss is nearly all of it, and ours has logits of all tokens where transformers leaves the last one
// of each sequence of 128 out.
bool near(std::int64_t ours, const Json& theirs) {
  const std::int64_t said = theirs.get<std::int64_t>();
  return std::abs(ours - said) <= said * 3 / 200;
}

}  // namespace

TEST_CASE("before 4.49 logits are copied without the last token, before 4.46 they are cast first") {
  for (const bool cast_first : {false, true}) {
    const std::string name = fmt::format("/torch/golden/hf_loss_4.{}.json", cast_first ? 45 : 48);
    const Json cases = Json::parse(std::ifstream(FSDP_TESTS_DIR + name)).at("cases");
    REQUIRE(cases.size() == 2);
    const Implementation then = copying_logits(hf_implementation(false), cast_first);
    CHECK(digest(then) != digest(hf_implementation(false)));
    for (const Json& row : cases) {
      CAPTURE(name);
      CAPTURE(row["config"]["name"].get<std::string>());
      const Json& c = row["config"];
      const ModelGraph model = model_of(c);
      const Workload w{c["sequences"], c["seq_len"], 2};
      const Tape tape = make_tape(model, then, w, DType::bf16, {});
      testing::Replay mine = testing::replay(tape, model, /*gradient_bytes=*/0);
      const auto loss = static_cast<std::ptrdiff_t>(tape.forward_of.back());
      const auto during = mine.during.begin();
      CHECK(near(*std::max_element(during, during + loss + 1), row["forward_peak"]));
      CHECK(near(mine.after[static_cast<std::size_t>(loss)], row["after_forward"]));
      CHECK(near(*std::max_element(during + loss + 1, mine.during.end()), row["backward_peak"]));
    }
  }
}

TEST_CASE("compiled, and other stacks, have no such past") {
  CHECK(digest(copying_logits(hf_implementation(true), false)) == digest(hf_implementation(true)));
  CHECK(digest(copying_logits(torchtitan_implementation(false), true)) == digest(torchtitan_implementation(false)));
}

TEST_CASE("torch.compile(model) compiles the loss of a model that computes it; a loop's own stays eager") {
  Op loss;
  loss.kind = OpKind::cross_entropy;
  loss.shape.vocab = 1000;
  const auto kept = [&](bool compiled, bool in_model) {
    return facts(hf_implementation(compiled), loss, {2, 64, 2, 1, in_model}).saved_extra_bytes;
  };
  CHECK(kept(true, false) == kept(false, false));
  CHECK(kept(true, false) == 2 * 64 * 1000 * 4);  // logarithms of all, in fp32
  CHECK(kept(true, true) == 2 * 64 * 8);          // two numbers in fp32 of each row
}
