// The memory report adds up: parts to totals, items to the peak, and the peak to the replay's.
#include "simulator/analysis/memory_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "planner/lower.h"
#include "simulator/engine/memory.h"
#include "tests/support/small_models.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

const MemoryMoment& moment(const MemoryReport& r, std::string_view phase) {
  for (const MemoryMoment& m : r.moments)
    if (m.phase == phase) return m;
  FAIL("no phase " << phase);
  return r.moments.front();
}

std::int64_t part(const MemoryMoment& m, MemoryPart p) { return m.bytes[static_cast<std::size_t>(p)]; }

}  // namespace

TEST_CASE("parts add up to the total of each phase, items to the highest, and that is the replay's peak") {
  const ModelGraph model = toy::model();
  for (const std::string& impl : implementation_names()) {
    CAPTURE(impl);
    const ShardingPlan plan = toy::plan(model, 4);
    if (find_implementation(impl, false, "test").of_traces) continue;
    const Program program = lower(model, plan, find_implementation(impl, false, "test"));
    const MemoryReport r = memory_report(program, plan, model);
    const ProgramMemory replayed = replay_memory(program);
    REQUIRE(r.moments.size() == 7);
    for (const MemoryMoment& m : r.moments)
      CHECK(std::accumulate(m.bytes.begin(), m.bytes.end(), std::int64_t{0}) == m.total);
    CHECK(r.moments[r.peak].total == replayed.peak);
    std::int64_t sum = 0;
    for (const MemoryItem& i : r.items) sum += i.bytes;
    CHECK(sum == replayed.peak);
    // What does not depend on the implementation: shards are there from init on, AdamW's states from the first
    // optimizer on.
    std::int64_t shards = 0;
    for (const UnitLayout& u : program.layouts) shards += u.shard_elements * size_of(plan.master_dtype);
    for (const MemoryMoment& m : r.moments) CHECK(part(m, MemoryPart::parameter_shards) == shards);
    CHECK(part(moment(r, "init"), MemoryPart::optimizer_states) == 0);
    CHECK(part(moment(r, "first step: backward"), MemoryPart::optimizer_states) == 0);
    CHECK(part(moment(r, "forward"), MemoryPart::optimizer_states) > 0);
    CHECK(part(moment(r, "optimizer"), MemoryPart::activations) == 0);
    CHECK(part(moment(r, "backward"), MemoryPart::gradients) +
              part(moment(r, "backward"), MemoryPart::logits_and_loss) >
          0);
    const nlohmann::json json = nlohmann::json::parse(to_json_text(r));
    CHECK(json["schema"] == "fsdp-plan/memory/1");
    CHECK(json["moments"].size() == r.moments.size());
    CHECK(json["moments"][r.peak]["allocated_bytes"] == replayed.peak);
  }
}

TEST_CASE("logits and what the loss keeps are told from other activations") {
  // torchtitan eager, bf16: at the loss's backward the fp32 log-softmax (4 bytes per logit) and two fp32 gradients (8)
  // are alive.
  const ModelGraph model = toy::model();
  ShardingPlan plan = toy::plan(model, 1);
  plan.param_dtype = DType::bf16;
  const Program program = lower(model, plan, find_implementation("torchtitan", false, "test"));
  const MemoryReport r = memory_report(program, plan, model);
  const std::int64_t logits = plan.micro_batches.front() * plan.seq_len * model.vocab;
  std::int64_t most = 0;
  for (const MemoryMoment& m : r.moments) most = std::max(most, part(m, MemoryPart::logits_and_loss));
  CHECK(most >= 12 * logits);
  for (const MemoryItem& i : r.items) CHECK(i.count > 0);
}
