// How good the joint search's answer is after how much time: the gap to the certificate's bound as it shrinks, for the
// models that people plan. Prints tables; processor seconds of one core, the bound's own first.
//
//   search_bench            # all of them, some minutes
//   search_bench 8b         # those whose words hold this
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "planner/bound/space_bound.h"
#include "planner/job.h"
#include "planner/search.h"
#include "planner/search/plan_choices.h"
#include "simulator/predict.h"

namespace {

using namespace fsdp;

struct Asked {
  const char* model;
  const char* cluster;
  std::int64_t gpus, seq_len;
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void search_and_tell(const Asked& asked, const std::string& words) {
  const ModelGraph model = load_model(asked.model, asked.seq_len);
  const ClusterSpec cluster = load_cluster(asked.cluster, asked.gpus);
  const Costs costs = default_costs(cluster);
  const Implementation& implementation = find_implementation("torchtitan", false, "bench");
  SearchOptions o = search_of({}, model, {.ranks = asked.gpus, .seq_len = asked.seq_len});
  o.selective_op = true;
  o.memory_limit = default_memory_limit(cluster);
  o.effort = Effort::joint;
  const PredictOptions how{.memory_limit = o.memory_limit, .keep_timeline = false};
  const auto predicted = [&](const ShardingPlan& plan, const PredictOptions& options) {
    Programs programs(resolve(model, plan, implementation, cluster));
    return predict(programs, costs, options);
  };
  o.timed = [&](const ShardingPlan& plan) {
    PredictOptions times = how;
    times.memory = false;
    const Prediction p = predicted(plan, times);
    return StepTime{p.step_time, p.where};
  };
  const double began = processor_seconds();
  const Certificate bound = certify(space_of(model, cluster, o), o.memory_limit, implementation, cluster, costs);
  std::printf("%s: bound %.4g s a sequence of %.0e plans, after %.2f s\n", words.c_str(), bound.seconds_per_sequence,
              bound.plans, processor_seconds() - began);
  double best = 0;
  std::int64_t scored = 0;
  (void)search(model, cluster, implementation, o, [&](const ShardingPlan& plan) {
    const Prediction p = predicted(plan, how);
    ++scored;
    const double taken = p.step_time.count() / static_cast<double>(plan.sequences_per_rank());
    if (p.verdict == Verdict::fits && (best == 0 || taken < best)) {
      best = taken;
      std::printf("  %6.2f s, %4lld simulated: gap %5.1f %%\n", processor_seconds() - began,
                  static_cast<long long>(scored), 100 * (best / bound.seconds_per_sequence - 1));
    }
    return Score{p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
  });
  std::printf("  %6.2f s, %4lld simulated: done\n", processor_seconds() - began, static_cast<long long>(scored));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  const std::vector<Asked> all = {{"llama3-8b", "dgx-h100", 8, 8192},       {"llama3-8b", "dgx-h100", 64, 8192},
                                  {"llama3-8b", "p4d", 32, 4096},           {"llama2-13b", "dgx-a100-40", 16, 4096},
                                  {"gpt2-xl", "dgx-a100-40", 8, 1024},      {"qwen3-32b", "dgx-h100", 32, 4096},
                                  {"llama3-70b", "dgx-h100", 64, 8192},     {"llama3-70b", "dgx-h100", 1024, 8192},
                                  {"llama3.1-405b", "dgx-h100", 1024, 8192}};
  for (const Asked& asked : all) {
    const std::string words =
        fmt::format("{} on {} {}, {} tokens", asked.model, asked.gpus, asked.cluster, asked.seq_len);
    if (words.find(only) != std::string::npos) search_and_tell(asked, words);
  }
}
