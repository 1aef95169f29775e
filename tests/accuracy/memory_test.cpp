// Published peaks of GPU memory beside ours, row by row. `accuracy_memory_test -s` prints the table.
//
// The rows (tests/accuracy/published_memory.json) were measured by others; nothing here was tuned on them. What is off
// and why, as far as known: 1123, 1124 and 1135 (March 2024) ran a training loop that still held the logits during
// backward; 1140 and 1141 are too high by one fp32 copy of the logits (7.83 GiB), as if their loss had been compiled;
// 1142 would be right with the compiled RMSNorm that runs of that month used, 8.1 GiB less than the written-out one;
// 1175 is compiled full checkpointing, of which only the eager form is recorded.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/costs.h"
#include "planner/lower.h"
#include "planner/wrap.h"
#include "simulator/allocator/replay.h"
#include "simulator/engine/engine.h"
#include "tests/accuracy/recorded_table.h"
#include "viz/viz.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

const std::string kFolder = std::string(FSDP_TESTS_DIR) + "/accuracy/";

ModelGraph model_of(const Json& row) {
  const std::string name = row.at("model");
  return load_model(name == "llama-768" ? kFolder + name + ".json" : name, row.at("seq_len").get<std::int64_t>());
}

ShardingPlan plan_of(const Json& row, const ModelGraph& model) {
  ShardingPlan plan;
  plan.model_name = model.name;
  plan.model_digest = model.digest();
  plan.dialect = parse_dialect(row.at("dialect").get<std::string>(), "row");
  plan.mesh = {{"replicate", 1}, {"shard", row.at("gpus").get<std::int64_t>()}};
  plan.wrap = row.at("wrap").get<std::string>();
  plan.units = wrap(model, plan.wrap, "row");
  const std::string reshard = row.at("reshard");
  if (reshard == "true")
    for (Unit& u : plan.units) u.reshard_after_forward = Reshard::yes;
  // torchtitan before July 2025: blocks are freed after forward but for the last; so was PyTorch's root, whatever was
  // asked for.
  if (reshard == "all but the last block") plan.units[plan.units.size() - 2].reshard_after_forward = Reshard::no;
  if (plan.wrap == "block") plan.units.back().reshard_after_forward = Reshard::no;
  const std::string checkpointing = row.at("checkpointing");
  plan.checkpointed = checkpointed_modules(model, checkpointing == "selective-op" ? "full" : checkpointing, "row");
  if (checkpointing == "selective-op") plan.checkpoint_policy = CheckpointPolicy::selective_op;
  plan.loss_chunks = row.at("loss_chunks");
  plan.micro_batches = {row.at("micro_batch").get<std::int64_t>()};
  plan.seq_len = row.at("seq_len");
  plan.reduce_dtype = parse_dtype(row.at("reduce_dtype").get<std::string>(), "row");
  plan.clip_norm = 1.0;
  check(plan, model, "row");
  return plan;
}

struct Result {
  Bytes allocated, ours;
};

Result predicted(const Json& row) {
  const ModelGraph model = model_of(row);
  const ShardingPlan plan = plan_of(row, model);
  const Implementation& impl =
      find_implementation(row.at("implementation").get<std::string>(), row.at("compile").get<bool>(), "row");
  const ClusterSpec cluster = load_cluster("dgx-h100", plan.ranks());  // times matter to fsdp1's frees alone
  const Costs costs = default_costs(cluster);
  const CostContext context{model, plan, impl, cluster, costs};
  const Program program = lower(model, plan, impl);
  const Timeline first = simulate(program.first_step, demands_of(program.first_step, program, context));
  const Timeline steady = simulate(program.steady_step, demands_of(program.steady_step, program, context));
  const std::array<FixedAllocation, 2> cublas = cublas_workspaces(cluster.gpu);
  AllocatorSettings settings;
  settings.expandable_segments = row.at("expandable_segments");
  const AllocatorPrediction p =
      replay_allocator(program, {.settings = settings, .fixed = cublas, .first_step = &first, .steady_step = &steady});
  const std::string kind = row.at("kind");
  return {Bytes(p.peak_allocated), Bytes(kind == "allocated" ? p.peak_allocated
                                         : kind == "active"  ? p.peak_active
                                                             : p.peak_reserved)};
}

