// Configurations of frameworks as settings of a plan: what is known, what is named as unread, what is refused.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/catalog.h"
#include "planner/lint/read_config.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using testing::holds;
using testing::refusal;

namespace {

const ModelGraph& llama() {
  static const ModelGraph kModel = load_model("tiny-llama");
  return kModel;
}
ReadConfig read(const std::string& text) { return read_config(text, "c", llama()); }
std::map<std::string, std::string> settings(const std::string& text) {
  std::map<std::string, std::string> all;
  for (const ConfigSetting& s : read(text).settings) {
    CHECK_MESSAGE(!all.contains(s.name), s.name);
    all[s.name] = s.value;
  }
  return all;
}
std::string refused(const std::string& text) {
  return refusal([&] { return read(text); });
}

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
  CHECK(s.at("reshard_after_forward") == "false");
  CHECK(s.at("replicate") == "2");
  CHECK(s.at("gpus") == "8");
  CHECK(s.at("param_dtype") == "bf16");
  CHECK(s.at("reduce_dtype") == "bf16");
  CHECK(s.at("activation_checkpointing") == "full");
  const ReadConfig c = read(kAccelerate);
  CHECK(c.checkpoints_children);
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
}

TEST_CASE("torchtitan's TOML and its arguments say the same") {
  const std::string toml =
      "[training]\nlocal_batch_size = 2\nglobal_batch_size = 32\nseq_len = 128\nmixed_precision_param = \"bfloat16\"\n"
      "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"
      "fsdp_reshard_after_forward = \"never\"\n[activation_checkpoint]\nmode = \"selective\"\n"
      "selective_ac_option = '2'\n[compile]\nenable = true\n";
  const std::string arguments =
      "torchrun --nproc_per_node=8 train.py \\\n  --training.local_batch_size 2 --training.global_batch_size=32 \\\n"
      "  --training.seq_len 128 --training.mixed_precision_param bfloat16 --parallelism.data_parallel_replicate_degree "
      "2 "
      "--parallelism.data_parallel_shard_degree 4 --parallelism.fsdp_reshard_after_forward never "
      "--activation_checkpoint.mode selective --activation-checkpoint.selective-ac-option 2 --compile.enable\n";
  const auto s = settings(toml);
  CHECK(s == settings(arguments));
  CHECK(s.at("wrap") == "titan");
  CHECK(s.at("reshard_after_forward") == "false");
  CHECK(s.at("gpus") == "8");
  CHECK(s.at("micro_batch") == "2");
  CHECK(s.at("global_batch") == "32");
  CHECK(s.at("activation_checkpointing") == "every-2");
  CHECK(read(toml).compile);
  CHECK(read(arguments).compile);
  CHECK_FALSE(read("--training.seq_len 128 --compile.no-enable").compile);
  CHECK(read(toml + "[parallelism2]\nx = 1\n").unread == std::vector<std::string>{"parallelism2.x (line 16)"});
  CHECK(read("--parallelism.enable_magic 3").unread.size() == 1);
}

TEST_CASE("transformers' fsdp_plan: modules by name and star are units of their classes") {
  CHECK(settings(R"({"model.layers.*": "free_full_weight"})").at("wrap") == "class:LlamaDecoderLayer=true");
  const auto s = settings(R"({"fsdp_plan": {"model.layers.*": "free_full_weight", "model.embed_tokens":
    "keep_full_weight"}, "fsdp_size": 4, "dp_replicate_size": 2})");
  CHECK(s.at("wrap") == "class:Embedding=false,LlamaDecoderLayer=true");
  CHECK(s.at("gpus") == "8");
  CHECK(read(R"({"fsdp_plan": {}, "fsdp_mixed_precision": "x"})").unread.size() == 1);
  CHECK(holds(refused(R"({"model.layers.0": "free_full_weight"})"), " modules of this class are named"));
  CHECK(holds(refused(R"({"model.leyers.*": "free_full_weight"})"), "no module of tiny-llama has that name"));
  CHECK(holds(refused(R"({"model.layers.*": "free"})"), "use free_full_weight or keep_full_weight"));
  CHECK(holds(refused(R"({"model.layers.0": "free_full_weight", "model.layers.1": "keep_full_weight"})"), "one value"));
}

TEST_CASE("what no plan holds, and what its framework does not know, is refused by name") {
  CHECK(holds(refused(""), "is empty"));
  CHECK(holds(refused("# only a comment\n"), "is empty"));
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
