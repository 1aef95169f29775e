// The PyTorch script of a plan with several roots: what it says, which other formats refuse it, and that it trains.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "planner/emit.h"
#include "planner/layout.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "tests/planner/emit/scripts.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ShardingPlan two_roots(const ModelGraph& model) {
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16, .micro_batches = {2, 1}});
  plan.units = wrap(model, plan.wrap = "block", "test");
  plan.units.pop_back();
  plan.units.push_back({{"model"}});
  plan.units.push_back({{"lm_head"}});
  plan.share_comm_context = true;
  plan.grad_sync = GradSync::last;
  plan.forward_prefetch = 1;
  plan.backward_prefetch = 2;
  plan.reduce_scatter_buffers = 2;
  plan.clip_norm = 1;
  return plan;
}

// As run_emitted.py reads it: roots are not resharded after forward.
std::string expected_units(const ShardingPlan& plan, const ModelGraph& model) {
  nlohmann::json units = nlohmann::json::array();
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    std::vector<std::string> parameters;
    for (const ShardedParam& p : layouts[u].params) parameters.push_back(model.parameters[p.param].name);
    const std::string& first = plan.units[u].modules.front();
    units.push_back({{"modules", plan.units[u].modules},
                     {"parameters", parameters},
                     {"reshard", first != "model" && first != "lm_head"}});
  }
  return nlohmann::json{{"units", units}, {"checkpointed", plan.checkpointed}}.dump();
}

}  // namespace

TEST_CASE("the script of a plan with two roots shares their streams, and other formats refuse the plan by name") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = two_roots(model);
  const Emitted script = emit("pytorch", plan, model);
  for (const char* line :
       {"\nfrom torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, share_comm_ctx\n",
        "\n    \"roots\": [\"model\", \"lm_head\"],  # no unit holds the whole model\n",
        "\n    share_comm_ctx(roots_of(model))\n", "\n            fully_shard.state(root)._lazy_init()    # once\n"}) {
    CAPTURE(line);
    CHECK(holds(script.text, line));
  }
  CHECK_FALSE(script.changes_prediction());
  for (const std::string& format : emit_formats()) {
    if (format == "pytorch") continue;
    CHECK(holds(refusal([&] { (void)emit(format, plan, model); }),
                fmt::format("'{}' wraps the whole model, and the plan has several roots", format)));
  }
  ShardingPlan one = plan;
  one.units.push_back({{""}});
  one.share_comm_context = false;
  CHECK_FALSE(holds(emit("pytorch", one, model).text, "share_comm_ctx"));
}

TEST_CASE("the script of a plan with two roots makes the plan's units and trains where torch is installed") {
  const TemporaryFolder folder;
  const ModelGraph model = small_llama();
  const std::string script = (folder.path() / "roots.py").string(), units = (folder.path() / "roots.json").string();
  std::ofstream(script) << emit("pytorch", two_roots(model), model).text;
  std::ofstream(units) << expected_units(two_roots(model), model);
  const int code =
      run(fmt::format("{} '" FSDP_TESTS_DIR "/torch/run_emitted.py' '{}' '{}'", chosen_python(), script, units));
  if (code == 77 || code == 127) {
    MESSAGE("skipped: '" << chosen_python() << "' cannot import torch (set FSDP_PLAN_PYTHON)");
    return;
  }
  CHECK(code == 0);
}