std::string gib(Bytes b) { return fmt::format("{:.2f}", static_cast<double>(b.count()) / (1 << 30)); }

}  // namespace

TEST_CASE("published peaks of memory: every row as recorded, errors no larger than they were") {
  std::ifstream file(kFolder + "published_memory.json");
  const Json rows = Json::parse(file).at("rows");
  REQUIRE(rows.size() >= 22);
  std::vector<std::vector<std::string>> lines;
  double sum = 0, worst = 0, worst_doubted = 0;
  int counted = 0;
  RecordedTable now("published_memory.csv", {"id", "ours_bytes", "allocated_bytes"});
  for (const Json& row : rows) {
    CAPTURE(row.at("id").get<int>());
    const Result r = predicted(row);
    const double measured = row.at("gib"), error = static_cast<double>(r.ours.count()) / (1 << 30) / measured - 1;
    const bool doubt = row.contains("doubt");
    if (!doubt) sum += std::abs(error), ++counted;
    double& bound = doubt ? worst_doubted : worst;
    bound = std::max(bound, std::abs(error));
    now.add(std::to_string(row.at("id").get<int>()), {whole(r.ours.count()), whole(r.allocated.count())});
    lines.push_back({std::to_string(row.at("id").get<int>()),
                     row.at("model").get<std::string>() + (row.at("compile").get<bool>() ? ", compiled" : "") +
                         fmt::format(", {}, {} x {}", row.at("checkpointing").get<std::string>(),
                                     row.at("micro_batch").get<int>(), row.at("seq_len").get<int>()),
                     row.at("dialect"), std::to_string(row.at("gpus").get<int>()), row.at("kind"),
                     fmt::format("{:.2f}", measured), gib(r.ours),
                     fmt::format("{:+.1f} %{}", 100 * error, doubt ? " (?)" : "    "), gib(r.allocated)});
  }
  const double mean = sum / counted;
  MESSAGE("mean error " << fmt::format("{:.2f}", 100 * mean) << " % over " << counted
                        << " rows; (?): a row in doubt, not counted\n"
                        << table({"row", "run", "framework", ">GPUs", "kind", ">measured GiB", ">ours GiB", ">error",
                                  ">our allocated"},
                                 lines));
  CHECK(counted >= 19);
  CHECK(now.differences() == "");
  // What was reached, rounded up: a change may make these smaller only.
  CHECK(mean < 0.0126);
  CHECK(worst < 0.0716);
  CHECK(worst_doubted < 0.0499);
}

TEST_CASE("a row that differs from the recorded one, is new or is gone is found") {
  const std::map<std::string, std::string> recorded = {{"a", "7,1.00000000e+00"}, {"b", "8,-"}, {"b#2", "9,-"}};
  RecordedTable same("published_memory.csv", {}), different("published_memory.csv", {});
  same.add("a", {whole(7), decimal(1 + 1e-7)});
  same.add("b", {whole(8), "-"});
  CHECK(same.differences_from(recorded, false) == "\n  row b#2: recorded 9,-, now missing");
  CHECK(same.differences_from(recorded, true) == "");
  different.add("a", {whole(7), decimal(1 + 1e-5)});
  different.add("b", {whole(9), "-"});
  different.add("b", {whole(9)});
  different.add("c", {"skipped"});
  CHECK(different.differences_from(recorded, false) ==
        "\n  row a: recorded 7,1.00000000e+00, now 7,1.00001000e+00\n  row b: recorded 8,-, now 9,-"
        "\n  row b#2: recorded 9,-, now 9\n  row c: not recorded");
}
