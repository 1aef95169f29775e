// Emitted scripts of models with adapters: the call of peft that makes the model which the plan was made for.
// tests/torch/random/random_plans.py runs such scripts.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/graph/lora.h"
#include "planner/emit.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using fsdp::testing::holds;

namespace {

Emitted emitted(const std::string& format, const std::string& lora) {
  const ModelGraph model = add_lora(small_llama(), parse_lora(lora, "test"), "test");
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
  plan.units = wrap(model, plan.wrap = "block", "test");
  return emit(format, plan, model);
}

bool says_frozen(const Emitted& e) {
  return std::any_of(e.cannot_express.begin(), e.cannot_express.end(),
                     [](const Inexact& i) { return holds(i.text(), "not trained"); });
}

}  // namespace

TEST_CASE("the script puts in the adapters of the plan's model") {
  const std::string all = emitted("pytorch", "rank=4,alpha=6").text;
  CHECK(holds(all,
              "    lora = LoraConfig(r=4, lora_alpha=6.0, lora_dropout=0.0, target_modules=[\"down_proj\", "
              "\"gate_proj\", \"k_proj\", \"o_proj\", \"q_proj\", \"up_proj\", \"v_proj\"])\n"
              "    return inject_adapter_in_model(lora, build_base_model(config, reference))\n"));
  CHECK(holds(all, "def build_base_model(config, reference):"));
  CHECK(holds(all, "\"intermediate_size\": 36"));  // read from the layer under the adapter
  const std::string one = emitted("pytorch", "rank=2,targets=1.self_attn.q_proj").text;
  CHECK(holds(one,
              "LoraConfig(r=2, lora_alpha=2.0, lora_dropout=0.0, "
              "target_modules=[\"model.layers.1.self_attn.q_proj\"])"));
  CHECK_FALSE(says_frozen(emitted("pytorch", "2")));
  for (const std::string format : {"accelerate", "torchtitan"}) CHECK(says_frozen(emitted(format, "2")));
}
