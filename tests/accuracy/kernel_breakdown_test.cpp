// One real step, kernel by kernel (tests/accuracy/kernel_breakdown.csv): Llama-3.1-70B on 64 H100, FSDP2 in NeMo
// Automodel, 4096 tokens, micro-batch 1 x 2, full checkpointing, gradients reduced in bf16. Automodel checkpoints the
// norms, the attention and the mlp of each block one by one, so that each recomputation stops before its last product.
// Counts of kernels and their times, each category beside ours. `accuracy_kernel_breakdown_test -s` prints the table.
//
// Three constants of that machine were read off the very profile: its products ran at the rate of short benchmarks (a
// clock of 1), its collectives, 80 to 90 % of them beside products and attention, at half of their speed alone, and the
// copies of whole units at the speed of a plain copy. A costs file states them. What is left to be checked with them
// are the other categories, the counts, and the step, in which everything meets; without them, how far off a machine is
// of which nothing is known. The profile is of one rank: its kernels are held against those of a GPU like most, its
// step against that of a job, which waits for the slowest of 64.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>

#include "models/catalog.h"
#include "planner/costs.h"
#include "planner/lower.h"
#include "planner/wrap.h"
#include "simulator/engine/engine.h"
#include "tests/accuracy/csv_rows.h"

using namespace fsdp;

namespace {

struct Category {
  double count = 0, ms = 0;
};
using Categories = std::map<std::string, Category>;

// By the file's names; the first word is enough.
std::string category_of(const Operation& o, const ModelGraph& model) {
  switch (o.action) {
    case Action::all_gather: return "all_gather";
    case Action::reduce_scatter: return "reduce_scatter";
    case Action::scatter_copy_in: return "chunk_cat";
    case Action::gather_copy_out: return "split_with_sizes_copy_out";
    default: break;
  }
  if (!is_kernel(o.action)) return "";
  switch (model.ops[static_cast<std::size_t>(o.graph_op)].kind) {
    case OpKind::linear: return "gemm";
    case OpKind::attention: return o.action == Action::backward ? "attention_bwd" : "attention_fwd";
    case OpKind::rms_norm: return "rmsnorm";
    case OpKind::rotary: return "rope";
    default: return "";
  }
}

Categories measured() {
  Categories all;
  for (const CsvRow& row : read_csv_rows("accuracy/kernel_breakdown.csv")) {
    const std::string& name = row.at("category");
    const auto number = [](const std::string& cell) { return cell.empty() ? 0 : std::stod(cell); };
    all[name.substr(0, name.find_first_of(" ("))] = {number(row.at("count_per_step")), number(row.at("ms_per_step"))};
  }
  return all;
}

ShardingPlan plan_of(const ModelGraph& model) {
  ShardingPlan plan;
  plan.model_name = model.name;
  plan.model_digest = model.digest();
  plan.mesh = {{"replicate", 1}, {"shard", 64}};
  plan.wrap = "block";
  plan.units = wrap(model, plan.wrap, "test");
  for (const std::string& block : checkpointed_modules(model, "full", "test"))
    for (const char* part : {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"})
      plan.checkpointed.push_back(block + "." + part);
  plan.micro_batches = {1, 1};
  plan.seq_len = 4096;
  plan.reduce_dtype = DType::bf16;
  plan.forward_prefetch = 1;
  plan.backward_prefetch = 2;
  check(plan, model, "test");
  return plan;
}

enum class Machine { any, profiled };

Categories predicted(Machine machine) {
  const ModelGraph model = load_model("llama3-70b", 4096);  // 3.1's shapes
  const ShardingPlan plan = plan_of(model);
  const Implementation& impl = automodel_implementation();
  const ClusterSpec cluster = load_cluster("dgx-h100", 64);
  Costs costs = default_costs(cluster);
  if (machine == Machine::profiled) {
    costs.sustained_clock = 1;
    costs.collective_beside = 0.5;
    costs.copy.byte_rate = cluster.gpu.memory_bandwidth * costs.memory_efficiency;
  }
  const Program program = lower(model, plan, impl);
  const Step& step = program.steady_step;
  const auto demands_with = [&](const Costs& c) { return demands_of(step, program, {model, plan, impl, cluster, c}); };
  const double step_s = simulate(step, demands_with(costs)).duration;
  costs.gpu_spread = 0;
  const Demands demands = demands_with(costs);
  const Timeline t = simulate(step, demands);
  Categories all;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const std::string name = category_of(step.ops[i], model);
    if (name.empty()) continue;
    all[name].count += is_kernel(step.ops[i].action) && !name.starts_with("attention") ? demands[i].launches : 1;
    all[name].ms += 1e3 * (t.spans[i].end - t.spans[i].start);
  }
  all["step_wall"].ms = 1e3 * step_s;
  return all;
}

// Errors, rounded up: a change may make these smaller only.
void compare(const Categories& ours, const std::map<std::string, double>& most) {
  const Categories theirs = measured();
  std::string text;
  for (const auto& [name, m] : theirs) {
    if (name == "exposed_comm_total") continue;
    CAPTURE(name);
    REQUIRE(ours.contains(name));
    REQUIRE(most.contains(name));
    const double error = ours.at(name).ms / m.ms - 1;
    text += fmt::format("{:26} {:6.0f} of {:6.0f} kernels {:8.1f} of {:8.1f} ms {:+6.1f} %\n", name,
                        ours.at(name).count, m.count, ours.at(name).ms, m.ms, 100 * error);
    CHECK(std::abs(error) < most.at(name));
  }
  MESSAGE(text);
}

}  // namespace

TEST_CASE("one step of 64 H100: as many kernels of each kind") {
  const Categories ours = predicted(Machine::any), theirs = measured();
  for (const char* name : {"all_gather", "reduce_scatter", "attention_fwd", "attention_bwd", "chunk_cat", "rmsnorm"}) {
    CAPTURE(name);
    CHECK(ours.at(name).count == theirs.at(name).count);
  }
  CHECK(ours.at("split_with_sizes_copy_out").count == theirs.at("split_with_sizes_copy_out").count + 2);  // the root's
  CHECK(ours.at("rope").count == theirs.at("rope").count);
  CHECK(ours.at("gemm").count == theirs.at("gemm").count);
}

TEST_CASE("one step of 64 H100, with that machine's three constants: every category") {
  compare(predicted(Machine::profiled), {{"step_wall", 0.022},
                                         {"all_gather", 0.055},
                                         {"reduce_scatter", 0.069},
                                         {"gemm", 0.006},
                                         {"attention_fwd", 0.033},
                                         {"attention_bwd", 0.118},
                                         {"chunk_cat", 0.049},
                                         {"split_with_sizes_copy_out", 0.115},
                                         {"rmsnorm", 0.004},
                                         {"rope", 0.033}});
}

TEST_CASE("one step of 64 H100, as on any machine of which nothing is known") {
  compare(predicted(Machine::any), {{"step_wall", 0.143},
                                    {"all_gather", 0.522},
                                    {"reduce_scatter", 0.525},
                                    {"gemm", 0.111},
                                    {"attention_fwd", 0.118},
                                    {"attention_bwd", 0.118},
                                    {"chunk_cat", 0.379},
                                    {"split_with_sizes_copy_out", 0.652},
                                    {"rmsnorm", 0.038},
                                    {"rope", 0.057}});
}
