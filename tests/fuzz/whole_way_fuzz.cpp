// The whole way, from files to the allocator, with numbers at the edges of their limits: config.json, cluster.json,
// costs.json and plan.json of which some numbers are edges -> check -> lower -> simulate -> replay memory -> allocator,
// and sometimes a small search. What comes out is an InputError, or numbers that can be true.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/catalog.h"
#include "planner/job.h"
#include "planner/module_costs.h"
#include "planner/plan/naive_plan.h"
#include "planner/search.h"
#include "planner/wrap.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/predict.h"
#include "tests/fuzz/edges.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace fsdp;
using fuzz::Choices;

constexpr std::string_view kModels[] = {"tiny-llama",   "gpt2",           "tiny-mixtral",
                                        "qwen2.5-0.5b", "mpt-125m-bench", "qwen3-0.6b"};
constexpr std::string_view kClusters[] = {"dgx-h100", "p4d", "dgx-b200"};
constexpr std::string_view kStacks[] = {"torchtitan", "hf",          "hf-eager-attention",
                                        "foundry",    "native-cuda", "torchtitan-2024-03"};
constexpr std::int64_t kGpus[] = {1, 2, 7, 8, 64, 1024, std::int64_t{1} << 20};
constexpr std::int64_t kLengths[] = {
    0, 1, 2, 1000, 1024, 2048, 8192, 1 << 20, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, std::int64_t{1} << 31};
