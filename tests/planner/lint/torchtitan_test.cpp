// torchtitan's configurations: TOML, arguments and Python.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/planner/lint/reading.h"

using namespace fsdp;
using testing::holds;
using testing::llama;
using testing::read;
using testing::refusal;
using testing::refused;
using testing::settings;

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
  CHECK(s.at("activation_checkpointing") == "last-of-2");
  CHECK(read(toml).compile);
  CHECK(read(arguments).compile);
  CHECK_FALSE(read("--training.seq_len 128 --compile.no-enable").compile);
  CHECK(read(toml + "[parallelism2]\nx = 1\n").unread == std::vector<std::string>{"parallelism2.x (line 16)"});
  CHECK(read("--parallelism.enable_magic 3").unread.size() == 1);
}

TEST_CASE("arguments: 'no' turns off what it stands before in the last part of a name alone") {
  CHECK(read("--training.seq_len 128 --no-a.b").unread == std::vector<std::string>{"no_a.b (line 1)"});
  CHECK(read("--training.seq_len 128 --a.snow.no-c").unread == std::vector<std::string>{"a.snow.c (line 1)"});
  CHECK_FALSE(read("--training.seq_len 128 --compile.no_enable").compile);
}

TEST_CASE("torchtitan's Python, by assignments and by classes, and its arguments since 2026 say the same") {
  const std::string assigned =
      "def planned():\n    config = llama3_8b()\n    config.training.num_tokens_per_microbatch_per_dp_rank = 2 * 128\n"
      "    config.training.num_tokens_per_train_step = 4_096\n    config.training.max_context_length = 128\n"
      "    config.parallelism.data_parallel_shard_degree = 8\n    config.activation_checkpoint = FullAC.Config()\n"
      "    config.parallelism.fsdp_reshard_after_forward = 'never'\n    config.compile.enable = True\n";
  const std::string classes =
      "from torchtitan.trainer import Trainer\nconfig = Trainer.Config(\n    training=TrainingConfig(\n"
      "        num_tokens_per_microbatch_per_dp_rank=256, num_tokens_per_train_step=4096, max_context_length=128),\n"
      "    parallelism=ParallelismConfig(data_parallel_shard_degree=8, fsdp_reshard_after_forward=\"never\"),\n"
      "    compile=CompileConfig(enable=True),\n    activation_checkpoint=FullAC.Config(),\n)\n";
  const std::string words =
      "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.num_tokens_per_microbatch_per_dp_rank 256 "
      "--training.num_tokens_per_train_step 4096 --training.max_context_length 128 "
      "--parallelism.data_parallel_shard_degree 8 --parallelism.fsdp_reshard_after_forward never --compile.enable "
      "activation-checkpoint:full\n";
  const auto s = settings(assigned);
  CHECK(s == settings(classes));
  CHECK(s == settings(words));
  CHECK(s.at("micro_batch") == "2");
  CHECK(s.at("global_batch") == "32");
  CHECK(s.at("seq_len") == "128");
  CHECK(s.at("activation_checkpointing") == "full");
  CHECK(s.at("reshard_after_forward") == "false");
  for (const std::string& text : {assigned, classes, words}) CHECK(read(text).compile);
  CHECK(settings("import x\nconfig.activation_checkpoint = None\n").at("activation_checkpointing") == "none");
  CHECK(holds(refused("import x\nconfig.activation_checkpoint = MemoryBudgetAC.Config()\n"), "MemoryBudgetAC"));
  CHECK(holds(refused("import x\nconfig.training.max_context_length = 100\n"
                      "config.training.num_tokens_per_microbatch_per_dp_rank = 256\n"),
              "no whole number of sequences"));
  for (const std::string text : {"import x\nParallelismConfig(", "import x\nParallelismConfig(a={", "def x\n\"\"\"",
                                 "import x\nDistributedConfig(fsdp_plan={'a", "import x\nconfig.training.x = 9 * \n"})
    CHECK_NOTHROW((void)refusal([&] { return read_config(text, "c", llama()); }));
}

