// Jobs that this machine has no room for are refused before they run.
#include "executor/training/room_for.h"

#include <doctest/doctest.h>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/memory.h"

using namespace fsdp;

namespace {

std::string refusal(const ClusterSpec& cluster, const RanksHere& here) {
  const ModelGraph model = load_model("tiny-llama");
  const ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
  Programs programs(resolve(model, plan, native_implementation(), cluster));
  try {
    check_room(programs, here, "plan.json");
  } catch (const MachineError& e) {
    return e.what();
  }
  return "";
}

Bytes peak() {
  const ModelGraph model = load_model("tiny-llama");
  Programs programs(resolve(model, naive_plan(model, {.ranks = 2, .seq_len = 16}), native_implementation(), {}));
  return Bytes(replay_memory(programs.of(0)).peak);
}

}  // namespace

TEST_CASE("a job whose ranks need more memory than this machine has for each is refused, a smaller one is not") {
  ClusterSpec machine = load_cluster("host", 2);
  machine.gpu.usable_memory = peak();
  CHECK(refusal(machine, {2, 2}) == "");
  machine.gpu.usable_memory = Bytes(peak().count() - 2);
  CHECK(refusal(machine, {2, 2}).starts_with("plan.json: needs "));
  // One of two processes on this machine: it has the memory of both.
  CHECK(refusal(machine, {1, 1}) == "");
}

TEST_CASE("the memory of GPUs is not this machine's") {
  ClusterSpec gpus = load_cluster("dgx-h100", 2);
  gpus.gpu.usable_memory = Bytes(1);
  CHECK(refusal(gpus, {2, 2}) == "");
}
