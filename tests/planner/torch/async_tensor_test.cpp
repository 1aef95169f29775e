// Asynchronous tensor parallelism against what PyTorch 2.15's own code issues and its compiler fuses (recorded by
// tests/torch/record_async_tensor.py), and against closed forms of operations, bytes and memory.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/catalog.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/emit.h"
#include "planner/job.h"
#include "planner/plan/file.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/memory.h"
#include "simulator/predict.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

const Implementation& async() { return with_async_tensor(torchtitan_implementation(true), "test"); }

ModelGraph model_of(const Json& c) {
  return model_from_config(
      fmt::format(R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
                       "num_hidden_layers": 2, "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {},
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "hidden_act": "silu", "tie_word_embeddings": false}})",
                  c["family"].get<std::string>(), c["vocab"].get<int>(), c["hidden"].get<int>(), c["inner"].get<int>(),
                  c["heads"].get<int>(), c["kv_heads"].get<int>(), c["hidden"].get<int>() / c["heads"].get<int>()),
      "golden");
}

Job job_of(const ModelGraph& model, std::int64_t tensor, std::int64_t sequences, std::int64_t seq_len, bool checkpoint,
           const Implementation& implementation = async()) {
  PlanOptions options;
  options.ranks = 2 * tensor, options.tensor = tensor;
  options.seq_len = seq_len;
  options.micro_batches = {sequences};
  ShardingPlan plan = naive_plan(model, options);
  if (checkpoint) plan.checkpointed = {"model.layers.0", "model.layers.1"};
  ClusterSpec cluster = load_cluster("dgx-h100", 2 * tensor);
  cluster.gpus_per_node = std::min<std::int64_t>(8, 2 * tensor);
  return resolve(model, plan, implementation, cluster);
}

const Json& llama() {
  static const Json c = {{"family", "llama"}, {"vocab", 240}, {"hidden", 192},
                         {"inner", 384},      {"heads", 24},  {"kv_heads", 24}};
  return c;
}

Json cases() {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/async_tensor.json");
  return Json::parse(file).at("cases");
}

bool in_block(const Operation& op, const ModelGraph& model, const std::string& block) {
  if (op.graph_op < 0) return false;
  const std::int32_t m = model.ops[static_cast<std::size_t>(op.graph_op)].module;
  return m >= 0 && model.modules[static_cast<std::size_t>(m)].name.starts_with(block);
}

const Op& op_of(const Operation& op, const ModelGraph& model) {
  return model.ops[static_cast<std::size_t>(op.graph_op)];
}

// From `first` on up to the barrier that ends it, in the words of a recorded schedule.
Json events_from(const Step& step, std::size_t first, const ModelGraph& model) {
  Json events = Json::array();
  const std::int32_t layer_0 = step.ops[first + 1].graph_op;
  const bool scatters = step.ops[first].action == Action::tensor_barrier;
  for (std::size_t i = first; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const char* const stream = op.stream == Stream::compute ? "C" : "S";
    const auto add = [&](auto... what) { events.push_back(Json::array({stream, what...})); };
    if (is_kernel(op.action)) {
      std::int32_t number = 0;
      for (std::int32_t k = layer_0; k < op.graph_op; ++k)
        number += model.ops[static_cast<std::size_t>(k)].kind == OpKind::linear ? 1 : 0;
      add("mm", scatters ? 0 : number, op.part);
      continue;
    }
    const bool moves = op.action == Action::share_part || op.action == Action::exchange_part;
    if (moves || op.action == Action::tensor_barrier) add("barrier");
    if (op.action == Action::share_part) add("share");
    if (op.action == Action::pull_part) add("pull", op.part);
    if (op.action == Action::exchange_part) add("exchange", op.part);
    if (op.action == Action::reorder_tokens) add("own");
    if (op.action == Action::sum_parts) add("sum");
    if (moves) add("barrier");
    if (op.action == Action::sum_parts || (op.action == Action::tensor_barrier && !scatters)) break;
  }
  return events;
}