TEST_CASE("torchtitan's converters: products in 8 bits of linear layers as the emitter writes them; others are named") {
  const std::string toml =
      "[model]\nconverters = [\"quantize.linear.float8\"]\n[quantize.linear.float8]\n"
      "enable_fsdp_float8_all_gather = true\nprecompute_float8_dynamic_scale_for_fsdp = true\n"
      "filter_fqns = [\"output\"]\n";
  const auto s = settings(toml);
  CHECK(s == settings("train.py --training.steps 1 --model.converters quantize.linear.float8 "
                      "--quantize.linear.float8.enable_fsdp_float8_all_gather "
                      "--quantize.linear.float8.precompute-float8-dynamic-scale-for-fsdp "
                      "--quantize.linear.float8.filter_fqns output --activation_checkpoint.mode selective "
                      "--activation_checkpoint.selective_ac_option 2"));
  CHECK(s.at("float8") == "tensorwise");
  CHECK(s.at("float8_all_gather") == "true");
  CHECK(s.at("float8_precomputed_scales") == "true");
  CHECK(read(toml).unread.empty());
  CHECK(read(toml).notes.empty());
  const auto section = [&](const std::string& keys) {
    return read("[model]\nconverters = [\"quantize.linear.float8\"]\n[quantize.linear.float8]\n" + keys);
  };
  CHECK(holds(section("recipe_name = \"rowwise\"\n").notes.at(0), "multiplies that in 8 bits, too"));
  CHECK(section("filter_fqns = [\"attention.wk\", \"output\"]\nemulate = true\n").unread ==
        std::vector<std::string>{"quantize.linear.float8.filter_fqns (line 4)",
                                 "quantize.linear.float8.emulate (line 5)"});
  CHECK(holds(section("filter_fqns = [\"output\"]\nprecompute_float8_dynamic_scale_for_fsdp = true\n").notes.at(0),
              "are not gathered in 8 bits"));
  const auto refused_section = [&](const std::string& keys) { return refusal([&] { return section(keys); }); };
  CHECK(holds(refused_section("recipe_name = \"some\"\n"), "quantize.linear.float8.recipe_name: 'some' is not read"));
  CHECK(holds(refused_section("recipe_name = \"rowwise\"\nenable_fsdp_float8_all_gather = true\n"), "both together"));
  // Without their converter the keys say nothing.
  CHECK_FALSE(settings("[quantize.linear.float8]\nrecipe_name = \"rowwise\"\n").contains("float8"));
  CHECK(read("[model]\nconverters = [\"ft\", \"quantize.grouped_mm.mx\"]\n[quantize.grouped_mm.mx]\nfqns = [\"a\"]\n")
            .unread ==
        std::vector<std::string>{"model.converters (line 2): ft", "model.converters (line 2): quantize.grouped_mm.mx"});
  const std::string mx = "[model]\nconverters = [\"quantize.linear.mx\"]\n[quantize.linear.mx]\n";
  CHECK(settings(mx).at("float8") == "mxfp8");
  CHECK(read(mx + "mxfp8_dim1_cast_kernel_choice = \"cuda\"\nfilter_fqns = []\n").notes.empty());
  CHECK(read(mx).notes.size() == 2);
  CHECK_FALSE(settings(mx + "recipe_name = \"mxfp4_cublas\"\n").contains("float8"));
  CHECK(read(mx + "recipe_name = \"mxfp4_cublas\"\n").unread.size() == 1);
  CHECK(holds(refused("[model]\nconverters = [\"quantize.linear.mx\", \"quantize.linear.float8\"]\n"), "name one"));
  const std::string python = "import x\nconfig.model_spec = spec('8B', converters=[\n  Float8LinearConverter.Config(";
  const ReadConfig by_class = read(python +
                                   "recipe_name='rowwise_with_gw_hp', filter_fqns=['lm_head']),\n"
                                   "  LoRAConverter.Config(rank=8)])\n");
  CHECK(by_class.notes.empty());
  CHECK(by_class.unread == std::vector<std::string>{"LoRAConverter (line 4)", "model_spec (line 2)"});
  CHECK(settings(python + ")])\n").at("float8") == "rowwise");
}

