// prime-rl's head and loss in chunks: what cells say, and that in chunks of tokens against what PyTorch keeps, holds
// and launches (tests/torch/record_token_chunks.py).
#include "simulator/published/chunked_head.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "models/implementations/prime_rl.h"

using namespace fsdp;
using nlohmann::json;

TEST_CASE("cells say chunks of the vocabulary or of tokens") {
  const auto words = head_chunks("fused+chunked: vocabulary chunks of 2048 (logprob+entropy, recomputed in backward)");
  REQUIRE(words);
  CHECK(words->vocabulary == 2048);
  CHECK(words->tokens == 0);
  const auto tokens = head_chunks("fused+chunked: token chunks of 1024 (logprob+entropy)");
  REQUIRE(tokens);
  CHECK(tokens->tokens == 1024);
  CHECK(tokens->vocabulary == 8192);
  CHECK_FALSE(head_chunks("plain"));
  CHECK_FALSE(head_chunks("token chunks of some"));
}

TEST_CASE("a head in chunks of tokens keeps, holds and launches what prime-rl's function does in PyTorch") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/token_chunks.json"));
  const Implementation& prime_rl = prime_rl_implementation(AttentionKernel::flash2, PrimeRlAdapters::none);
  REQUIRE(golden["rows"].size() == 3);
  for (const json& row : golden["rows"]) {
    CAPTURE(row.dump());
    OpShape shape;
    shape.in = row["channels"], shape.vocab = row["vocab"], shape.width = row["words"], shape.positions = row["chunk"];
    const Workload w{1, row["tokens"], 2};
    const OpFacts f = facts(prime_rl, Op{OpKind::opaque, 0, {0}, {1}, {0}, shape}, w);
    CHECK(f.forward_launches == row["forward_kernels"]);
    CHECK(f.backward_launches == row["backward_kernels"]);
    CHECK(f.forward_reads == row["forward_reads"]);
    CHECK(f.backward_reads == row["backward_reads"]);
    const std::int64_t results = 2 * 4 * w.tokens();  // log-probabilities and entropy
    CHECK(f.saved_extra_bytes + results == row["saved"]);
    // Numbers per token of a chunk are left out.
    const auto near = [](std::int64_t ours, std::int64_t theirs) {
      return ours <= theirs && theirs < ours + ours / 100;
    };
    CHECK(near(f.forward_scratch_bytes + f.saved_extra_bytes + results, row["forward_peak"]));
    const std::int64_t gradients = 2 * shape.in * (shape.vocab + w.tokens());
    CHECK(near(f.backward_scratch_bytes + f.saved_extra_bytes + gradients, row["backward_peak"]));
  }
}

TEST_CASE("in chunks of tokens each adds to the gradient of the whole weight") {
  ModelGraph by_words = load_model("qwen3-0.6b"), by_tokens = by_words;
  const GpuSpec gpu = load_gpu("rtx-a6000", "test");
  chunk_head(by_words, {.vocabulary = 8192}, gpu);
  chunk_head(by_tokens, {.tokens = 1024}, gpu);
  const auto bytes = [](const ModelGraph& m) { return (m.ops.end() - 2)->shape.opaque_bytes_per_token; };
  // Eight bytes per number of the weight for each 1,024 tokens, and of a token for each of 19 chunks of words; half of
  // them in each direction.
  CHECK(bytes(by_tokens) - bytes(by_words) == doctest::Approx(4.0 * 1024 * (151936.0 / 1024 + 19)).epsilon(1e-6));
  CHECK((by_tokens.ops.end() - 2)->params.size() == 1);
}