// What runs together in a block, in the words of a recorded graph: forward, backward.
std::array<Json, 2> fused(const Step& step, const ModelGraph& model, const std::string& block) {
  std::array<Json, 2> graphs{Json::array(), Json::array()};
  std::array<int, 2> whole{};
  std::size_t back = 0;
  int products = 0;
  bool gathers = false, scatters = false, kept = false;
  for (const Operation& op : step.ops) {
    if (op.action == Action::backward) back = 1;
    if (!in_block(op, model, block)) continue;
    Json& graph = graphs[back];
    if (is_kernel(op.action) && op_of(op, model).kind == OpKind::linear) {
      if (op.products == Products::rows) products += op.part == 0 ? 1 : 0;
      else whole[back] += op.action == Action::backward && op.products == Products::all ? 2 : 1;
    }
    if (op.action == Action::share_part) gathers = true, products = 0, kept = false;
    if (op.action == Action::reorder_tokens && op.products == Products::rows) kept = true;
    if (op.action == Action::tensor_barrier && gathers) {
      graph.push_back(Json::array({"gather_mm", products, kept}));
      gathers = false;
    } else if (op.action == Action::tensor_barrier) {
      if (scatters) graph.push_back(Json::array({"mm_scatter"}));
      scatters = !scatters;
    }
    if (op.comm == Communicator::tensor && op.action != Action::all_reduce)
      graph.push_back(Json::array({std::string(name(op.action))}));
  }
  for (std::size_t g = 0; g < 2; ++g) graphs[g].push_back(Json::array({"mm", whole[g]}));
  return graphs;
}

std::size_t first_of(const Step& step, Action action, const ModelGraph& model, const std::string& module,
                     std::size_t from = 0) {
  for (std::size_t i = from; i < step.ops.size(); ++i)
    if (step.ops[i].action == action && in_block(step.ops[i], model, module)) return i;
  FAIL("not found");
  return 0;
}

}  // namespace

TEST_CASE("products in parts: PyTorch's order of copies, barriers and products on both streams") {
  int compared = 0;
  for (const Json& recorded : cases()) {
    const Json& c = recorded.at("config");
    if (!c.contains("ranks")) continue;
    CAPTURE(c.at("name").get<std::string>());
    const int products = c.at("products");
    // Of a block's gathers that before attention has three products, that before the MLP two, that of a gradient one;
    // rows are not kept where the module runs again.
    Programs programs(job_of(model_of(llama()), c.at("ranks"), 2, 48, !c.at("scatters") && !c.at("kept")));
    const ModelGraph& model = programs.job().model;
    const Step& step = programs.of(0).steady_step;
    const std::string block = "model.layers.0";
    std::size_t first = 0;
    if (c.at("scatters")) first = first_of(step, Action::tensor_barrier, model, block + ".self_attn.o_proj");
    else if (products == 3) first = first_of(step, Action::share_part, model, block + ".self_attn");
    else if (products == 2) first = first_of(step, Action::share_part, model, block + ".mlp");
    else first = first_of(step, Action::share_part, model, block + ".mlp.down_proj");
    CHECK(events_from(step, first, model).dump() == recorded.at("events").dump());
    ++compared;
  }
  CHECK(compared == 20);
}

TEST_CASE("products in parts: what PyTorch's compiler fuses in a block, forward and backward") {
  int compared = 0;
  for (const Json& recorded : cases()) {
    const Json& c = recorded.at("config");
    if (c.contains("ranks")) continue;
    CAPTURE(c.at("name").get<std::string>());
    Programs programs(job_of(model_of(c), c.at("tensor"), c.at("sequences"), c.at("seq_len"), c.at("checkpoint")));
    const auto ours = fused(programs.of(0).steady_step, programs.job().model, "model.layers.0");
    CHECK(ours[0].dump() == recorded.at("forward").dump());
    CHECK(ours[1].dump() == recorded.at("backward").dump());
    ++compared;
  }
  CHECK(compared >= 10);
}

