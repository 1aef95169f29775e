// Jobs that this machine has no room for are refused before they run.
#include "executor/training/room_for.h"

#include <doctest/doctest.h>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/memory.h"

using namespace fsdp;

namespace {

ShardingPlan plan_of(const ModelGraph& model, bool offload) {
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
  plan.offload = offload;
  return plan;
}

std::string refusal(const ClusterSpec& cluster, const RanksHere& here, bool offload = false) {
  const ModelGraph model = load_model("tiny-llama");
  Programs programs(resolve(model, plan_of(model, offload), native_implementation(), cluster));
  try {
    check_room(programs, here, "plan.json");
  } catch (const MachineError& e) {
    return e.what();
  }
  return "";
}

ProgramMemory memory(bool offload = false) {
  const ModelGraph model = load_model("tiny-llama");
  Programs programs(resolve(model, plan_of(model, offload), native_implementation(), {}));
  return replay_memory(programs.of(0));
}
Bytes peak() { return Bytes(memory().peak); }

}  // namespace

TEST_CASE("a job whose ranks need more memory than this machine has for each is refused, a smaller one is not") {
  ClusterSpec machine = load_cluster("host", 2);
  machine.gpu.usable_memory = peak();
  CHECK(refusal(machine, {2, 2}) == "");
  machine.gpu.usable_memory = Bytes(peak().count() - 1);
  CHECK(refusal(machine, {2, 2}).starts_with("plan.json: needs "));
  // One of two processes on this machine: it has the memory of both.
  CHECK(refusal(machine, {1, 1}) == "");
}

TEST_CASE("a refusal names the memory that each rank of this machine needs, and what it was compared with") {
  ClusterSpec machine = load_cluster("host", 2);
  machine.gpu.usable_memory = Bytes(1 << 20);
  const std::string needs = "plan.json: needs " + human(peak()) + " for each of ";
  CHECK(refusal(machine, {2, 2})
            .starts_with(needs + "2 ranks, but this machine has " + human(Bytes(1 << 20)) + " for each; "));
  // Both ranks' memory for the one that is here.
  CHECK(refusal(machine, {1, 1})
            .starts_with(needs + "1 rank, but this machine has " + human(Bytes(2 << 20)) + " for each; "));
}

TEST_CASE("offloaded buffers count: on CPU ranks they are in the same memory") {
  const ProgramMemory needed = memory(true);
  REQUIRE(needed.host_peak > 0);
  ClusterSpec machine = load_cluster("host", 2);
  machine.gpu.usable_memory = Bytes(needed.peak + needed.host_peak);
  CHECK(refusal(machine, {2, 2}, true) == "");
  machine.gpu.usable_memory = Bytes(needed.peak + needed.host_peak - 1);
  CHECK(refusal(machine, {2, 2}, true)
            .starts_with("plan.json: needs " + human(Bytes(needed.peak + needed.host_peak)) + " for each of 2 ranks"));
}

TEST_CASE("the memory of GPUs is not this machine's") {
  ClusterSpec gpus = load_cluster("dgx-h100", 2);
  gpus.gpu.usable_memory = Bytes(1);
  CHECK(refusal(gpus, {2, 2}) == "");
}
