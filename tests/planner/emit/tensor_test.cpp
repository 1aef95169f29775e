// Emitted files of plans with tensor parallelism: the PyTorch script trains on CPU ranks as the model does on one, with
// the plan's placements and collectives; other targets say what they lose.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/input/error.h"
#include "planner/emit.h"
#include "planner/job.h"
#include "planner/layout.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/families.h"
#include "planner/tensor/parts.h"
#include "planner/wrap.h"
#include "tests/planner/emit/scripts.h"
#include "tests/support/small_models.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using fsdp::testing::chosen_python;
using fsdp::testing::run;
using fsdp::testing::TemporaryFolder;
using Json = nlohmann::json;

namespace {

ModelGraph small(const std::string& family) {
  return model_from_config(
      fmt::format(
          R"({{"model_type": "{}", "vocab_size": 44, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 64,
               "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}})",
          family),
      "small_" + family);
}

ShardingPlan plan_of(const ModelGraph& model, std::int64_t ranks, std::int64_t tensor, std::int64_t replicate = 1) {
  PlanOptions options{.ranks = ranks, .replicate = replicate, .seq_len = 16};
  options.tensor = tensor;
  ShardingPlan plan = naive_plan(model, options);
  plan.param_dtype = plan.reduce_dtype = plan.master_dtype = DType::f64;
  plan.optimizer.lr = 0.01;
  return plan;
}

// What run_tensor.py expects of PyTorch.
std::string expected(const ShardingPlan& plan, const ModelGraph& whole, bool reference) {
  Programs programs(resolve(whole, plan, torch_cpu_implementation(), {}));
  const Program& program = programs.of(0);
  const ModelGraph& model = programs.job().model;
  Json units = Json::array(), dims, collectives = Json::array();
  const std::vector<TensorPart> parts = tensor_parts(model, plan);
  for (std::size_t u = 0; u < program.layouts.size(); ++u) {
    std::vector<std::string> parameters;
    for (const ShardedParam& p : program.layouts[u].params) {
      const TensorPart& part = parts[static_cast<std::size_t>(p.param)];
      parameters.push_back(model.parameters[static_cast<std::size_t>(p.param)].name);
      dims[parameters.back()] = part.split() ? Json(part.dim) : Json();
    }
    const Reshard r = plan.units[u].reshard_after_forward;
    units.push_back({{"modules", plan.units[u].modules},
                     {"parameters", parameters},
                     {"reshard", r == Reshard::automatic ? !program.layouts[u].root : r != Reshard::no}});
  }
  const auto buffer = [&](const Arg& a) { return program.buffers[static_cast<std::size_t>(a.buffer)]; };
  for (const Operation& op : program.steady_step.ops) {
    if (op.comm != Communicator::tensor) continue;
    const auto args = program.steady_step.args_of(op);
    const Buffer b = buffer(op.action == Action::all_gather ? args.back() : args.front());
    if (op.action == Action::clip_reduce)
      collectives.push_back({"tensor all_reduce", model.parameters.size(), name(plan.master_dtype)});
    else  // fp32 is what the loss is computed in: run_tensor.py does so in fp64
      collectives.push_back({"tensor " + std::string(name(op.action)), b.bytes / size_of(b.dtype),
                             name(b.dtype == DType::f32 ? plan.master_dtype : b.dtype)});
  }
  return Json{{"units", units},
              {"checkpointed", plan.checkpointed},
              {"mesh", {plan.replicate(), plan.shard(), plan.tensor()}},
              {"tensor_dims", dims},
              {"collectives", collectives},
              {"tolerance", plan.param_dtype == DType::f64 ? 1e-11 : 2e-6},
              {"reference", reference}}
      .dump();
}

struct Case {
  std::string name;
  ModelGraph model;
  ShardingPlan plan;
  bool reference = true;  // the model that the script writes out; false: transformers', where it is installed
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const ModelGraph llama = small("llama"), qwen3 = small("qwen3"), qwen2 = small("qwen2");
  ShardingPlan p = plan_of(llama, 4, 2);
  list.push_back({"plain", llama, p});
  list.push_back({"plain_transformers", llama, p, false});
  p.micro_batches = {2, 1};
  p.grad_sync = GradSync::last;
  p.checkpointed = checkpointed_modules(llama, "full", "test");
  p.units = wrap(llama, "titan", "test");
  p.wrap = "titan";
  p.clip_norm = 0.5;
  list.push_back({"titan_recomputed_clipped", llama, p});
  p = plan_of(llama, 4, 2, 2);  // 2 replicas of 1 shard
  p.tensor_plan.loss_parallel = false;
  p.forward_prefetch = 1;
  p.param_dtype = p.reduce_dtype = p.master_dtype = DType::f32;
  list.push_back({"replicas_gathered_logits", llama, p});
  p = plan_of(qwen3, 4, 4);
  list.push_back({"qwen3_four_parts", qwen3, p});
  p = plan_of(qwen3, 4, 2);
  list.push_back({"qwen3_transformers", qwen3, p, false});
  p = plan_of(qwen2, 4, 2);  // biases of q, k and v
  set_reshard(p, Reshard::no);
  list.push_back({"qwen2_kept", qwen2, p});
  return list;
}

bool says(const Emitted& out, const std::string& field, Inexact::Effect effect) {
  return std::any_of(out.cannot_express.begin(), out.cannot_express.end(),
                     [&](const Inexact& i) { return i.field == field && i.effect == effect; });
}

std::set<std::string> fields_of(const std::vector<Inexact>& lost) {
  std::set<std::string> fields;
  for (const Inexact& i : lost) fields.insert(i.field);
  return fields;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("pytorch: parallelize_module by the plan's tensor plan, beside fully_shard") {
  const ModelGraph model = small("qwen3");
  ShardingPlan plan = plan_of(model, 8, 2, 2);
  Emitted out = emit("pytorch", plan, model);
  CHECK(out.written == plan);
  CHECK_FALSE(out.changes_prediction());
  for (const char* line :
       {"\n# ranks       8 = 2 replicas x 2 shards x 2 tensor ranks\n", "\n    \"tensor\": 2,",
        "\n    \"model.embed_tokens\": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), ",
        "\n    \"model.layers.*.self_attn.q_proj\": ColwiseParallel(),\n",
        "\n    \"model.layers.*.self_attn.q_norm\": SequenceParallel(sequence_dim=2, use_local_output=True),\n",
        "\n    \"model.layers.*.mlp\": GatheredSequence(),\n",
        "\n    \"model.layers.*.mlp.down_proj\": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),\n",
        "\n    \"lm_head\": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), "
        "use_local_output=False),\n",
        "\n@loss_parallel()"}) {
    CAPTURE(line);
    CHECK(has(out.text, line));
  }
  plan.tensor_plan.loss_parallel = false;
  out = emit("pytorch", plan, model);
  CHECK(has(out.text, "\n    \"lm_head\": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),\n"));
  CHECK_FALSE(has(out.text, "loss_parallel"));
  const std::string without = emit("pytorch", plan_of(model, 8, 1), model).text;
  for (const char* word : {"parallelize_module", "Replicate", "loss_parallel", "@"})
    CHECK_MESSAGE(!has(without, word), word);
}

TEST_CASE("pytorch: --tiny has something for each of more tensor ranks than it is usually wide") {
  const ModelGraph model = model_from_config(
      R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512,
          "num_hidden_layers": 1, "num_attention_heads": 256, "num_key_value_heads": 256, "head_dim": 8,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": false})",
      "wide");
  PlanOptions options{.ranks = 256, .seq_len = 512};
  options.tensor = 256;
  const std::string text = emit("pytorch", naive_plan(model, options), model).text;
  CHECK(has(text, "TINY = {\"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 256, "));
  CHECK(has(text, "min(PLAN[\"seq_len\"], max(tensor, 32 - 32 % tensor))"));
}

TEST_CASE("other targets say that they split no layers; torchtitan splits them in its own way") {
  const ModelGraph model = small("llama");
  ShardingPlan plan = plan_of(model, 8, 2, 2);
  plan.clip_norm = 1.0;
  for (const char* format : {"accelerate", "transformers", "automodel", "lightning", "composer", "deepspeed"}) {
    CAPTURE(format);
    const Emitted out = emit(format, plan, model);
    CHECK(says(out, "mesh", Inexact::Effect::written));
    CHECK(says(out, "tensor_plan", Inexact::Effect::written));
    CHECK(out.written.tensor() == 1);
    CHECK(out.written.ranks() == 8);
    CHECK(has(out.text, "layers split over 2 tensor ranks"));
    CHECK(has(out.text, "8 sequences a step in place of 4"));
    CHECK(out.written.tokens_per_step() == 2 * plan.tokens_per_step());
    CHECK(fields_of(unsayable(format, plan, model)).contains("tensor_plan"));
    // Who fixed the split leaves the other choices open, and of the mesh nothing else is lost.
    const bool other = std::string(format) == "deepspeed";  // which has no such replicas
    CHECK(fields_of(unsayable(format, plan, model, {"tensor_plan"})).contains("mesh") == other);
    CHECK_NOTHROW(check(out.written, model, "written"));
  }
  const Emitted toml = emit("torchtitan-toml", plan, model);
  CHECK(has(toml.text, "\ntensor_parallel_degree = 2\ndisable_loss_parallel = false\n"));
  CHECK(has(toml.text, "\nglobal_batch_size = 4\n"));  // of four groups, not of eight ranks
  CHECK_FALSE(says(toml, "tensor_plan", Inexact::Effect::written));
  ShardingPlan listed = plan;  // the same split, module by module
  const ModuleStyle first = plan.tensor_plan.modules.at(2);
  REQUIRE(has(first.module, ".*."));
  listed.tensor_plan.modules.erase(listed.tensor_plan.modules.begin() + 2);
  for (const char* layer : {"0", "1"})
    listed.tensor_plan.modules.push_back(
        {std::string(first.module).replace(first.module.find('*'), 1, layer), first.style});
  CHECK_FALSE(says(emit("torchtitan-toml", listed, model), "tensor_plan", Inexact::Effect::written));
  plan.tensor_plan.loss_parallel = false;
  CHECK(has(emit("torchtitan-toml", plan, model).text, "\ndisable_loss_parallel = true\n"));
  for (const char* format : {"torchtitan", "torchtitan-args"}) {
    const Emitted out = emit(format, plan, model);
    CHECK(says(out, "tensor_plan", Inexact::Effect::written));  // logits that are gathered
    CHECK(says(out, "tensor_plan", Inexact::Effect::unknown));
    CHECK(has(out.text, "parallelism.tensor_parallel_degree"));
    CHECK(fields_of(unsayable(format, plan, model)).contains("tensor_plan"));  // a target that splits no layers
  }
}

TEST_CASE("emitted scripts of tensor plans train on four ranks as one rank does, where torch is installed") {
  const TemporaryFolder folder;
  std::string arguments;
  for (const Case& c : cases()) {
    const std::filesystem::path script = folder.path() / (c.name + ".py"), wanted = folder.path() / (c.name + ".json");
    std::ofstream(script) << emit("pytorch", c.plan, c.model).text;
    std::ofstream(wanted) << expected(c.plan, c.model, c.reference);
    arguments += fmt::format(" '{}' '{}'", script.string(), wanted.string());
  }
  const std::string python = chosen_python();
  if (run(python + " -c pass") != 0) {
    MESSAGE("skipped: there is no '" << python << "' to run the scripts with (set FSDP_PLAN_PYTHON)");
    return;
  }
  const int code = run(python + " '" FSDP_TESTS_DIR "/torch/run_tensor.py' 4" + arguments);
  if (code == 77) {
    MESSAGE("skipped: '" << python << "' cannot import torch (set FSDP_PLAN_PYTHON)");
    return;
  }
  CHECK(code == 0);
}