TEST_CASE("products in parts: every part waits for its copy, and what comes behind for both streams") {
  Programs programs(job_of(model_of(llama()), 8, 2, 48, true));
  const Step& step = programs.of(0).steady_step;
  int joined = 0;
  std::int32_t last_second = kNone;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    const auto waits = step.waits_of(op);
    const auto waits_for = [&](std::int32_t o) { return std::find(waits.begin(), waits.end(), o) != waits.end(); };
    if (op.action == Action::tensor_barrier && last_second >= 0) {
      CHECK(waits_for(last_second));
      ++joined;
    }
    if (op.action == Action::tensor_barrier) last_second = kNone;
    if (op.products == Products::rows && op.stream == Stream::tensor) {
      if (last_second < 0) {  // the first on the second stream waits for the barrier before it
        REQUIRE(waits.size() == 1);
        const Action before = step.ops[static_cast<std::size_t>(waits[0])].action;
        CHECK((before == Action::share_part || before == Action::tensor_barrier));
      }
      last_second = static_cast<std::int32_t>(i);
    } else if (op.stream == Stream::tensor && op.comm == Communicator::none) {
      if (last_second < 0) {
        REQUIRE(waits.size() == 1);
        CHECK(step.ops[static_cast<std::size_t>(waits[0])].action == Action::share_part);
      }
      last_second = static_cast<std::int32_t>(i);
    }
  }
  CHECK(joined == 2 * (4 + 3 + 2));  // of two blocks: forward, recomputation, backward
}

// A = N d elements of activations, T ranks. A gather moves (T - 1) / T of A to each rank, a scatter of sums the same;
// the workspace holds two parts of sums.
TEST_CASE("products in parts: closed forms of operations, bytes and memory") {
  for (const std::int64_t ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    const std::int64_t sequences = 2, seq_len = 48, a = sequences * seq_len * 192 * 2;  // bytes in bf16
    const Json c = llama();
    Programs programs(job_of(model_of(c), ranks, sequences, seq_len, false));
    const Program& program = programs.of(0);
    const Step& step = program.steady_step;
    std::map<Action, std::int64_t> count, bytes;
    for (const Operation& op : step.ops) {
      if (!in_block(op, programs.job().model, "model.layers.1")) continue;
      if (is_kernel(op.action) && op.products != Products::rows) continue;
      ++count[op.action];
      for (const Arg& arg : step.args_of(op))
        if (arg.buffer >= 0 && arg.access != Access::read)
          bytes[op.action] += arg.bytes >= 0 ? arg.bytes : program.buffers[static_cast<std::size_t>(arg.buffer)].bytes;
    }
    CHECK(count[Action::share_part] == 4);
    CHECK(count[Action::pull_part] == 4 * (ranks - 1));
    CHECK(count[Action::exchange_part] == 2 * (ranks - 1));
    CHECK(count[Action::tensor_barrier] == 4 + 2 * 2);
    CHECK(count[Action::sum_parts] == 2);
    CHECK(count[Action::forward] == ranks * (3 + 2 + 1 + 1));  // q, k, v; gate, up; o; down
    CHECK(count[Action::backward] == ranks * 2);               // the gradients of what o and down read
    CHECK(bytes[Action::pull_part] == 4 * a / ranks * (ranks - 1));
    CHECK(bytes[Action::exchange_part] == 2 * a / ranks * (ranks - 1));
    CHECK(bytes[Action::sum_parts] == 2 * a / ranks);
    const PredictOptions options;
    Programs plain(job_of(model_of(c), ranks, sequences, seq_len, false, torchtitan_implementation(true)));
    const Costs costs = default_costs(programs.job().cluster);
    CHECK((predict(programs, costs, options).fixed - predict(plain, costs, options).fixed).count() == 2 * a / ranks);
  }
}

TEST_CASE("what a selective checkpoint keeps beside results is kept of products in parts, too") {
  const ModelGraph model = model_of(llama());
  const auto peak = [&](const Implementation& i) {
    Job job = job_of(model, 2, 2, 48, /*checkpoint=*/true, i);
    job.plan.checkpoint_policy = CheckpointPolicy::selective_op;
    Programs programs(resolve(model, job.plan, i, job.cluster));
    return replay_memory(programs.of(0)).peak;
  };
  const Implementation &now = find_implementation("torchtitan-2026-06", true, "test"),
                       &before = torchtitan_implementation(true);
  const std::int64_t keys = 2 * 48 * (192 / 2) * 2;  // tokens, channels of a rank, bytes; of one block by the peak
  CHECK(peak(now) - peak(before) == keys);
  CHECK(peak(with_async_tensor(now, "test")) - peak(with_async_tensor(before, "test")) == keys);
}

