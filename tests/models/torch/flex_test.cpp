// What is kept of FlexAttention against PyTorch's own partition of it (tests/torch/record_flex.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/implementation.h"

using namespace fsdp;
using nlohmann::json;

namespace {

std::int64_t bytes_of(const json& tensors) {
  std::int64_t all = 0;
  for (const json& t : tensors) {
    std::int64_t bytes = t["bytes"];
    for (const json& extent : t["shape"]) bytes *= extent.get<std::int64_t>();
    all += bytes;
  }
  return all;
}

}  // namespace

TEST_CASE("a compiled flex_attention keeps, and its backward returns, what PyTorch's partition of it does") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/flex.json"))["cases"];
  REQUIRE(golden.size() == 6);
  const Implementation& titan = find_implementation("torchtitan-2026-06", false, "test");
  for (const json& row : golden) {
    const json& c = row["config"];
    CAPTURE(c.dump());
    CHECK(row["result_by_token"].get<bool>());  // it goes on without a copy
    const std::int64_t heads = c["heads"], kv_heads = c["kv_heads"], d = c["head_dim"], v = c["v_head_dim"],
                       e = c["dtype"] == "bf16" ? 2 : 4, t = c["sequences"].get<std::int64_t>() * 256;
    const bool latent = v != d;
    Op op;
    op.kind = OpKind::attention;
    op.shape = {.heads = heads, .kv_heads = kv_heads, .head_dim = d};
    if (latent) op.shape.rotated = 16, op.shape.v_head_dim = v;
    op.inputs = {0, 1, 2}, op.outputs = {3};
    const OpFacts f = facts(titan, op, {c["sequences"], c["seq_len"], e});
    CHECK(f.attention == AttentionKernel::flex);
    CHECK(int{f.saved_outputs} == 1);
    // q, k, v and the result; of latent attention k is made here, and v is a view of what the projection made of both.
    const std::int64_t inputs = latent ? t * heads * (d + v) * e : t * (heads + 2 * kv_heads) * d * e;
    CHECK(int{f.saved_inputs} == (latent ? 0b11 : 0b111));
    CHECK(inputs + t * heads * v * e + f.saved_extra_bytes == bytes_of(row["saved"]));
    CHECK(bytes_of(row["gradients"]) == t * (heads * d + kv_heads * (d + v)) * e);
  }
}
