// The size of a checkpoint is known before it is written: what a real run writes has so many bytes of tensors.
#include "executor/checkpoint/size.h"

#include <algorithm>

#include "tests/support/checkpoint_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

void check_size(const ModelGraph& model, const ShardingPlan& plan) {
  const Folder folder;
  static_cast<void>(train(model, plan, 2, saving(model, plan, folder / "ckpt")));
  const Checkpoint saved(folder / "ckpt");
  std::int64_t all = 0, most = 0;
  for (const SavedFile& f : saved.manifest().files) {
    all += f.bytes - f.header_bytes;
    most = std::max(most, f.bytes - f.header_bytes);
  }
  const CheckpointSize size = checkpoint_size(model, plan);
  CHECK(size.bytes == all);
  CHECK(size.bytes == saved.manifest().tensor_bytes());
  REQUIRE(size.largest_rank_bytes.has_value());
  CHECK(*size.largest_rank_bytes == most);
}

}  // namespace

TEST_CASE("the size of a checkpoint is what a run writes, to the byte: any mesh, dtype and optimizer") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  check_size(model, make_plan(model, {.shard = 2}));
  check_size(model, make_plan(model, {.shard = 3}));  // no size is a multiple of it
  check_size(model, make_plan(model, {.shard = 2, .replicate = 2}));
  check_size(model, make_plan(model, {.shard = 1, .replicate = 3}));
  check_size(model, make_plan(model, {.shard = 2, .optimizer = OptimizerKind::sgd}));
  check_size(model, make_plan(model, {.shard = 3, .optimizer = OptimizerKind::sgd, .momentum = 0.9}));
  PlanWords ddp{.replicate = 2};
  ddp.dialect = Dialect::ddp;
  check_size(model, make_plan(model, ddp));
  PlanWords narrow{.shard = 2};
  narrow.compute = narrow.reduce = narrow.master = DType::bf16;
  check_size(model, make_plan(model, narrow));
}

TEST_CASE("the size of tiny-llama's checkpoint; of a plan that is not written only the whole is known") {
  const ModelGraph model = load_model("tiny-llama", 16);
  PlanWords w{.shard = 2};
  w.seq_len = 16;
  check_size(model, make_plan(model, w));
  std::int64_t elements = 0;
  for (const Parameter& p : model.parameters) elements += p.numel();
  ShardingPlan ignoring = make_plan(model, w);
  ignoring.ignored = {"lm_head"};
  const CheckpointSize other = checkpoint_size(model, ignoring);
  CHECK(other.bytes == 12 * elements);
  CHECK_FALSE(other.largest_rank_bytes.has_value());
  // tiny-llama's shards on 4 ranks are all of less than 4,096 elements, but the embedding's, the head's and the MLP's.
  w.shard = 4, w.optimizer = OptimizerKind::adamw_8bit;
  std::int64_t in_eight_bits = 0;
  for (const Parameter& p : model.parameters) {
    REQUIRE(p.numel() % 4 == 0);
    const std::int64_t held = p.numel() / 4;
    in_eight_bits += 4 * (4 * held + 2 * (held >= 4096 && held % 256 == 0 ? held + held / 64 + 1024 : 4 * held));
  }
  const CheckpointSize eight_bit = checkpoint_size(model, make_plan(model, w));
  CHECK(eight_bit.bytes == in_eight_bits);
  CHECK(eight_bit.bytes < 12 * elements);
  CHECK_FALSE(eight_bit.largest_rank_bytes.has_value());
}

TEST_CASE("the size of a checkpoint of as many replicas as a plan may have is known at once") {
  const ModelGraph model = small_llama({.layers = 2});
  PlanWords w{.shard = 1, .replicate = 1'000'000};
  std::int64_t largest = 0;
  for (const Parameter& p : model.parameters) largest = std::max(largest, p.numel() * 4);
  const CheckpointSize size = checkpoint_size(model, make_plan(model, w));
  CHECK(size.largest_rank_bytes == largest);  // more replicas than pieces: each takes one or none
}

TEST_CASE("parameters that are not trained have no moments") {
  ModelGraph model = small_llama({.layers = 2});
  const std::int64_t before = checkpoint_size(model, make_plan(model, {.shard = 2})).bytes;
  model.parameters[2].trainable = false;
  check_size(model, make_plan(model, {.shard = 2}));
  CHECK(before - checkpoint_size(model, make_plan(model, {.shard = 2})).bytes == 2 * 4 * model.parameters[2].numel());
}
