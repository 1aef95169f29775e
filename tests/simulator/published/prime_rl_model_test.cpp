// Models of prime-rl: their graphs, and what is alive at most, against recordings of the same operators in PyTorch
// (tests/torch/record_saved.py, prime_rl.py; q and v of the model whose experts are adapted have peft's adapters).
#include "simulator/published/prime_rl_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/graph/experts.h"
#include "models/graph/lora.h"
#include "models/implementations/prime_rl.h"
#include "planner/costs/kernels.h"
#include "planner/costs/matmul.h"
#include "simulator/published/adapters.h"
#include "simulator/published/reading/published_runs.h"
#include "simulator/published/run_setup.h"
#include "tests/support/tape/replay.h"

using namespace fsdp;
using namespace fsdp::testing;
using nlohmann::json;

namespace {

// Where q and k stand head by head the recorded attention copies its result, as FlashAttention-2's is.
const Implementation& implementation(bool adapted, bool experts, bool by_head = false, bool in_turn = false) {
  return prime_rl_implementation(by_head ? AttentionKernel::flash2 : AttentionKernel::flash3,
                                 !adapted  ? PrimeRlAdapters::none
                                 : in_turn ? PrimeRlAdapters::in_turn
                                           : PrimeRlAdapters::grouped,
                                 !experts  ? PrimeRlModel::of_transformers
                                 : adapted ? PrimeRlModel::adapted_experts
                                           : PrimeRlModel::experts);
}

// The recording is of scaled_dot_product_attention, and does not see inside of kernels.
OpFacts embedding_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(implementation(false, true), op, w);
  f.backward_scratch_bytes = 0;
  return f;
}
OpFacts attention_outside(const Op& op, const Workload& w) {
  OpFacts f = facts(implementation(false, true, op.shape.by_head), op, w);
  f.backward_scratch_bytes = 0;
  f.backward_inside.bytes[0] = 0;
  return f;
}
// Nor is its loss prime-rl's, which holds the logits.
OpFacts loss_outside(const Op& op, const Workload& w) { return facts(find_implementation("hf", false, "test"), op, w); }

}  // namespace

TEST_CASE("peaks and saved bytes of experts and their adapters are PyTorch's") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/saved.json"))["prime_rl"];
  REQUIRE(golden.size() == 14);
  for (const json& row : golden) {
    CAPTURE(row["name"].get<std::string>());
    CAPTURE(row["checkpointing"].get<std::string>());
    const bool adapted = row.contains("lora"), again = row["checkpointing"] != "none";
    const bool in_turn = row["name"].get<std::string>().ends_with("in turn");
    const bool shared = row["config"].contains("n_shared_experts");
    const bool experts = shared || row["config"].contains("num_experts");
    ModelGraph model = model_from_config(row["config"].dump(), "c");
    if (experts) model = with_torchtitan_experts(std::move(model), {.sorted_outside = true});
    if (adapted) {
      const LoraSpec lora = parse_lora(row["lora"].get<std::string>(), "lora");
      model = add_lora(std::move(model), lora, "lora");
      model = experts ? adapt_experts(std::move(model), lora.rank) : hold_adapters(std::move(model), 4);
      if (experts && in_turn) model = multiply_in_turn(std::move(model));
    }
    check_graph(model, "test");
    const Workload w{row["sequences"], row["seq_len"], 2};
    const std::vector<std::int32_t> checkpointed = again ? blocks_of(model) : std::vector<std::int32_t>{};
    Implementation i = implementation(adapted, experts, /*by_head=*/false, in_turn);
    i.rules[static_cast<std::size_t>(OpKind::embedding)] = embedding_outside;
    i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_outside;
    i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = loss_outside;
    const Recorded mine = as_recorded(make_tape(model, i, w, DType::bf16, checkpointed), model, w, again);
    const auto same = [&](const char* what, std::int64_t ours) {
      CAPTURE(std::string(what));
      CAPTURE(ours);
      CHECK(near(ours, row[what]));
    };
    same("saved", mine.saved);
    same("end", mine.end);
    const std::int64_t most = mine.backward_peak, theirs = row["backward_peak"];
    // Really a shared expert's backward has ended when the rows' gradients are weighed; here it comes behind.
    if (shared && again) CHECK((most >= theirs && most <= theirs + theirs / 15));
    else same("backward_peak", most);
    // Forward, as in tape_test.cpp: embedded tokens are held, or nothing is kept in a checkpoint.
    const std::int64_t ours = mine.forward_peak, forward = row["forward_peak"];
    const std::int64_t hidden = w.tokens() * row["config"]["hidden_size"].get<std::int64_t>() * 2;
    CAPTURE(ours);
    CAPTURE(forward);
    if (again) CHECK((ours >= forward - forward / 100 && ours <= forward + forward / 4));
    else CHECK((ours <= forward + forward / 1000 && forward <= ours + hidden + forward / 1000));
  }
}

