// Checkpoints of fsdp1: what a rank holds of a flat parameter is saved under the parameters' own names and shapes, and
// any mesh of fsdp1 or fsdp2 goes on from it, the optimizer's state included. PyTorch's state_dict_type and
// optim_state_dict (tests/PARITY.md).
#include "executor/checkpoint/box.h"
#include "executor/checkpoint/export.h"
#include "executor/checkpoint/size.h"
#include "tests/support/checkpoint_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Rows of 9 and 15 elements: shards of 2, 3 and 4 ranks cut through them.
ModelGraph model() { return chain({9, 7, 15, 4}); }

// 12 sequences in a step, however many ranks.
ShardingPlan plan_of(Dialect dialect, std::int64_t shard, std::int64_t replicate = 1, bool original = true) {
  PlanWords w{.shard = shard, .replicate = replicate, .micro_batches = {12 / (shard * replicate)}, .seq_len = 3};
  w.compute = w.reduce = w.master = DType::f64;
  w.dialect = dialect;
  ShardingPlan plan = make_plan(model(), w);
  plan.use_orig_params = original;
  return plan;
}

RunOptions steps(RunOptions options, int n) {
  options.warmup_steps = 1;
  options.steps = n - 1;
  options.keep_parameters = true;
  return options;
}

}  // namespace

TEST_CASE("a range of a tensor is the fewest boxes, in order, that are its elements") {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{7}, std::vector<std::int64_t>{4, 5}, std::vector<std::int64_t>{3, 2, 4}}) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    for (std::int64_t first = 0; first < n; ++first)
      for (std::int64_t count = 1; first + count <= n; ++count) {
        std::vector<std::int64_t> elements;  // row-major indices, box by box
        const std::vector<Box> boxes = boxes_of_range(first, count, shape);
        for (const Box& box : boxes)
          for_each_run(box, whole(shape), box, [&](std::int64_t from, std::int64_t to, std::int64_t run) {
            REQUIRE(static_cast<std::int64_t>(elements.size()) >= to);
            for (std::int64_t i = 0; i < run; ++i) elements.push_back(from + i);
          });
        REQUIRE(static_cast<std::int64_t>(elements.size()) == count);
        for (std::int64_t i = 0; i < count; ++i) REQUIRE(elements[static_cast<std::size_t>(i)] == first + i);
        CHECK(boxes.size() <= 2 * shape.size() - 1);
      }
  }
}

TEST_CASE("state_dict_type, optim_state_dict: fsdp1 to fsdp1, to fsdp2 and from it, at any mesh: as straight on") {
  const ModelGraph m = model();
  const RunResult straight = execute(m, plan_of(Dialect::fsdp2, 1), steps({}, 6));
  const std::vector<ShardingPlan> plans = {plan_of(Dialect::fsdp1, 2),    plan_of(Dialect::fsdp1, 3, 1, false),
                                           plan_of(Dialect::fsdp1, 2, 2), plan_of(Dialect::fsdp1, 1, 2),
                                           plan_of(Dialect::fsdp2, 3),    plan_of(Dialect::fsdp2, 1)};
  for (const ShardingPlan& from : plans) {
    const Folder folder;
    const RunResult before = execute(m, from, steps(saving(m, from, folder / "ckpt"), 3));
    const Checkpoint saved(folder / "ckpt");
    saved.verify();
    for (std::size_t p = 0; p < m.parameters.size(); ++p) {  // what was trained is what is saved, whole and by name
      const SavedTensor* tensor = saved.find(m.parameters[p].name);
      REQUIRE(tensor != nullptr);
      CHECK(tensor->shape == m.parameters[p].shape);
      std::vector<double> values(before.parameters[p].values.size());
      saved.read(*tensor, whole(tensor->shape), std::as_writable_bytes(std::span(values)));
      CHECK(values == before.parameters[p].values);
    }
    for (const ShardingPlan& to : plans) {
      if (from.dialect == Dialect::fsdp2 && to.dialect == Dialect::fsdp2) continue;
      CAPTURE(to_json_text(from));
      CAPTURE(to_json_text(to));
      const RunResult after = execute(m, to, steps(resuming(m, to, folder / "ckpt"), 3));
      for (std::size_t i = 0; i < straight.parameters.size(); ++i)
        CHECK(distance(after.parameters[i].values, straight.parameters[i].values) <= 1e-10);
      std::vector<double> losses = before.measurement.losses;
      losses.insert(losses.end(), after.measurement.losses.begin(), after.measurement.losses.end());
      CHECK(distance(losses, straight.measurement.losses) <= 1e-10);
    }
  }
}

TEST_CASE("fsdp1: six steps straight are three, a checkpoint and three more, to the last bit; also offloaded") {
  const ModelGraph m = model();
  for (const bool offload : {false, true}) {
    ShardingPlan plan = plan_of(Dialect::fsdp1, 3);
    plan.offload = offload;
    const Folder folder;
    const RunResult straight = execute(m, plan, steps({}, 6));
    static_cast<void>(execute(m, plan, steps(saving(m, plan, folder / "ckpt"), 3)));
    const RunResult after = execute(m, plan, steps(resuming(m, plan, folder / "ckpt"), 3));
    for (std::size_t i = 0; i < straight.parameters.size(); ++i)
      CHECK(after.parameters[i].values == straight.parameters[i].values);
  }
}

TEST_CASE("fsdp1: the size of a checkpoint is what is written, with gaps between parameters and without") {
  const ModelGraph m = model();
  for (const ShardingPlan& plan : {plan_of(Dialect::fsdp1, 3), plan_of(Dialect::fsdp1, 4, 1, false),
                                   plan_of(Dialect::fsdp1, 2, 2), plan_of(Dialect::fsdp1, 1, 3)}) {
    const Folder folder;
    static_cast<void>(execute(m, plan, steps(saving(m, plan, folder / "ckpt"), 2)));
    std::int64_t all = 0, most = 0;
    const Checkpoint saved(folder / "ckpt");
    for (const SavedFile& f : saved.manifest().files) {
      all += f.bytes - f.header_bytes;
      most = std::max(most, f.bytes - f.header_bytes);
    }
    const CheckpointSize size = checkpoint_size(m, plan);
    CHECK(size.bytes == all);
    REQUIRE(size.largest_rank_bytes.has_value());
    CHECK(*size.largest_rank_bytes == most);
  }
}
