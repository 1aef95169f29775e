// Configurations of frameworks as settings of a plan: what is known, what is named as unread, what is refused.
#include <doctest/doctest.h>

#include <string>

#include "models/catalog.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/planner/lint/reading.h"

using namespace fsdp;
using testing::holds;
using testing::llama;
using testing::read;
using testing::refusal;
using testing::refused;
using testing::settings;

namespace {

const std::string kAccelerate = R"(# a comment
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: 'bf16'   # another
num_processes: 8
tpu_env: []
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_offload_params: false
  fsdp_activation_checkpointing: true
  fsdp_new_key: 7
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
)";

}  // namespace

TEST_CASE("Accelerate's YAML, FSDP 2: units, reshard, mesh, types; an unknown key is named with its line") {
  const auto s = settings(kAccelerate);
  CHECK(s.at("dialect") == "fsdp2");
  CHECK(s.at("wrap") == "class:LlamaDecoderLayer");
  REQUIRE(read(kAccelerate).units);  // version 2 makes more units
  CHECK(read(kAccelerate).units->size() == 4 + 3);
  CHECK(read(kAccelerate).units->at(5) == Unit{{"model.norm", "lm_head"}, Reshard::no});
  CHECK(s.at("reshard_after_forward") == "false");
  CHECK(s.at("replicate") == "2");
  CHECK(s.at("gpus") == "8");
  CHECK(s.at("param_dtype") == "bf16");
  CHECK(s.at("reduce_dtype") == "bf16");
  CHECK(s.at("activation_checkpointing") == "full");
  const ReadConfig c = read(kAccelerate);
  CHECK(holds(c.notes.back(), "before 1.15"));
  REQUIRE(c.unread.size() == 1);
  CHECK(c.unread[0] == "fsdp_config.fsdp_new_key (line 14)");
}

TEST_CASE("Accelerate's YAML, FSDP 1: the strategy, prefetch, and wrapping by size; classes as a list") {
  const auto s = settings(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_auto_wrap_policy: "
      "SIZE_BASED_WRAP\n  fsdp_min_num_params: 1000\n  fsdp_backward_prefetch: BACKWARD_POST\n  "
      "fsdp_forward_prefetch: true\n  fsdp_use_orig_params: false\n");
  CHECK(s.at("dialect") == "fsdp1");
  CHECK(s.at("reshard_after_forward") == "false");
  CHECK(s.at("wrap") == "params:1000");
  CHECK(s.at("backward_prefetch") == "post");
  CHECK(s.at("forward_prefetch") == "1");
  CHECK(s.at("use_orig_params") == "false");
  CHECK(s.at("param_dtype") == "fp32");
  CHECK(settings("distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  "
                 "fsdp_transformer_layer_cls_to_wrap:\n  - LlamaMLP\n  - LlamaAttention\n")
            .at("wrap") == "class:LlamaMLP,LlamaAttention");
  CHECK(settings("distributed_type: MULTI_GPU\nnum_processes: 2\n").at("dialect") == "ddp");
  const std::string plain = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
  CHECK(holds(read(plain).notes.back(), "activation checkpointing 'reentrant'"));
  CHECK_FALSE(holds(read(plain + "  fsdp_activation_checkpointing: true\n").notes.back(), "reentrant"));
}

TEST_CASE("Accelerate's YAML: NO_WRAP leaves no block to recompute; NO_SHARD of FSDP 1 replicates on every rank") {
  const auto unwrapped = [](const std::string& version) {
    return "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: " + version +
           "\n  fsdp_auto_wrap_policy: NO_WRAP\n  fsdp_activation_checkpointing: true\n";
  };
  CHECK(settings(unwrapped("2")).at("activation_checkpointing") == "none");
  CHECK(holds(read(unwrapped("2")).notes.back(), "a run without recomputation is predicted"));
  CHECK(settings(unwrapped("1")).at("activation_checkpointing") == "full");
  CHECK(holds(read(unwrapped("1")).notes.back(), "whole blocks are predicted"));
  const std::string replicated = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: NO_SHARD\n";
  CHECK(settings(replicated + "num_processes: 8\n").at("replicate") == "8");
  CHECK(settings(replicated + "num_processes: 8\n").at("dialect") == "fsdp1");
  CHECK(holds(refused(replicated), "num_processes: is missing"));
}

