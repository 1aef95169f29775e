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
