// MosaicGPT under autocast, and Composer's metrics behind its backward, against PyTorch's bytes
// (tests/torch/record_mosaic.py); and where the metrics and the logits stand in a step.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/lowering/tape/tape.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/memory.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

ModelGraph mosaic_gpt(const json& s) {
  const json config = {{"model_type", "mpt"},         {"vocab_size", s["vocab"]}, {"d_model", s["width"]},
                       {"n_heads", s["heads"]},       {"n_layers", s["layers"]},  {"expansion_ratio", 4},
                       {"max_seq_len", s["seq_len"]}, {"no_bias", false},         {"attn_config", {{"alibi", false}}}};
  return model_from_config(config.dump(), "c", s["seq_len"]);
}

// Without what a kernel takes inside itself, which the recorder cannot see.
OpFacts embedding_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(foundry_2023_01_implementation(), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}

const json& golden() {
  static const json file = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/mosaic.json"));
  return file;
}

}  // namespace

TEST_CASE("MosaicGPT under autocast holds what PyTorch holds, and so do its metrics") {
  REQUIRE(golden()["cases"].size() == 4);
  for (const json& row : golden()["cases"]) {
    CAPTURE(row.dump());
    const json& s = row["shape"];
    const ModelGraph model = mosaic_gpt(s);
    std::vector<std::int32_t> checkpointed;
    for (int i = 0; i < s["layers"].get<int>() && row["recomputed"]; ++i)
      checkpointed.push_back(model.find_module("transformer.blocks." + std::to_string(i)));
    Implementation i = foundry_2023_01_implementation();
    i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
    const Tape tape = make_tape(model, i, {s["sequences"], s["seq_len"], 2}, DType::bf16, checkpointed);
    const Replay mine = replay(tape, model, /*gradient_bytes=*/4);
    REQUIRE(tape.metrics == static_cast<std::int32_t>(tape.ops.size()) - 1);
    const std::size_t loss = tape.forward_of.back();
    const auto during = mine.during.begin(), backward = during + static_cast<std::ptrdiff_t>(loss) + 1;
    CHECK(near(mine.after[loss], row["saved"]));
    CHECK(near(mine.after[at(tape.metrics) - 1], row["end"]));
    CHECK(near(mine.during.back(), row["metrics_peak"]));
    // Forward: what attention returns to its block is Python's for as long as that runs: not counted, and no step's
    // peak.
    const std::int64_t ours = *std::max_element(during, backward), theirs = row["forward_peak"];
    CHECK((ours >= theirs - theirs / 60 && ours <= theirs + theirs / 1000));
    // Backward: the gradient of a weight in fp32 is there while the products run, with us, and behind them with
    // PyTorch.
    const std::int64_t most = *std::max_element(backward, mine.during.end() - 1), measured = row["backward_peak"];
    CHECK((most >= measured - measured / 1000 && most <= measured + 3 * measured / 100));
  }
}

TEST_CASE("F.cross_entropy under autocast on a GPU: the log-softmax in bf16, the sum over labels in fp32") {
  CHECK(golden()["cross_entropy_on_a_gpu"] ==
        json::array({"aten._log_softmax.default torch.bfloat16", "aten._to_copy.default torch.float32",
                     "aten.nll_loss_forward.default torch.float32"}));
  Op op;
  op.kind = OpKind::cross_entropy;
  op.shape.vocab = 1000;
  const Workload w{1, 64, 2};
  const std::int64_t logits = 64 * 1000;
  const Implementation &then = foundry_2023_01_implementation(), &now = foundry_implementation(false);
  CHECK(facts(then, op, w).passed_bytes == 2 * logits);
  CHECK(facts(then, op, w).saved_extra_bytes == 4 * logits);
  for (const Implementation* i : {&then, &now})  // of both metrics: rows of 2,000 bytes are read and written once
    CHECK(facts(*i, op, w).after_backward.traffic_bytes == 2 * (2 + 2 + 2 + 4) * logits);
}

TEST_CASE("metrics follow the backward of each micro-batch, and its logits live until the next has its own") {
  const ModelGraph model = mosaic_gpt(golden()["cases"][0]["shape"]);
  using Sequences = std::vector<std::int64_t>;
  for (const Sequences& micro_batches : {Sequences{2}, Sequences{2, 2, 2}, Sequences{3, 3, 2}, Sequences{1, 2}})
    for (const Dialect dialect : {Dialect::fsdp1, Dialect::fsdp2, Dialect::ddp}) {
      CAPTURE(micro_batches.size());
      const ShardingPlan plan =
          naive_plan(model, {.ranks = 4, .seq_len = 256, .micro_batches = micro_batches, .dialect = dialect});
      const Program program = lower(model, plan, foundry_implementation(false));
      const std::int32_t logits = model.ops.back().inputs[0];
      const auto holds_logits = [&](std::int32_t b) {
        const Buffer& buffer = program.buffers[at(b)];
        return buffer.tensor == logits && buffer.kind == BufferKind::activation ? 1 : 0;
      };
      std::int64_t alive = 0, most = 0, held = 0;
      for (const Step* step : {&program.first_step, &program.steady_step, &program.steady_step}) {
        std::vector<std::int16_t> updated;
        for (std::size_t i = 0; i < step->ops.size(); ++i) {
          const Operation& op = step->ops[i];
          memory_events(
              *step, op, [&](std::int32_t b) { most = std::max(most, alive += holds_logits(b)); },
              [&](std::int32_t b) { alive -= holds_logits(b); });
          if (op.action == Action::forward && op.graph_op == 0 && updated.size() + (step != &program.first_step) > 0)
            held += alive;  // those of the micro-batch before
          if (op.action != Action::update_metrics) continue;
          updated.push_back(op.micro_batch);
          CHECK(op.stream == Stream::compute);
          // No kernel or reduction of this micro-batch is left.
          for (std::size_t k = i + 1; k < step->ops.size(); ++k) {
            const Operation& later = step->ops[k];
            if (is_kernel(later.action) || later.action == Action::reduce_scatter)
              CHECK(later.micro_batch > op.micro_batch);
          }
        }
        CHECK(updated.size() == micro_batches.size());
        CHECK(std::is_sorted(updated.begin(), updated.end()));
      }
      CHECK(alive == 1);  // the last ones wait for the next step
      CHECK(most == 2);
      CHECK(held == static_cast<std::int64_t>(3 * micro_batches.size() - 1));
      CHECK_NOTHROW((void)replay_memory(program));
    }
}