// "model.layers.0 freed; model.norm, lm_head kept": the units but for the root.
std::string units(const std::string& text) {
  std::string out;
  const ReadConfig read_back = read(text);
  REQUIRE(read_back.units);
  REQUIRE(read_back.units->back() == Unit{{""}, read_back.units->back().reshard_after_forward});
  for (std::size_t u = 0; u + 1 < read_back.units->size(); ++u) {
    const Unit& unit = (*read_back.units)[u];
    std::string names;
    for (const std::string& name : unit.modules) names += (names.empty() ? "" : ", ") + name;
    out += (out.empty() ? "" : "; ") + names + (unit.reshard_after_forward == Reshard::no ? " kept" : " freed");
  }
  return out;
}
const std::string kBlocks = "model.layers.0 freed; model.layers.1 freed; model.layers.2 freed; model.layers.3 freed";

TEST_CASE("transformers' fsdp_plan: each module that a rule names is a unit; norm and head that are kept are one") {
  CHECK(units(R"({"model.layers.*": "free_full_weight"})") == kBlocks);
  CHECK(units(R"({"model.layers.*": "free_full_weight", "model.norm": "keep_full_weight", "lm_head":
    "keep_full_weight"})") == kBlocks + "; model.norm, lm_head kept");
  CHECK(units(R"({"model.layers.*": "free_full_weight", "lm_head": "keep_full_weight"})") ==
        kBlocks + "; lm_head kept");
  CHECK(units(R"({"model.layers.*.mlp": "keep_full_weight"})").find("model.layers.2.mlp kept") != std::string::npos);
  // A DistributedConfig's rules are added to those of the model's class.
  const std::string config = R"({"fsdp_plan": {"model.embed_tokens": "keep_full_weight"}, "fsdp_size": 4,
    "dp_replicate_size": 2, "fsdp_mixed_precision": true})";
  CHECK(units(config) == "model.embed_tokens kept; " + kBlocks + "; model.norm kept; lm_head kept");
  for (const std::string& form : {config, std::string(R"({"model.layers.*": "free_full_weight"})")})
    CHECK(settings(form)["loss_in_model"] == "true");  // as transformers' models are trained
  CHECK(holds(read(config).notes.at(0), "lm_head, model.layers.*, model.norm"));
  const auto s = settings(config);
  CHECK(s.at("gpus") == "8");
  CHECK(s.at("param_dtype") == "bf16");
  CHECK(read(R"({"fsdp_plan": {}, "fsdp_magic": "x"})").unread.size() == 1);
  CHECK(holds(refused(R"({"model.layers.0": "free_full_weight"})"), "write * for the number"));
  CHECK(holds(refused(R"({"model.leyers.*": "free_full_weight"})"), "no module of tiny-llama has that name"));
  CHECK(holds(refused(R"({"model.layers.*": "free"})"), "use free_full_weight or keep_full_weight"));
}

TEST_CASE("transformers' DistributedConfig as Python; its own rules taken out, or added") {
  const std::string alone =
      "# a comment\nfrom transformers.distributed import "
      "DistributedConfig\n\n\"\"\"DistributedConfig(fsdp_size=3)\"\"\"\n"
      "distributed_config = DistributedConfig(\n    fsdp_size=2 * 2,  # of four\n    dp_replicate_size=2,\n"
      "    fsdp_plan={\n        \"model.layers.*\": \"free_full_weight\",\n        'lm_head': \"keep_full_weight\",\n"
      "    },\n    fsdp_cpu_offload=True,\n    fsdp_mixed_precision=True,\n)\nconfig.base_model_fsdp_plan = {}\n"
      "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})\n";
  CHECK(units(alone) == kBlocks + "; lm_head kept");
  CHECK(settings(alone)["loss_in_model"] == "true");
  const auto s = settings(alone);
  CHECK(s.at("gpus") == "8");
  CHECK(s.at("replicate") == "2");
  CHECK(s.at("offload") == "true");
  CHECK(s.at("param_dtype") == "bf16");
  CHECK(s.at("activation_checkpointing") == "full");
  CHECK(read(alone).unread.empty());
  const std::string added = "from a import b\nc = DistributedConfig(fsdp_size=8, new_key=3)\n";
  CHECK(units(added) == "model.embed_tokens freed; " + kBlocks + "; model.norm, lm_head kept");
  CHECK(read(added).unread == std::vector<std::string>{"DistributedConfig.new_key (line 2)"});
  CHECK(holds(refused("import x\nDistributedConfig(fsdp_size=2, pp_size=2)\n"), "pp_size"));
  CHECK(holds(refused("import x\nDistributedConfig(fsdp_size=many)\n"), "'many' is not a whole number"));
  CHECK(holds(refused("import x\nDistributedConfig(fsdp_size=2, fsdp_size=2)\n"), "twice"));
}