namespace {

// A published run of prime-rl on 8 H200: Qwen3-30B-A3B in two layers, with adapters of attention and experts.
PublishedRun adapted_run() {
  PublishedRun r;
  r.source = "PrimeIntellect-ai/prime-rl baselines", r.framework = "fsdp2", r.model = "Qwen3-30B-A3B";
  r.layers = 2, r.hidden = 2048, r.heads = 32, r.kv_heads = 4, r.head_dim = 128, r.ffn = 6144, r.vocab = 151936;
  r.experts = 128, r.experts_per_token = 8, r.moe_ffn = 768;
  r.seq_len = 4096, r.gpu = "h200-sxm", r.gpus = 8, r.micro_batch = 1, r.global_batch = 8;
  r.lora_rank = 16, r.lora_targets = "q,k,v,o,gate,up,down_proj,experts (w1,w2,w3)";
  r.notes = "4 LoRA adapters allocated (max_concurrent_runs 4)";
  r.activation_checkpointing = "full", r.compile = "yes", r.attention = "flash-attn-3", r.optimizer = "none";
  return r;
}

std::string refusal_of(const PublishedRun& r) {
  const auto s = set_up(r, "model");
  return std::holds_alternative<std::string>(s) ? std::get<std::string>(s) : "";
}

RunSetup setup_of(const PublishedRun& r) {
  const auto s = set_up(r, "model");
  REQUIRE_MESSAGE(std::holds_alternative<RunSetup>(s), refusal_of(r));
  return std::get<RunSetup>(s);
}

std::int64_t parameters_of(const ModelGraph& m, const char* words, bool trained) {
  return std::count_if(m.parameters.begin(), m.parameters.end(), [&](const Parameter& p) {
    return p.trainable == trained && p.name.find(words) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("a run with adapters of experts holds four of each; of a linear layer all have a gradient, of experts one") {
  const ModelGraph m = setup_of(adapted_run()).model;
  CHECK(parameters_of(m, "self_attn.", true) == 2 * 4 * 2 * 4);  // layers, projections, A and B, held
  CHECK(parameters_of(m, "experts.", true) == 2 * 3 * 2);
  CHECK(parameters_of(m, "experts.", false) == 2 * 3 * (1 + 2 * 3));
  const auto named = [&](const std::string& name) {
    return std::any_of(m.parameters.begin(), m.parameters.end(), [&](const Parameter& p) { return p.name == name; });
  };
  CHECK(named("model.layers.1.mlp.experts.w3_lora_B_3"));
  CHECK(named("model.layers.1.self_attn.o_proj.lora_A_3"));
  for (const Op& op : m.ops) {
    if (op.kind != OpKind::scale || op.shape.experts.count > 0) continue;
    CHECK(op.params.size() == 6);
    CHECK(op.shape.in % (4 * 16) == 0);
  }
}

TEST_CASE("kernels of prime-rl's experts: adapted or not, by the model and not by its cells") {
  const auto of = [](const RunSetup& s, OpKind kind) {
    const auto op = std::find_if(s.model.ops.begin(), s.model.ops.end(), [&](const Op& o) { return o.kind == kind; });
    REQUIRE(op != s.model.ops.end());
    return facts(*s.implementation, *op, {1, 4096, 2});
  };
  PublishedRun r = adapted_run();
  CHECK(of(setup_of(r), OpKind::moe_dispatch).forward_reads == 2);
  CHECK(of(setup_of(r), OpKind::attention).forward_reads == 0);
  r.lora_targets = "q,k,v,o";
  CHECK(of(setup_of(r), OpKind::moe_dispatch).forward_reads == 0);
  CHECK(parameters_of(setup_of(r).model, "experts.", true) == 0);
  r.model = "qwen3-30b-a3b", r.lora_rank = {}, r.lora_targets = "";
  r.layers = r.hidden = r.heads = r.kv_heads = r.ffn = r.vocab = r.experts = r.experts_per_token = r.moe_ffn = {};
  const RunSetup plain = setup_of(r);
  // Two gathers of 8 rows of 4 KiB per token, each read and written, and a row of zeros put below them.
  CHECK(of(plain, OpKind::moe_dispatch).forward_traffic_bytes == 4096 * 8 * (6 * 4096 + 12 * 8));
  CHECK(of(plain, OpKind::moe_dispatch).backward_scattered == 4096 * 8 * 2048);
  CHECK(of(plain, OpKind::moe_combine).forward_scattered == 4096 * 8 * 2048);
}

TEST_CASE(
    "experts with adapters are multiplied one after the other but on Hopper, and where 8 does not divide the rank") {
  const auto in_turn = [](auto change) {
    PublishedRun r = adapted_run();
    change(r);
    const RunSetup s = setup_of(r);
    const auto experts = std::count_if(s.model.ops.begin(), s.model.ops.end(), is_expert_in_turn);
    const auto dispatch = std::find_if(s.model.ops.begin(), s.model.ops.end(),
                                       [](const Op& o) { return o.kind == OpKind::moe_dispatch; });
    CHECK(facts(*s.implementation, *dispatch, {1, 4096, 2}).forward_reads == (experts > 0 ? 3 : 2));
    CHECK(has_experts(s.model));
    return experts;
  };
  CHECK(in_turn([](PublishedRun&) {}) == 0);
  CHECK(in_turn([](PublishedRun& r) { r.gpu = "gh200"; }) == 0);
  CHECK(in_turn([](PublishedRun& r) { r.lora_rank = 12; }) == 2 * 128);
  CHECK(in_turn([](PublishedRun& r) { r.gpu = "b200"; }) == 2 * 128);
  PublishedRun r = adapted_run();
  const double grouped = model_flops_per_token(setup_of(r).model, 4096);
  r.gpu = "b200";
  const RunSetup s = setup_of(r);
  CHECK(model_flops_per_token(s.model, 4096) == doctest::Approx(grouped));
  // 17 operators forward; in backward 46 without the sums of seven gradients, which are operations of their own.
  const auto one = std::find_if(s.model.ops.begin(), s.model.ops.end(), is_expert_in_turn);
  const OpFacts f = facts(*s.implementation, *one, {1, 4096, 2});
  CHECK(f.forward_launches == 17);
  CHECK(f.backward_launches == 39);
  CHECK(one->params.size() == 9);
  // Zeros of all experts' rows, 4096 * 8 of 2048 channels, are the most of what it moves.
  CHECK(f.backward_traffic_bytes > 4096 * 8 * 2048 * 2);
  CHECK(f.backward_traffic_bytes < 2 * 4096 * 8 * 2048 * 2);
}

// Of the module alone, whose loop is all that is there: x, and its gradient, are others'.
TEST_CASE("experts in turn keep, hold and launch by themselves what PyTorch does") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/experts_in_turn.json"));
  REQUIRE(golden["rows"].size() == 3);
  for (const json& row : golden["rows"]) {
    CAPTURE(row.dump());
    const std::int64_t experts = row["experts"], rows = row["rows"], channels = row["channels"];
    OpShape shape;
    shape.in = channels, shape.out = row["hidden"], shape.width = row["rank"], shape.groups = experts;
    shape.experts = {1, 1, 1.0 / static_cast<double>(experts)};
    const Implementation& i =
        prime_rl_implementation(AttentionKernel::flash2, PrimeRlAdapters::in_turn, PrimeRlModel::adapted_experts);
    const OpFacts f = facts(i, Op{OpKind::opaque, 0, {0}, {1}, {0, 1}, shape}, {1, rows, 2});
    const std::int64_t all = rows * channels * 2, variables = f.variable_bytes - f.variable_saved_bytes;
    const std::int64_t matrices = experts * shape.width * 3 * (channels + shape.out) * 2;
    CHECK(f.forward_launches * experts + 1 == row["forward_kernels"]);
    // Two for each of seven slices and selections; the sums of what they made are operations of their own.
    CHECK((f.backward_launches - 2 * 7) * experts + 7 * (experts - 1) == row["backward_kernels"]);
    CHECK(experts * f.saved_extra_bytes + all == row["saved"]);
    CHECK(experts * f.saved_extra_bytes + 2 * all + variables == row["forward_peak"]);  // as results are joined
    CHECK(all + all + matrices == row["end"]);
    // The second expert's zeros beside the first's and its own gradient; what both kept has gone.
    CHECK(f.backward_inside.bytes[5] == all / experts);
    const std::int64_t most = (experts - 2) * f.saved_extra_bytes + 3 * all + matrices + all / experts;
    CHECK((most <= row["backward_peak"] && row["backward_peak"] <= most + 2 * channels * shape.width));
  }
}

TEST_CASE("an expert in turn takes the time of its own products and bytes, and the host's of each launch") {
  PublishedRun r = adapted_run();
  r.gpu = "b200";
  const RunSetup s = setup_of(r);
  const Costs costs = default_costs(s.cluster);
  const CostContext context{s.model, s.plan, *s.implementation, s.cluster, costs};
  const Op& one = *std::find_if(s.model.ops.begin(), s.model.ops.end(), is_expert_in_turn);
  const GpuSpec& gpu = s.cluster.gpu;
  const double peak = gpu.bf16.count() * gpu.matmul_efficiency * gpu.sustained_clock * context.slowest,
               memory = gpu.memory_bandwidth.count() * gpu.memory_efficiency;
  const auto product = [&](double m, double n, double k) {
    return matmul_time({m, n, k}, peak, gpu.sms, memory).seconds;
  };
  // 256 rows of 2048 channels, 768 of the hidden layer, rank 16: gate and up, and down.
  const double n = 256, d = 2048, f = 768, rank = 16;
  const double forward = 2 * (product(n, f, d) + product(n, rank, d) + product(n, f, rank)) + product(n, d, f) +
                         product(n, rank, f) + product(n, d, rank);
  const double backward =
      2 * (product(n, d, f) + product(n, rank, f) + product(f, rank, n) + product(n, d, rank) + product(rank, d, n)) +
      product(n, f, d) + product(n, rank, d) + product(d, rank, n) + product(n, f, rank) + product(rank, f, n);
  const Demand there = kernel_demand(one, Direction::forward, 1, context),
               back = kernel_demand(one, Direction::backward, 1, context);
  const OpFacts facts_of = facts(*s.implementation, one, {1, 4096, 2});
  const auto moved = [&](std::int64_t bytes) { return static_cast<double>(bytes) / memory; };
  CHECK(there.alone.count() == doctest::Approx(forward + moved(facts_of.forward_traffic_bytes) + 17 * 2e-6));
  CHECK(back.alone.count() == doctest::Approx(backward + moved(facts_of.backward_traffic_bytes) + 39 * 2e-6));
  CHECK(there.host.count() == doctest::Approx(5e-6 + 17 * 12e-6));
}

TEST_CASE("FlashAttention-3's backward has fp32 gradients of the keys and values that there are, the second's of all") {
  Op op;
  op.kind = OpKind::attention;
  op.shape.heads = 32, op.shape.kv_heads = 4, op.shape.head_dim = 128;
  const auto of = [&](AttentionKernel kernel) {
    return facts(prime_rl_implementation(kernel, PrimeRlAdapters::none, PrimeRlModel::experts), op, {1, 1024, 2});
  };
  const std::int64_t q = 1024 * 32 * 128 * 2, kv = 1024 * 4 * 128, rows = 1024 * 32 * 4;
  CHECK(of(AttentionKernel::flash2).backward_scratch_bytes == rows + 2 * q + 2 * q);
  CHECK(of(AttentionKernel::flash3).backward_scratch_bytes == rows + 2 * q + 2 * 4 * kv);
  CHECK(of(AttentionKernel::flash2).saved_extra_bytes == rows + q);  // its result stands head by head, and is copied
  CHECK(of(AttentionKernel::flash3).saved_extra_bytes == rows);
}

TEST_CASE("a form of prime-rl has a digest of its own") {
  std::set<std::string> all;
  for (const PrimeRlAdapters a : {PrimeRlAdapters::none, PrimeRlAdapters::grouped, PrimeRlAdapters::in_turn})
    for (const PrimeRlModel m : {PrimeRlModel::of_transformers, PrimeRlModel::experts, PrimeRlModel::adapted_experts})
      all.insert(digest(prime_rl_implementation(AttentionKernel::flash3, a, m)));
  CHECK(all.size() == 9);
}

TEST_CASE("a recomputed combine does not add rows again") {
  PublishedRun r = adapted_run();
  r.lora_rank = {}, r.lora_targets = "";
  const PreparedRun run = prepare(setup_of(r));
  std::int64_t saved = 0, forwards = 0;
  for (const Operation& op : run.program.steady_step.ops) {
    if (op.graph_op < 0 || run.setup.model.ops[static_cast<std::size_t>(op.graph_op)].kind != OpKind::moe_combine)
      continue;
    if (op.action == Action::recompute) saved += op.products == Products::saved ? 1 : 0;
    if (op.action == Action::forward) forwards += op.products == Products::all ? 1 : 0;
  }
  CHECK(saved == 2);
  CHECK(forwards == 2);
}

// GLM-4.5-Air, trained further: its own sizes from the catalog, where the columns agree with them.
TEST_CASE("INTELLECT-3: one dense block with adapters, shared experts without, run before the experts are combined") {
  PublishedRun r = adapted_run();
  r.model = "INTELLECT-3", r.layers = 46, r.hidden = 4096, r.heads = 96, r.kv_heads = 8, r.ffn = 10944;
  r.vocab = 151552, r.moe_ffn = 1408, r.params = 106852245504;
  const RunSetup s = setup_of(r);
  const ModelGraph& m = s.model;
  CHECK(parameters_of(m, "self_attn.", true) == 46 * 4 * 2 * 4);  // layers, projections, A and B, held
  CHECK(parameters_of(m, "layers.0.mlp.", true) == 3 * 2 * 4);
  CHECK(parameters_of(m, "mlp.experts.", true) == 45 * 3 * 2);
  CHECK(parameters_of(m, "shared_experts.", true) == 0);
  CHECK(parameters_of(m, "shared_experts.", false) == 45 * 3);
  for (std::size_t i = 0; i < m.ops.size(); ++i) {
    CHECK_FALSE(m.ops[i].shape.in_fp32);
    if (m.ops[i].kind != OpKind::moe_combine) continue;
    CHECK(m.ops[i - 1].kind == OpKind::linear);
    CHECK(m.ops[i + 1].kind == OpKind::add);
    CHECK(m.ops[i + 1].inputs == std::vector<std::int32_t>{m.ops[i].outputs[0], m.ops[i - 1].outputs[0]});
  }
  const auto refused = [&](auto change) {
    PublishedRun other = r;
    other.params = {};
    change(other);
    return refusal_of(other).find("in their own sizes") != std::string::npos;
  };
  CHECK_FALSE(refused([](PublishedRun&) {}));
  CHECK(refused([](PublishedRun& x) { x.hidden = 2048; }));
  CHECK(refused([](PublishedRun& x) { x.moe_ffn = 1536; }));
  CHECK(refused([](PublishedRun& x) { x.vocab = 151936; }));
  CHECK(refused([](PublishedRun& x) { x.kv_heads = 4; }));
  CHECK(refused([](PublishedRun& x) { x.ffn = 12288; }));
  CHECK(refused([](PublishedRun& x) { x.layers = 47; }));
}

TEST_CASE("what is not modelled of prime-rl's experts and adapters says so") {
  const auto refused = [](const auto& change) {
    PublishedRun r = adapted_run();
    change(r);
    return refusal_of(r);
  };
  const auto holds = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  CHECK(holds(refused([](PublishedRun& r) { r.gpu = "a100-sxm-80"; }), "before Hopper"));
  CHECK(holds(refused([](PublishedRun& r) { r.param_dtype = "fp32"; }), "param_dtype: experts of prime-rl in fp32"));
  CHECK(holds(refused([](PublishedRun& r) { r.lora_targets = "gate,up"; }), "name no linear layer"));
  CHECK(holds(refused([](PublishedRun& r) { r.experts_per_token = {}; }), "experts_per_token or moe_ffn is missing"));
  CHECK(holds(refused([](PublishedRun& r) { r.experts_per_token = 200; }), "200 of 128 experts"));
  CHECK(holds(refused([](PublishedRun& r) { r.model = "INTELLECT-3"; }), "in their own sizes"));
  CHECK(holds(refused([](PublishedRun& r) { r.model = "llama3-8b", r.layers = {}; }),
              "leave the cells of experts empty"));
  CHECK(holds(refused([](PublishedRun& r) { r.notes = "99999 LoRA adapters allocated"; }), "adapters allocated"));
  CHECK(holds(refused([](PublishedRun& r) { r.source = "elsewhere", r.software = ""; }), "experts"));
}

TEST_CASE("as many adapters are held as prime-rl's notes say, whatever the column") {
  std::vector<std::string> said;
  PublishedRun r = adapted_run();
  CHECK(adapters_of(r, said)->held == 4);
  r.notes = "14 LoRA adapters allocated";
  CHECK(adapters_of(r, said)->held == 14);
  r.lora = "16", r.lora_rank = {};
  CHECK(adapters_of(r, said)->held == 14);
  r.source = "elsewhere";
  CHECK(adapters_of(r, said)->held == 1);
}
