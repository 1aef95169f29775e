// How good the joint search's answer is after how much time: the gap to the certificate's bound as it shrinks, for the
// models that people plan, over all tensor sizes that `plan` would try. Prints tables; processor seconds of one core,
// the bound's own first.
//
//   search_bench            # all of them, some minutes
//   search_bench 8b         # those whose words hold this
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/bound/space_bound.h"
#include "planner/bound/tensor_sizes.h"
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
  std::int64_t sequences = 0;  // of a step, over all GPUs; 0: as many as the search likes
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Prints each plan that is better than those before, and how far it is from the bound.
class Progress {
 public:
  Progress(double bound, double began) : bound_(bound), began_(began) {}

  void add(const ShardingPlan& plan, const Prediction& p) {
    ++simulated_;
    const double taken = gpu_seconds_per_sequence(plan, p.step_time);
    if (p.verdict != Verdict::fits || (best_ > 0 && taken >= best_)) return;
    best_ = taken;
    std::printf("  %6.2f s, %4lld simulated: gap %5.1f %%\n", seconds(), static_cast<long long>(simulated_),
                100 * (best_ / bound_ - 1));
  }
  void finish(const SizesResult& sizes) const {
    std::printf("  %6.2f s, %4lld simulated: done, %s\n", seconds(), static_cast<long long>(simulated_),
                sizes.chosen().result->best ? sizes.chosen().result->best->label.c_str() : "nothing fits");
    std::fflush(stdout);
  }

 private:
  [[nodiscard]] double seconds() const { return processor_seconds() - began_; }
  double bound_, began_, best_ = 0;
  std::int64_t simulated_ = 0;
};

void search_and_tell(const Asked& asked, const std::string& words) {
  const ModelGraph model = load_model(asked.model, asked.seq_len);
  const ClusterSpec cluster = load_cluster(asked.cluster, asked.gpus);
  const Costs costs = default_costs(cluster);
  const Implementation& implementation = find_implementation("torchtitan", false, "bench");
  const Bytes limit = default_memory_limit(cluster);
  const auto predicted = [&](const ShardingPlan& plan, bool memory) {
    Programs programs(resolve(model, plan, implementation, cluster));
    return predict(programs, costs, {.memory_limit = limit, .keep_timeline = false, .memory = memory});
  };
  const auto options_of = [&](std::int64_t tensor) {
    PlanChoices choices;
    if (asked.sequences > 0) choices.global_batch = asked.sequences;
    if (tensor > 1) choices.tensor = tensor;
    SearchOptions o = search_of(choices, model, {.ranks = asked.gpus, .seq_len = asked.seq_len});
    o.selective_op = true;
    o.memory_limit = limit;
    o.effort = Effort::joint;
    o.timed = [&](const ShardingPlan& plan) {
      const Prediction p = predicted(plan, false);
      return StepTime{p.step_time, p.where};
    };
    return o;
  };
  const double began = processor_seconds();
  double bound = std::numeric_limits<double>::infinity();
  std::printf("%s\n", words.c_str());
  for (const std::int64_t tensor : tensor_sizes(cluster)) {
    try {
      const Certificate c =
          certify(space_of(model, cluster, options_of(tensor)), limit, implementation, cluster, costs);
      const double seconds = c.seconds_per_sequence * static_cast<double>(tensor);
      std::printf("  %6.2f s, bound for %lld tensor ranks: %.4g GPU seconds a sequence of %.0e plans\n",
                  processor_seconds() - began, static_cast<long long>(tensor), seconds, c.plans);
      if (c.any_fits) bound = std::min(bound, seconds);
    } catch (const InputError& e) {
      std::printf("  no plans for %lld tensor ranks: %s\n", static_cast<long long>(tensor), e.problem().c_str());
    }
  }
  Progress progress(bound, began);
  progress.finish(search_sizes(
      tensor_sizes(cluster), options_of, model, cluster, implementation, costs, [&](const ShardingPlan& plan) {
        const Prediction p = predicted(plan, true);
        progress.add(plan, p);
        return Score{p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
      }));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  const std::vector<Asked> all = {{"llama3-8b", "dgx-h100", 8, 8192},
                                  {"llama3-8b", "dgx-h100", 64, 8192},
                                  {"llama3-8b", "p4d", 32, 4096},
                                  {"llama2-13b", "dgx-a100-40", 16, 4096},
                                  {"gpt2-xl", "dgx-a100-40", 8, 1024},
                                  {"qwen3-32b", "dgx-h100", 32, 4096},
                                  {"llama3-70b", "dgx-h100", 64, 8192},
                                  {"llama3-70b", "dgx-h100", 1024, 8192, 512},       // 4M tokens
                                  {"llama3.1-405b", "dgx-h100", 1024, 8192, 2048}};  // 16M tokens
  for (const Asked& asked : all) {
    const std::string batch = asked.sequences > 0 ? fmt::format(" x {}", asked.sequences) : "";
    const std::string words =
        fmt::format("{} on {} {}, {} tokens{}", asked.model, asked.gpus, asked.cluster, asked.seq_len, batch);
    if (words.find(only) != std::string::npos) search_and_tell(asked, words);
  }
}