TEST_CASE("transformers, tied weights: the embedding's own rule does not count; kept, it is one unit with the head") {
  const ModelGraph tied = load_model("qwen3-0.6b");
  const auto units_in = [&](const std::string& text) { return *read_config(text, "c", tied).units; };
  const auto legal = [&](const std::vector<Unit>& units) {
    ShardingPlan plan = naive_plan(tied, {.ranks = 8, .seq_len = 128});
    plan.wrap = "";
    plan.units = units;
    return refusal([&] { check(plan, tied, "plan"); }).empty();
  };
  std::vector<Unit> titan = wrap_titan(tied);
  for (std::size_t u = 0; u + 2 < titan.size(); ++u) titan[u].reshard_after_forward = Reshard::yes;
  const std::vector<Unit> usual = units_in("import x\nDistributedConfig(fsdp_size=8)\n");
  CHECK(usual == titan);
  CHECK(legal(usual));
  const std::string blocks = R"("model.layers.*": "free_full_weight")";
  const auto with = [&](const std::string& rules) { return units_in("{" + blocks + rules + "}"); };
  // Norm apart: the head is kept by itself, with the embedding.
  const std::vector<Unit> head = with(R"(, "lm_head": "keep_full_weight")");
  CHECK(legal(head));
  CHECK(head.at(head.size() - 2) == Unit{{"model.embed_tokens", "lm_head"}, Reshard::no});
  // Without a head that is kept no rule of the embedding counts.
  CHECK(with(R"(, "model.embed_tokens": "keep_full_weight")") == with(""));
  CHECK(with(R"(, "model.embed_tokens": "free_full_weight")") == with(""));
  CHECK(legal(with("")));
}

TEST_CASE("transformers: base rules that are replaced by others than none are named; the weights' dtype is not read") {
  const std::string python = "import x\nDistributedConfig(fsdp_size=8, fsdp_mixed_precision=True)\n";
  CHECK(holds(read(python).notes.back(), "give --master-dtype"));
  CHECK_FALSE(holds(read(python).notes.back(), "--param-dtype"));
  CHECK(holds(read("import x\nDistributedConfig(fsdp_size=8)\n").notes.back(), "--param-dtype and --reduce-dtype"));
  CHECK(holds(read(R"({"fsdp_plan": {}, "fsdp_size": 4})").notes.back(), "give --master-dtype"));
  CHECK(units(python + "config.base_model_fsdp_plan = {}\n").empty());
  CHECK(read(python + "config.base_model_fsdp_plan = {}\n").unread.empty());
  const std::string others = python + "config.base_model_fsdp_plan = {'model.norm': 'keep_full_weight'}\n";
  CHECK(read(others).unread == std::vector<std::string>{"config.base_model_fsdp_plan (line 3)"});
  CHECK(units(others) == units(python));
}

