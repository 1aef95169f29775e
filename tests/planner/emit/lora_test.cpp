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
  if (lora.find("base=") != std::string::npos) plan.master_dtype = plan.param_dtype;
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

TEST_CASE("where a script of one's own makes the model, what it has to call is said") {
  const auto said = [](const std::string& format, const std::string& lora) {
    std::string all;
    for (const Inexact& i : emitted(format, lora).cannot_express) all += i.text() + "\n";
    return all;
  };
  for (const std::string format : {"accelerate", "lightning", "deepspeed", "composer", "transformers"}) {
    CAPTURE(format);
    CHECK(holds(said(format, "rank=4,targets=q_proj,dropout=0.1"),
                "get_peft_model with LoraConfig(r=4, lora_alpha=4.0, lora_dropout=0.1, target_modules=[\"q_proj\"])"));
    CHECK_FALSE(holds(said(format, "4"), "BitsAndBytesConfig"));
    CHECK(holds(said(format, "rank=4,base=nf4-double"), "bnb_4bit_use_double_quant=True"));
    CHECK(holds(said(format, "rank=4,base=nf4"),
                "autocast_adapter_dtype=False, on a model loaded with BitsAndBytesConfig(load_in_4bit=True, "
                "bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=False, bnb_4bit_quant_storage=torch.bfloat16, "
                "bnb_4bit_compute_dtype=torch.bfloat16)"));
  }
}

TEST_CASE("accelerate: units of adapters are peft's policy, set in a script") {
  const ModelGraph model = add_lora(small_llama(), parse_lora("4", "test"), "test");
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16, .dialect = Dialect::fsdp1});
  plan.units = wrap(model, plan.wrap = std::string(kAdapterUnits), "test");
  const Emitted e = emit("accelerate", plan, model);
  CHECK(std::any_of(e.cannot_express.begin(), e.cannot_express.end(),
                    [](const Inexact& i) { return holds(i.text(), "peft.utils.other.fsdp_auto_wrap_policy(model)"); }));
  CHECK(holds(e.text, "fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer"));
  for (const Module& m : model.modules)
    if (m.block) plan.checkpointed.push_back(m.name);
  CHECK(
      holds(emit("accelerate", plan, model).text,
            "recomputation of whole blocks: Accelerate recomputes what its policy wraps, here each adapter by itself, "
            "too. It is left off here"));
}

TEST_CASE("the script keeps frozen weights in 4 bits, but for the head's") {
  const std::string text = emitted("pytorch", "rank=4,base=nf4-double").text;
  CHECK(holds(text, "if name == \"lm_head\" or not (turned or type(layer) is nn.Linear)"));
  CHECK(holds(text, "{\"compress_statistics\": True, \"quant_type\": \"nf4\", "));
  CHECK(holds(text, "return inject_adapter_in_model(lora, in_four_bits(build_base_model(config, reference)))\n"));
  CHECK(holds(text, "    give_scales(model, device)\n"));
  CHECK(holds(text, "\"intermediate_size\": 36"));  // read from the layer under the adapter, as it was before
  CHECK_FALSE(holds(emitted("pytorch", "4").text, "give_scales"));
}