constexpr std::int64_t kSequences[] = {1, 2, 3, 64, 4096, 65'535, 65'536, 65'537, std::int64_t{1} << 40};
constexpr std::string_view kWraps[] = {"", "block", "block:2", "root", "titan", "params:1e8"};
constexpr std::string_view kRecomputed[] = {"none", "full", "selective-op", "every-2", "first-1"};
// What keeps one execution below a second.
constexpr std::size_t kMostOps = 500, kMostPasses = 500;

// A catalog model of two layers: as wide as it is, and quick to lower.
std::string short_config(std::string_view name) {
  std::string text(embedded_file("configs/" + std::string(name) + ".json"));
  for (const std::string_view key : {"\"num_hidden_layers\": ", "\"n_layer\": ", "\"n_layers\": "}) {
    const std::size_t at = text.find(key);
    if (at == std::string::npos) continue;
    const std::size_t value = at + key.size();
    text.replace(value, text.find_first_not_of("0123456789", value) - value, "2");
  }
  return text;
}

enum Document : std::uint8_t { config, cluster, costs, plan_json, kDocuments };
struct Edits {
  std::vector<Document> of;
  [[nodiscard]] std::string apply(Document d, std::string text, Choices& choose) const {
    for (const Document edited : of)
      if (edited == d) text = fuzz::with_edge(std::move(text), choose);
    return text;
  }
};

void not_negative(double value, std::string_view law) { fuzz::require(std::isfinite(value) && value >= 0, law); }

void check_prediction(const Prediction& p, const Program& program) {
  fuzz::require(std::isfinite(p.step_time.count()) && p.step_time.count() > 0, "a step takes time");
  fuzz::require(p.peak_allocated.count() >= 0 && p.peak_allocated <= p.peak_reserved_estimate, "allocated <= reserved");
  fuzz::require(p.peak_active <= p.peak_reserved_estimate, "active <= reserved");
  fuzz::require(p.peak_total >= p.peak_reserved_estimate, "reserved <= total");
  fuzz::require(p.alloc_retries >= 0 && p.tokens_per_step > 0, "retries and tokens are counts");
  not_negative(p.tokens_per_s, "tokens per second");
  not_negative(p.mfu, "MFU");
  not_negative(p.hfu, "HFU");
  std::int64_t sum = 0;
  for (const std::int64_t bytes : p.memory.at_peak) {
    fuzz::require(bytes >= 0, "parts of the peak are not negative");
    sum += bytes;
  }
  fuzz::require(sum == p.memory.peak, "the parts of the peak add up");
  for (const Buffer& b : program.buffers) fuzz::require(b.bytes >= 0, "a buffer has bytes");
  bool readable = true;  // a NaN would be written as null
  try {
    (void)parse_prediction(to_json_text(p), "prediction.json");
  } catch (const InputError&) {
    readable = false;
  }
  fuzz::require(readable, "a prediction that was written can be read");
}

struct Case {
  ModelGraph model;
  ClusterSpec cluster;
  Costs costs;
  const Implementation* stack;
};

ShardingPlan plan_of(const Case& c, Choices& choose) {
  PlanOptions options;
  options.ranks = c.cluster.gpus;
  options.replicate = choose.of(4) == 1 ? options.ranks : 1;
  const std::int64_t length = choose.of_table(kLengths);
  options.seq_len = length > 0 ? length : c.model.max_seq_len.value_or(1024);
  const std::size_t micro_batches = 1 + choose.of(3);
  options.micro_batches.assign(micro_batches, choose.of_table(kSequences));
  constexpr Dialect kDialects[] = {Dialect::fsdp2, Dialect::fsdp1, Dialect::ddp};
  options.dialect = choose.of_table(kDialects);
  if (options.dialect == Dialect::ddp) options.replicate = options.ranks;
  ShardingPlan plan = naive_plan(c.model, options);
  if (const std::string_view policy = choose.of_table(kWraps); !policy.empty())
    plan.units = wrap(c.model, policy, setting("wrap"));
  set_checkpointing(plan, c.model, choose.of_table(kRecomputed), setting("activation_checkpointing"));
  constexpr DType kTypes[] = {DType::bf16, DType::f32, DType::f64};
  plan.param_dtype = choose.of_table(kTypes);
  if (options.dialect == Dialect::ddp) plan.reduce_dtype = plan.master_dtype = plan.param_dtype;
  const std::size_t switches = choose.of(16);
  plan.offload = (switches & 1U) != 0 && options.dialect == Dialect::fsdp2;
  if ((switches & 2U) != 0) plan.clip_norm = 1;
  if ((switches & 4U) != 0) plan.grad_sync = GradSync::last;
  if ((switches & 8U) != 0) plan.optimizer.kind = OptimizerKind::sgd;
  plan.offload_optimizer = (switches & 2U) != 0 && !plan.offload && state_count(plan.optimizer) > 0;
  return plan;
}

void predict_plan(const Case& c, const ShardingPlan& plan) {
  check(plan, c.model, "plan.json");
  if (plan.micro_batches.size() * c.model.ops.size() > kMostPasses) return;
  Programs programs(resolve(c.model, plan, *c.stack, c.cluster));
  const Program& program = programs.of(0);
  (void)programs.of(plan.ranks() - 1);
  const Prediction p = predict(programs, c.costs, {});
  check_prediction(p, program);
  for (const MemoryMoment& m : memory_report(program, plan, c.model).moments)
    for (const std::int64_t bytes : m.bytes) fuzz::require(bytes >= 0, "parts of a moment are not negative");
  for (const ModuleCost& m : module_costs({c.model, plan, *c.stack, c.cluster, c.costs}))
    fuzz::require(m.shard.count() >= 0 && m.saved.count() >= 0, "costs of modules are not negative");
}

void search_plan(const Case& c, const ShardingPlan& plan, Choices& choose) {
  SearchOptions o;
  o.base = plan;
  o.ranks = plan.ranks();
  o.micro_batch = plan.micro_batches.front();
  o.grad_accum = static_cast<std::int64_t>(plan.micro_batches.size());
  o.wrap = std::string(choose.of(2) == 0 ? "block" : "root");
  o.replicate = plan.replicate();
  o.memory_limit = default_memory_limit(c.cluster);
  int budget = 3;
  (void)search(c.model, c.cluster, *c.stack, o, [&](const ShardingPlan& candidate) {
    if (--budget < 0) return Score{Seconds(1), Bytes(0), Verdict::fits, {}};
    PredictOptions options;
    options.keep_timeline = false;
    Programs programs(resolve(c.model, candidate, *c.stack, c.cluster));
    const Prediction p = predict(programs, c.costs, options);
    fuzz::require(std::isfinite(p.step_time.count()) && p.peak_total.count() >= 0, "a score is a number");
    return Score{p.step_time, p.peak_total, p.verdict, p.where};
  });
}

void whole_way(Choices& choose) {
  Edits edits;
  const std::string model_name(choose.of_table(kModels)), cluster_name(choose.of_table(kClusters));
  const std::string_view stack = choose.of_table(kStacks);
  const bool compiled = choose.of(4) == 1, searched = choose.of(8) == 1;
  const std::int64_t gpus = choose.of_table(kGpus);
  for (std::size_t n = choose.of(4); n > 0; --n) edits.of.push_back(static_cast<Document>(choose.of(kDocuments)));

  Case c;
  c.stack = &find_implementation(stack, compiled, "implementation");
  c.model = model_from_config(edits.apply(config, short_config(model_name), choose), "config.json");
  if (c.model.ops.size() > kMostOps) return;
  c.cluster = cluster_from_json(edits.apply(cluster, cluster_file(cluster_name), choose), "cluster.json", gpus);
  const std::string costs_text = to_json_text(default_costs(c.cluster));
  c.costs = parse_costs(edits.apply(costs, costs_text, choose), "costs.json");
  const ShardingPlan made = plan_of(c, choose);
  const ShardingPlan plan = parse_plan(edits.apply(plan_json, to_json_text(made), choose), "plan.json");
  if (searched) search_plan(c, plan, choose);
  predict_plan(c, plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Choices choose(data, size);
  fuzz::refuses_politely([&] { whole_way(choose); });
  return 0;
}