TEST_CASE("large files end with an answer or a refusal") {
  const auto repeated = [](const std::string& text, std::size_t bytes) {
    std::string all = "import x\n";
    while (all.size() < bytes) all += text;
    return all;
  };
  for (const char* text :
       {"TrainingConfig(", "TrainingConfig()\n", "DistributedConfig(fsdp_plan={", "xTrainingConfig("})
    CHECK_NOTHROW((void)refusal([&] { return read_config(repeated(text, 200 << 10), "c", llama()); }));
  CHECK(holds(refused(repeated("TrainingConfig(", 300 << 10)), "at most 262144 are read"));
  std::string keys = "import x\nTrainingConfig(";
  for (int i = 0; i < 12'000; ++i) keys += "a" + std::to_string(i) + "=1, ";
  CHECK(holds(refused(keys + ")\n"), "10000 keys"));
  // Every call is read, also behind another.
  CHECK(settings("import x\nTrainingConfig(max_context_length=128)\nTrainingConfig(num_tokens_per_train_step=256)\n"
                 "config.training.num_tokens_per_microbatch_per_dp_rank = 128\n")
            .at("global_batch") == "2");
}

TEST_CASE("NeMo AutoModel's YAML: blocks and the root, reshard, prefetch, batches, types") {
  const std::string recipe =
      "recipe: Train\nstep_scheduler:\n  global_batch_size: 32\n  local_batch_size: 2\nmodel:\n  _target_: x.y\n"
      "  torch_dtype: bf16\ndistributed:\n  strategy: fsdp2\n  dp_size: none\n  dp_replicate_size: 2\n"
      "  enable_fsdp2_prefetch: true\n  activation_checkpointing: true\n  defer_fsdp_grad_sync: false\n  mp_policy:\n"
      "    _target_: torch.distributed.fsdp.MixedPrecisionPolicy\n    param_dtype: bfloat16\n    reduce_dtype: "
      "bfloat16\n"
      "  new_key: 1\ndataset:\n  - name: a\n    split: b\n  - name: c\npacked_sequence:\n  packed_sequence_size: 128\n";
  const std::string but_last = "model.layers.0 freed; model.layers.1 freed; model.layers.2 freed; model.layers.3 ";
  CHECK(units(recipe) == but_last + "kept");
  const auto s = settings(recipe);
  CHECK(s.at("replicate") == "2");
  CHECK(!s.contains("gpus"));
  CHECK(s.at("micro_batch") == "2");
  CHECK(s.at("global_batch") == "32");
  CHECK(s.at("seq_len") == "128");
  CHECK(s.at("forward_prefetch") == "1");
  CHECK(s.at("backward_prefetch") == "2");
  CHECK(s.at("activation_checkpointing") == "full");
  CHECK(s.at("grad_sync") == "every");
  CHECK(s.at("reduce_dtype") == "bf16");
  CHECK(s.at("master_dtype") == "bf16");
  CHECK(s.at("clip_norm") == "1.0");
  CHECK(read(recipe).unread == std::vector<std::string>{"distributed.new_key (line 19)"});
  CHECK(read(recipe).notes.back().find("whole blocks are predicted") != std::string::npos);
  CHECK(units("distributed:\n  strategy: fsdp2\n  reshard_after_forward: true\n") == but_last + "freed");
  CHECK(settings("distributed:\n  strategy: ddp\n").at("dialect") == "ddp");
  CHECK(holds(refused("distributed:\n  strategy: megatron_fsdp\n"), "'megatron_fsdp' is not read"));
  CHECK(holds(refused("distributed:\n  pp_size: 2\n"), "pp_size"));
  CHECK(holds(refused("distributed:\n  activation_checkpointing: some\n"), "use true, full, selective or false"));
  CHECK(holds(refused("distributed:\n  mp_policy:\n    param_dtype: int8\n"), "'int8' is not read"));
  CHECK(holds(refused("distributed:\n  strategy: fsdp2\n    x: 1\n"), "set in below a value"));
}

TEST_CASE("what no plan holds, and what its framework does not know, is refused by name") {
  CHECK(holds(refused(""), "is empty"));
  CHECK(holds(refused("# only a comment\n"), "is empty"));
  CHECK(holds(refused("{\"schema\": \"fsdp-plan/plan/1\", \"units\": []}"), "is a plan of fsdp-plan"));
  CHECK(holds(refused("hello"), "line 1: is not \"key: value\""));
  CHECK(holds(refused("distributed_type: DEEPSPEED\n"), "'DEEPSPEED' is not read"));
  CHECK(holds(refused("num_processes: 8\n"), "distributed_type: is missing"));
  CHECK(holds(refused("distributed_type: FSDP\ndistributed_type: FSDP\n"), "twice"));
  CHECK(holds(refused("distributed_type: FSDP\nnum_processes: many\n"), "num_processes: 'many' is not a whole number"));
  CHECK(holds(refused("distributed_type: FSDP\nnum_processes: 99999999999999999999\n"), "not a whole number"));
  CHECK(holds(refused("distributed_type: FSDP\nnum_processes: 0\n"), "out of range"));
  CHECK(holds(refused("a: &x 1\n"), "anchors"));
  CHECK(holds(refused("a: [1, 2\n"), "does not end"));
  CHECK(holds(refused("  a: 1\n"), "set in below a value"));
  CHECK(holds(refused("[training\n"), "[section]"));
  CHECK(holds(refused("[training]\nseq_len\n"), "key = value"));
  CHECK(holds(refused("[parallelism]\npipeline_parallel_degree = 2\n"), "pipeline_parallel_degree"));
  CHECK(holds(refused("[parallelism]\nfsdp_reshard_after_forward = \"sometimes\"\n"), "default, always or never"));
  CHECK(holds(refused("[parallelism]\ndata_parallel_shard_degree = 0\n"), "is 0"));
  CHECK(holds(refused("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"),
              "how many GPUs a machine has"));
  CHECK(holds(refused("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: 4\n"),
              "neither true nor false"));
}
