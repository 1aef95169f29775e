// Tensor parallelism beside FSDP2: what is executed equals one rank's training, and what was predicted.
#include "tests/support/parity_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph divisible() {
  return small_llama({.layers = 2, .vocab = 48, .hidden = 24, .inner = 40, .heads = 8, .kv_heads = 4});
}

ModelGraph norms_of_heads() {
  return model_from_config(
      R"({"model_type": "qwen3", "vocab_size": 44, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false})",
      "small_qwen3", 8);
}

}  // namespace

TEST_CASE("test_train_parity_2d_mlp: over shard x tensor of 2 x 2 and 2 x 4, losses, gradients and weights are one rank's") {
  const ModelGraph model = divisible();
  for (const std::int64_t tensor : {2, 4}) {
    (void)check_parity(model, make_plan(model, in_double({.shard = 2, .seq_len = 8, .tensor = tensor})));
    (void)check_parity(model, make_plan(model, in_double({.shard = 2, .micro_batches = {2, 1}, .seq_len = 8,
                                                          .clip_norm = 0.05, .tensor = tensor})));
  }
}