TEST_CASE("asynchronous tensor parallelism is the implementation's, and every document that depends on it says so") {
  const Implementation& plain = torchtitan_implementation(true);
  CHECK(implementation_text(async()) == "torchtitan+compile+async-tensor");
  CHECK(digest(async()) != digest(plain));
  const ModelGraph model = load_model("llama3-8b");
  PlanOptions options;
  options.ranks = 16, options.tensor = 8, options.seq_len = 8192, options.micro_batches = {2};
  const PlanFile file{naive_plan(model, options), FoundFor{"torchtitan", true, true}};
  CHECK(parse_plan_file(to_json_text(file), "plan.json") == file);
  PlanFile other = file;
  other.found_for->async_tensor = false;
  CHECK(to_json_text(other).find("async") == std::string::npos);
  CHECK_FALSE(parse_plan_file(to_json_text(other), "plan.json") == file);
  const auto emitted = [&](const char* format, const Implementation& i) {
    return emit(format, file.plan, model, {&i, std::nullopt});
  };
  const std::string key = "enable_async_tensor_parallel = true";
  CHECK(emitted("torchtitan-toml", async()).text.find(key) != std::string::npos);
  CHECK(emitted("torchtitan-toml", async()).async_tensor);
  CHECK(emitted("torchtitan-toml", plain).text.find("async") == std::string::npos);
  for (const char* format : {"torchtitan", "torchtitan-args", "pytorch"}) {
    CAPTURE(format);
    const auto says = [&](const Implementation& i) {
      const Emitted e = emitted(format, i);
      CHECK_FALSE(e.async_tensor);
      return std::any_of(e.cannot_express.begin(), e.cannot_express.end(),
                         [](const Inexact& x) { return x.field == "async_tensor"; });
    };
    CHECK(says(async()));
    CHECK_FALSE(says(plain));
  }
}

TEST_CASE("products in parts compute what whole ones do") {
  const auto flops = [](const Implementation& implementation) {
    Programs programs(job_of(model_of(llama()), 4, 2, 48, false, implementation));
    const Job& job = programs.job();
    const Costs costs = default_costs(job.cluster);
    double sum = 0;
    const Demands demands = demands_of(programs.of(0).steady_step, programs.of(0),
                                       {job.model, job.plan, job.implementation, job.cluster, costs});
    for (std::size_t i = 0; i < demands.size(); ++i) sum += demands[i].flops.count();
    return sum;
  };
  CHECK(flops(async()) == doctest::Approx(flops(torchtitan_implementation(true))).epsilon(1e-12));
}

TEST_CASE("asynchronous tensor parallelism is refused where nobody has it") {
  const auto refusal = [](const auto& f) {
    try {
      f();
    } catch (const InputError& e) {
      return e.field() + ": " + e.problem() + "; " + e.remedy();
    }
    return std::string("accepted");
  };
  CHECK(refusal([] {
          (void)with_async_tensor(torchtitan_implementation(false), "--async-tensor");
        }).find("add --compile") != std::string::npos);
  CHECK(refusal([] { (void)with_async_tensor(hf_implementation(true), "--async-tensor"); }).find("not of hf") !=
        std::string::npos);
  CHECK(refusal([] { (void)with_async_tensor(native_implementation(), "--async-tensor"); }).find("not of native") !=
        std::string::npos);
  const ModelGraph model = load_model("llama3-8b");
  PlanOptions options;
  options.ranks = 16, options.tensor = 8, options.seq_len = 8192, options.micro_batches = {2};
  const ShardingPlan plan = naive_plan(model, options);
  CHECK(refusal([&] { (void)resolve(model, plan, async(), load_cluster("dgx-h100", 16)); }) == "accepted");
  ClusterSpec small = load_cluster("dgx-h100", 16);
  small.gpus_per_node = 4, small.nvlink_domain.reset();
  CHECK(refusal([&] { (void)resolve(model, plan, async(), small); }).find("not in one NVLink domain of 4 GPUs") !=
        std::string::npos);
  ShardingPlan split = plan;
  split.units.insert(split.units.begin(), {{"model.layers.0.self_attn.k_proj"}});
  Programs programs(resolve(model, split, async(), load_cluster("dgx-h100", 16)));
  CHECK(refusal([&] { (void)programs.of(0); }).find("'model.layers.0.self_attn.k_proj' before that begins") !=
        std::string::npos);
}