TEST_CASE("torchtitan's keys that change time or memory and are not read are named, in TOML and in Python") {
  const std::string toml =
      "[optimizer]\nname = \"AdamW\"\nlr = 1e-4\nweight_decay = 0.2\neps = 1e-8\nimplementation = \"for-loop\"\n"
      "early_step_in_backward = true\n[compile]\nenable = true\ncomponents = [\"loss\"]\nbackend = \"aot_eager\"\n"
      "[activation_checkpoint]\nmode = \"selective\"\n[model]\nname = \"llama3\"\nflavor = \"8B\"\nnew = 1\n";
  const ReadConfig c = read(toml);
  CHECK(c.unread == std::vector<std::string>{"optimizer.implementation (line 6)",
                                             "optimizer.early_step_in_backward (line 7)", "compile.backend (line 11)",
                                             "model.new (line 17)"});
  CHECK_FALSE(c.compile);
  REQUIRE(c.notes.size() == 2);
  CHECK(holds(c.notes[0], "compile.components without model"));
  CHECK(c.notes[1] == "model.flavor 8B is llama3-8b, and tiny-llama is predicted");
  const auto s = settings(toml);
  CHECK(s.at("lr") == "1e-4");
  CHECK(s.at("weight_decay") == "0.2");
  CHECK(s.at("activation_checkpointing") == "last-of-2");  // as v0.2.2 does where no option is said
  CHECK(read("[model]\nflavor = \"debugmodel\"\n").unread == std::vector<std::string>{"model.flavor (line 2)"});
  CHECK(read("[compile]\nenable = true\ncomponents = [\"model\"]\n").compile);
  const std::string python =
      "def planned():\n    config = llama3_8b()\n    config.training.max_context_length=128\n"
      "    config.activation_checkpoint.mode = \"full\"\n    config.optimizer.lr = 1e-4\n"
      "    config.optimizer.implementation = \"foreach\"\n    config.model.depth = 7\n    config.metrics.log_freq = 1\n"
      "    config.compile = CompileConfig(enable=True, components=[\"model\", \"loss\"])\n    other.model.x = 3\n";
  const auto p = settings(python);
  CHECK(p.at("activation_checkpointing") == "full");
  CHECK(p.at("seq_len") == "128");
  CHECK(p.at("lr") == "1e-4");
  CHECK(read(python).compile);
  CHECK(read(python).notes.empty());
  CHECK(read(python).unread == std::vector<std::string>{"optimizer.implementation (line 6)", "model.depth (line 7)"});
  CHECK(settings("import x\nc = C(activation_checkpoint=ActivationCheckpointConfig(mode=\"none\"))\n")
            .at("activation_checkpointing") == "none");
  CHECK(read("import x\nconfig.training.steps = 1\nconfig.optimizer.lr = 2 * rate\n").unread ==
        std::vector<std::string>{"optimizer.lr (line 3)"});
  CHECK(holds(refused("[training]\nmax_norm = 0\n"), "c: training.max_norm: '0' is no norm above 0"));
  const std::string split = "[parallelism]\ntensor_parallel_degree = 2\ndisable_loss_parallel = ";
  CHECK(read(split + "false\n").unread.empty());
  CHECK(read(split + "false\n").loss_parallel);
  CHECK_FALSE(read(split + "true\n").loss_parallel);
  CHECK(read("[parallelism]\ndisable_loss_parallel = true\n").loss_parallel);  // nothing is split
}
