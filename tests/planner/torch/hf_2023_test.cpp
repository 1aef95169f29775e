// What transformers' outputs, their cache of keys and values among them, hold while a forward runs, and from step to
// step in a loop that keeps them (recorded by tests/torch/early/record_hf_2023.py), over micro-batches and dialects.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "simulator/engine/memory.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

ModelGraph model_of(const Json& c) {
  return model_from_config(
      fmt::format(R"({{"model_type": "llama", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
                       "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "hidden_act": "silu", "tie_word_embeddings": false}})",
                  c["vocab"].get<int>(), c["hidden"].get<int>(), c["inner"].get<int>(), c["layers"].get<int>(),
                  c["heads"].get<int>(), c["heads"].get<int>()),
      "golden");
}

bool of_computation(BufferKind k) {
  return k == BufferKind::activation || k == BufferKind::saved || k == BufferKind::scratch;
}

struct Held {
  std::int64_t before = 0, forward_peak = 0, after_forward = 0;  // of the third step
  std::int64_t left = 0;                                         // behind it
};

Held held_in(const Program& program, const ModelGraph& model) {
  Held found;
  std::int64_t alive = 0;
  for (const Step* step : {&program.first_step, &program.steady_step, &program.steady_step}) {
    found = {alive, alive, 0, 0};
    bool forward = true;
    const auto change = [&](std::int32_t b, int sign) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (of_computation(buffer.kind)) alive += sign * buffer.bytes;
      if (forward) found.forward_peak = std::max(found.forward_peak, alive);
    };
    for (const Operation& op : step->ops) {
      memory_events(
          *step, op, [&](std::int32_t b) { change(b, 1); }, [&](std::int32_t b) { change(b, -1); });
      const bool last = op.action == Action::forward && op.graph_op + 1 == static_cast<std::int32_t>(model.ops.size());
      if (forward && last) found.after_forward = alive, forward = false;
    }
    found.left = alive;
  }
  return found;
}

}  // namespace

TEST_CASE("outputs live until the next forward has ended, or until their own: logits in fp32, keys and values") {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/hf_2023_cache.json");
  const Json cases = Json::parse(file).at("cases");
  REQUIRE(cases.size() == 6);
  for (const Json& recorded : cases) {
    const Json& c = recorded.at("config");
    CAPTURE(c.at("name").get<std::string>());
    const ModelGraph model = model_of(c);
    const std::int64_t tokens = c["seq_len"], sequences = c["sequences"], vocab = c["vocab"];
    for (const Dialect dialect : {Dialect::fsdp1, Dialect::fsdp2}) {
      ShardingPlan plan =
          naive_plan(model, {.ranks = 4, .seq_len = tokens, .micro_batches = {sequences}, .dialect = dialect});
      set_checkpointing(plan, model, "full", "test");
      const LoopHolds loop = c.contains("dropped") ? LoopHolds::loss : LoopHolds::outputs;
      const Program program =
          lower(model, plan, c.contains("eager") ? hf_2023_eager_implementation(loop) : hf_2023_cache_implementation());
      const Held held = held_in(program, model);
      constexpr std::int64_t number = 4;  // the loss
      const auto near = [&](std::int64_t ours, const char* what) {
        const std::int64_t theirs = recorded.at(what);
        CAPTURE(std::string(what));
        CAPTURE(ours);
        CAPTURE(theirs);
        CHECK(ours >= theirs - theirs / 200 - number);
        // Of scores that are not kept the copies that were multiplied are gone by the softmax; ours has them.
        CHECK(ours <= theirs + theirs / (c.contains("eager") ? 40 : 200));
      };
      // A mask of 16 bits, which no implementation has, and logits without a sequence's last token, of which ours has
      // all.
      const std::int64_t mask = 2 * sequences * tokens * tokens, last = 4 * sequences * vocab;
      near(held.before, "held");
      near(held.forward_peak + mask - (sequences > 1 ? 2 : 1) * last, "forward_peak");
      near(held.after_forward + mask - last + held.before, "after_forward");  // recorded while the old are there
      CHECK(held.left == held.before);
      CHECK_NOTHROW((void)replay_memory(program));
    }
  }
}

TEST_CASE("in fp32 the logits that are held are those of the output layer") {
  const Json c = {{"vocab", 1000}, {"hidden", 256}, {"inner", 688}, {"layers", 2}, {"heads", 4}};
  const ModelGraph model = model_of(c);
  ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 64, .micro_batches = {2}, .dialect = Dialect::ddp});
  REQUIRE(plan.param_dtype == DType::f32);
  const Held held = held_in(lower(model, plan, hf_2023_cache_implementation()), model);
  CHECK(held.before == 2 * 64 * (4 * 1000 + 2 * 2 * 256 * 4));
  CHECK(held.left == held.before);
}

TEST_CASE("of several micro-batches the last one's outputs are left") {
  const Json c = {{"vocab", 1000}, {"hidden", 256}, {"inner", 688}, {"layers", 2}, {"heads", 4}};
  const ModelGraph model = model_of(c);
  const auto outputs = [&](std::int64_t sequences) { return sequences * 64 * (4 * 1000 + 2 * 2 * 256 * 2); };
  for (const std::vector<std::int64_t>& micro_batches : {std::vector<std::int64_t>{2, 2}, {3, 1}, {1, 2, 4}}) {
    ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 64, .micro_batches = micro_batches});
    set_checkpointing(plan, model, "full", "test");
    const Program program = lower(model, plan, hf_2023_cache_implementation());
    const Held held = held_in(program, model);
    CHECK(held.before == outputs(micro_batches.back()));
    CHECK(held.left == held.before);
    CHECK_NOTHROW((void)replay_memory(program));
  }
}
