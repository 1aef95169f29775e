// The CSV of published runs: hostile text, and rows as setups.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "models/catalog.h"
#include "planner/lower.h"
#include "simulator/allocator/replay.h"
#include "simulator/engine/engine.h"
#include "simulator/published/run_setup.h"
#include "simulator/published/software/run_software.h"
#include "tests/support/refusal.h"
#include "tests/support/relative.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const std::string kHeader = "id,source,model,gpu,gpus,seq_len,micro_batch,step_time_s,notes\n";

PublishedRuns parse(const std::string& rows) { return parse_runs(kHeader + rows, "runs.csv"); }
std::string refused(const std::string& row) {
  const PublishedRuns r = parse(row);
  REQUIRE(r.runs.size() + r.refused.size() == 1);
  return r.refused.empty() ? "" : r.refused[0].reason;
}
std::string reason(const PublishedRun& run) {
  const auto s = set_up(run, "model");
  return std::holds_alternative<std::string>(s) ? std::get<std::string>(s) : "";
}
RunSetup setup(const PublishedRun& run) {
  auto s = set_up(run, "model");
  if (auto* text = std::get_if<std::string>(&s)) FAIL("row " << run.id << ": " << *text);
  return std::get<RunSetup>(std::move(s));
}

// A small run that can be expressed.
PublishedRun small() {
  PublishedRun r;
  r.id = "1", r.source = "someone", r.trust = "A", r.framework = "fsdp2", r.model = "Llama of ours",
  r.gpu = "h100-sxm-80", r.strategy = "FSDP2";
  r.layers = 4, r.hidden = 1024, r.heads = 8, r.kv_heads = 2, r.ffn = 2816, r.vocab = 32000, r.seq_len = 1024;
  r.gpus = 8, r.gpus_per_node = 8, r.dp_shard = 8, r.dp_replicate = 1, r.micro_batch = 2, r.grad_accum = 1,
  r.global_batch = 16;
  r.param_dtype = "bf16", r.reduce_dtype = "fp32", r.activation_checkpointing = "none", r.step_time_s = 0.1;
  return r;
}

std::string file_text() {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/published_runs.csv", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
const PublishedRuns& published() {
  static const PublishedRuns runs = parse_runs(file_text(), "published_runs.csv");
  return runs;
}
const PublishedRun& row(const std::string& id) {
  for (const PublishedRun& r : published().runs)
    if (r.id == id) return r;
  FAIL("no row " << id);
  return published().runs[0];
}

}  // namespace

TEST_CASE("cells as RFC 4180 writes them") {
  const PublishedRuns r = parse_runs(
      "\xEF\xBB\xBF"
      "notes,id,gpu,gpus,model,micro_batch,seq_len,extra,\"step_time_s\"\r\n"
      "\"a \"\"quote\"\", a comma\r\nand a line\",7,h100-sxm-80,8,m,1,64,x,2.5\r\n"
      "\r\n"
      ",,h100-sxm-80,16.0,m,1,,,\r"
      "last,9,h100-sxm-80,8,m,1,,,1e-3",
      "runs.csv");
  CHECK(r.refused.empty());
  REQUIRE(r.runs.size() == 3);
  CHECK(r.runs[0].notes == "a \"quote\", a comma\r\nand a line");
  CHECK(r.runs[0].id == "7");
  CHECK(r.runs[0].step_time_s == 2.5);
  CHECK(r.runs[0].line == 2);
  CHECK(r.runs[1].id == "line 5");  // the first row ends on line 3, line 4 is empty
  CHECK(r.runs[1].gpus == 16);
  CHECK_FALSE(r.runs[1].step_time_s.has_value());
  CHECK_FALSE(r.runs[1].layers.has_value());
  CHECK(r.runs[2].step_time_s == 1e-3);
}

TEST_CASE("rows that are none say why, and nothing is dropped") {
  CHECK(refused("1,s,m,g,8,1024,1,1,n\n") == "");
  CHECK(holds(refused("1,s,m,g,8,1024,1,1\n"), "8 cells, the header has 9"));
  CHECK(holds(refused("1,s,m,g,8,1024,1,1,n,more\n"), "10 cells"));
  CHECK(holds(refused("1,s,m,g,-8,1024,1,1,n\n"), "gpus: \"-8\" is impossible"));
  CHECK(holds(refused("1,s,m,g,8.5,1024,1,1,n\n"), "not a whole number"));
  CHECK(holds(refused("1,s,m,g,8,1024,1,1e400,n\n"), "step_time_s: \"1e400\" is out of range"));
  CHECK(holds(refused("1,s,m,g,8,1024,1,nan,n\n"), "not a number"));
  CHECK(holds(refused("1,s,m,g,8,1024,1,1 s,n\n"), "not a number"));
  CHECK(holds(refused("1,s,m,g,8,1024,1,0,n\n"), "impossible"));
  CHECK(holds(refused("1,s,m,g,99999999999999999999,1024,1,1,n\n"), "impossible"));
  CHECK(holds(refused("1,s,\xff\xfe,g,8,1024,1,1,n\n"), "model: "));
  CHECK(holds(refused("1,s,caf\xc3,g,8,1024,1,1,n\n"), "not UTF-8"));
  CHECK(holds(refused(std::string("1,s,m\0m,g,8,1024,1,1,n\n", 23)), "NUL"));
  CHECK(holds(refused("1,s," + std::string(20000, 'x') + ",g,8,1024,1,1,n\n"), "20000 bytes"));
  CHECK(holds(refused("1,s,\"m\"x,g,8,1024,1,1,n\n"), "text follows a closing quote"));
  CHECK(holds(refused("1,s,\"m,g,8,1024,1,1,n\n"), "a quote is opened and not closed"));
  const PublishedRuns r = parse("1,s,m,g,8,1024,1,1,n\n2,s,m,g,x,1024,1,1,n\n3,s\n\n4,s,m,g,8,1024,1,1,n\n");
  CHECK(r.runs.size() == 2);
  REQUIRE(r.refused.size() == 2);
  CHECK(r.refused[0].id == "2");
  CHECK(r.refused[1].id == "line 4");
}

TEST_CASE("a quote that never closes costs its own lines, not the rest of a long file") {
  std::string rows = "1,s,m,g,8,1024,1,1,\"open\n";
  for (int i = 0; i < 60000; ++i) rows += std::to_string(i) + ",s,m,g,8,1024,1,1,a note of some length\n";
  const PublishedRuns r = parse(rows);
  REQUIRE(r.refused.size() >= 1);
  CHECK(holds(r.refused[0].reason, "longer than 1024 KiB"));
  CHECK(holds(r.refused[0].id, "lines 2 to "));
  CHECK(r.runs.size() > 30000);
}

TEST_CASE("files that are no CSV of training runs are refused") {
  const auto of = [](const std::string& text) { return refusal([&] { return parse_runs(text, "runs.csv"); }); };
  CHECK(holds(of(""), "runs.csv: is empty"));
  CHECK(holds(of("\xEF\xBB\xBF"), "is empty"));
  CHECK(holds(of("\n\r\n\n"), "is empty"));
  CHECK(holds(of("hello\n1\n"), "not a CSV of training runs"));
  CHECK(holds(of(std::string(1 << 21, '\0')), "not a CSV of training runs"));
  CHECK(holds(of("model,gpus\n"), "lacks the columns gpu, seq_len, micro_batch or global_batch"));
  CHECK(holds(of("gpu,gpus,model,micro_batch,gpu\n"), "the column gpu twice"));
  CHECK(holds(of("gpu;gpus;model;micro_batch\n"), "not a CSV"));
}

TEST_CASE("columns that nothing is read from are named, with the one that may be meant") {
  std::istringstream text("model,gpu,gpus,seq_len,micro_batch,steptime_s,gpu_detail,colour\n");
  const RunReader reader(text, "runs.csv");
  CHECK(reader.ignored_columns() ==
        std::vector<std::string>{"\"steptime_s\" (did you mean \"step_time_s\"?)", "\"colour\""});
  std::istringstream ours(file_text());
  CHECK(RunReader(ours, "published_runs.csv").ignored_columns().empty());
}

TEST_CASE("what is neither yes nor no, contradicts another cell or decides the time is not assumed") {
  PublishedRun r = small();
  CHECK(reason(r) == "");
  r.compile = "maybe";
  CHECK(reason(r) == "compile: \"maybe\" is neither yes, no nor per block");
  for (const char* yes : {"yes", "True", "per block", "yes (max-autotune)"}) {
    r.compile = yes;
    CHECK(setup(r).implementation->compiled);
  }
  r.compile = "no (eager trainer)";
  CHECK(!setup(r).implementation->compiled);
  r = small(), r.expandable_segments = "perhaps";
  CHECK(holds(reason(r), "expandable_segments: "));
  r = small(), r.grad_accum.reset(), r.micro_batch = 4, r.global_batch = 16;
  CHECK(reason(r) == "micro_batch: 4 contradicts global_batch, which leaves 2 for each of 8 GPUs");
  r = small(), r.seq_len.reset();
  CHECK(reason(r) == "seq_len: is empty: tokens per sequence are not assumed");
}

TEST_CASE("a clip_norm of none is no clipping") {
  const PublishedRuns r =
      parse_runs("model,gpu,gpus,seq_len,micro_batch,clip_norm\nllama3-8b,h100-sxm-80,8,512,1,none\n", "runs.csv");
  REQUIRE(r.runs.size() == 1);
  CHECK(!setup(r.runs[0]).plan.clip_norm);
}

TEST_CASE("any bytes end in runs, refusals or an InputError") {
  std::mt19937 random(1);
  const std::string good = kHeader + "1,s,m,g,8,1024,1,1,\"n\"\n2,s,m,g,8,1024,1,1,n\n";
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (unsigned k = 0; k <= i % 7U; ++k) text[random() % text.size()] = static_cast<char>(random());
    (void)refusal([&] { return parse_runs(text, "runs.csv"); });
  }
}

TEST_CASE("every row of the file is read") {
  CHECK(published().runs.size() == 677);
  CHECK(published().refused.empty());
  std::set<std::string> ids;
  for (const PublishedRun& r : published().runs) ids.insert(r.id);
  CHECK(ids.size() == 677);
}

TEST_CASE("the parameters of every model that states its numbers are those that were published") {
  std::set<std::string> seen;
  int mpt = 0, llama = 0;
  for (const PublishedRun& r : published().runs) {
    if (!r.params || !r.vocab || r.model.find("LoRA") != std::string::npos) continue;
    if (!seen.insert(r.model + std::to_string(*r.seq_len)).second) continue;
    PublishedRun plain = r;  // of 8-bit rows the model alone
    plain.float8 = plain.precision = plain.cpu_offload = "";
    CAPTURE(r.id);
    CHECK(setup(plain).model.parameter_count() == *r.params);
    (r.model.starts_with("MPT") ? mpt : llama) += 1;
  }
  CHECK(mpt >= 40);
  CHECK(llama >= 8);
}

TEST_CASE("a vocabulary that the parameters contradict by whole rows") {
  PublishedRun stated = row("782");  // has the parameters of 50,257 rows
  CHECK(setup(stated).assumptions.empty());
  stated.vocab = 50368;
  const RunSetup early = setup(stated);
  CHECK(early.model.vocab == 50257);
  REQUIRE(early.assumptions.size() == 1);
  CHECK(holds(early.assumptions[0], "50,257"));
  CHECK(setup(row("1")).model.vocab == 50368);
}

TEST_CASE("ATorch's runs with LoRA have the adapters of its launch script, all in a unit around all others") {
  const RunSetup with = setup(row("1628")), without = setup(row("1624"));
  CHECK(with.plan.trained_outermost);
  CHECK_FALSE(without.plan.trained_outermost);
  CHECK(with.plan.units.size() == without.plan.units.size() + 1);
  std::int64_t trained = 0;
  for (const Parameter& p : with.model.parameters) trained += p.trainable ? p.numel() : 0;
  CHECK(trained == 32 * 4 * 16 * (4096 + 4096));  // layers, products, rank, A's and B's other side
  CHECK(with.model.parameter_count() - trained == without.model.parameter_count());
  CHECK(std::any_of(with.assumptions.begin(), with.assumptions.end(), [](const std::string& said) {
    return holds(said, "adapters of rank 16 on q_proj, v_proj, k_proj and o_proj with a dropout of 0.05");
  }));
}

TEST_CASE("typical rows become the model, plan and cluster that they state") {
  const RunSetup mosaic = setup(row("1"));
  CHECK(mosaic.model.family == "mpt");
  CHECK(mosaic.plan.dialect == Dialect::fsdp1);
  CHECK(mosaic.plan.backward_post);
  CHECK(mosaic.plan.shard() == 512);
  CHECK(mosaic.plan.units.size() == 81);
  CHECK(mosaic.plan.checkpointed.size() == 80);
  CHECK(mosaic.plan.reduce_dtype == DType::f32);
  CHECK(mosaic.plan.clip_norm == 1.0);
  CHECK(mosaic.implementation->name == "foundry");
  CHECK(setup(row("782")).implementation->name == "foundry-2023-01");  // of January 2023
  CHECK(setup(row("440")).implementation->name == "foundry-2023-01");  // in a comment of April's README, as outdated
  CHECK(setup(row("402")).implementation->name == "foundry-2023");     // PyTorch 1.13, PURE
  CHECK(setup(row("158")).implementation->name == "foundry-2023");     // no software stated, PURE
  CHECK_FALSE(setup(row("158")).implementation->recompute_stops_early);
  for (const char* id : {"158", "402", "440", "782"}) {  // 1.13, and 1.12 as 1.13
    CHECK(setup(row(id)).plan.torch == TorchVersion{1, 13});
    CHECK_FALSE(setup(row(id)).plan.use_orig_params);
  }
  CHECK(mosaic.plan.torch == TorchVersion{});
  PublishedRun offloaded = row("158");  // whose order is not known of 1.13
  offloaded.cpu_offload = "yes", offloaded.clip_norm = 0;
  CHECK(setup(offloaded).plan.offload);
  CHECK(setup(offloaded).plan.torch == TorchVersion{});
  // Composer's DEFAULT reduced in bf16 until October 2023: tables of before, a sweep of August; not of January 2024.
  for (const char* id : {"86", "38", "72", "417"}) CHECK(setup(row(id)).plan.reduce_dtype == DType::bf16);
  CHECK(setup(row("86")).implementation->name == "foundry");  // PyTorch 2.1
  CHECK(mosaic.cluster.gpus_per_node == 8);
  CHECK(mosaic.platform == "mosaicml/llm-foundry MPT benchmarks | h100-sxm-80 | ");

  // NCCL before 2.22 (PyTorch before 2.7) holds trees beside rings: 24 channels of 12.8 MiB each.
  const auto fixed = [](const char* id) { return setup(row(id)).cluster.fixed_memory.count() >> 20; };
  CHECK(fixed("158") == 563 + 2 * 307);
  CHECK(fixed("782") == 563 + 2 * 307 + 925);   // and eager kernels
  CHECK(fixed("1175") == 563 + 307 + 256);      // of September 2025, with NVLink SHARP
  CHECK(fixed("1078") == 563 + 2 * 307 + 256);  // of December 2024
  PublishedRun later = row("1078");
  later.software_generation = "torch-2.7";  // the release counts, not the date beside it
  CHECK((setup(later).cluster.fixed_memory.count() >> 20) == fixed("1175"));

  const RunSetup titan = setup(row("1078"));
  CHECK(titan.implementation->name == "torchtitan-2024");
  CHECK(titan.implementation->compiled);
  CHECK(titan.plan.checkpoint_policy == CheckpointPolicy::selective_op);
  CHECK(titan.plan.units.size() == 33);  // blocks and root: the embedding had no unit of its own in December 2024
  CHECK(titan.plan.units[31].reshard_after_forward == Reshard::no);
  CHECK(titan.memory_kind == MemoryKind::reserved);
  CHECK(titan.expandable_segments);
  CHECK(titan.assumptions.empty());

  const RunSetup recent = setup(row("1180"));  // September 2025
  CHECK(recent.implementation->name == "torchtitan-2025-09");
  CHECK(recent.implementation->sdpa == AttentionKernel::sdpa_before_2_11);
  CHECK(recent.model.family == "qwen3");
  CHECK(recent.plan.units.size() == 67);
  CHECK_FALSE(recent.implementation->compiled);

  CHECK(titan.implementation->sdpa == AttentionKernel::sdpa_before_2_11);
  CHECK(setup(row("1359")).implementation->sdpa == AttentionKernel::sdpa_before_2_11);  // Modalities on H100, 2025
  const RunSetup trial = setup(row("1141"));  // July 2024, with the units of today
  CHECK(trial.plan.units.size() == 35);
  CHECK(setup(row("1140")).plan.units.size() == 33);
  CHECK(trial.implementation->name == "torchtitan-2024-07-hopper");
  CHECK(trial.implementation->sdpa == AttentionKernel::sdpa);
  Op op;
  op.kind = OpKind::linear;
  CHECK(trial.implementation->keeps_selectively(op, 1));
  op.kind = OpKind::attention;
  CHECK_FALSE(trial.implementation->keeps_selectively(op, 1));

  // Which form of torchtitan's, and which attention of PyTorch's, by month, release and GPU.
  const auto chosen = [&](std::string_view software, std::string_view generation, std::string_view gpu) {
    PublishedRun run = small();
    run.software = software, run.software_generation = generation, run.gpu = gpu;
    return *setup(run).implementation;
  };
  const auto named = [&](std::string_view month, std::string_view gpu) {
    return std::string(chosen("torchtitan " + std::string(month), "", gpu).name);
  };
  CHECK(named("2024-04", "h100-sxm-80") == "torchtitan-2024-04");
  CHECK(named("2024-05", "a100-sxm-80") == "torchtitan-2024-05");
  CHECK(named("2024-06", "h100-sxm-80") == "torchtitan-2024-05");
  CHECK(named("2024-07", "h100-sxm-80") == "torchtitan-2024-07-hopper");
  CHECK(named("2024-10", "h100-sxm-80") == "torchtitan-2024-07-hopper");
  CHECK(named("2024-11", "h100-sxm-80") == "torchtitan-2024");
  CHECK(named("2024-07", "a100-sxm-80") == "torchtitan-2024-07");
  CHECK(named("2025-10", "h100-sxm-80") == "torchtitan-2025-10");
  CHECK(named("2025-05", "b200") == "torchtitan-2025");
  CHECK(named("2025-08", "b200") == "torchtitan-2025-blackwell");
  CHECK(named("2025-08", "mi300x") == "torchtitan-2025");
  CHECK(named("2025-09", "gb200") == "torchtitan-2025-10");
  CHECK(named("2025-09", "h100-sxm-80") == "torchtitan-2025-09");
  CHECK(named("2025-11", "b200") == "torchtitan-2025-10");
  CHECK(named("2025-11", "a100-sxm-80") == "torchtitan-2025-12");
  CHECK(named("2026-01", "h100-sxm-80") == "torchtitan-2025-12");
  CHECK(named("2026-02", "h100-sxm-80") == "torchtitan");
  CHECK(chosen("torchtitan", "torch-2.14", "h100-sxm-80").name == "torchtitan");
  const auto of_hf = [&](std::string_view generation) {
    PublishedRun run = small();
    run.software_generation = generation;
    return setup(run).implementation->sdpa;
  };
  CHECK(of_hf("torch-2.6") == AttentionKernel::sdpa_before_2_11);
  CHECK(of_hf("torch-2.9") == AttentionKernel::sdpa);
  CHECK(of_hf("torch-2.10") == AttentionKernel::sdpa_before_2_11);
  CHECK(of_hf("torch-2.11") == AttentionKernel::sdpa);
  CHECK(of_hf("torch-2.14") == AttentionKernel::sdpa);
  CHECK(of_hf("") == AttentionKernel::sdpa);

  const RunSetup hybrid = setup(row("1305"));
  CHECK(hybrid.plan.shard() == 4);
  CHECK(hybrid.plan.replicate() == 2);
  CHECK(hybrid.cluster.gpus_per_node == 4);
  CHECK_FALSE(hybrid.assumptions.empty());

  const RunSetup chunks = setup(row("1172"));
  CHECK(chunks.plan.loss_chunks > 1);
  const RunSetup first = setup(row("1295"));
  CHECK(first.plan.checkpointed.size() == 10);
}

TEST_CASE("AutoModel recomputes the parts of a block one by one, others the block") {
  PublishedRun r = small();
  r.activation_checkpointing = "full";
  CHECK(setup(r).plan.checkpointed.size() == 4);
  r.software = "NeMo Automodel 2026-04";
  const RunSetup s = setup(r);
  REQUIRE(s.plan.checkpointed.size() == 16);
  CHECK(s.plan.checkpointed[1].ends_with(".self_attn"));
  CHECK(s.plan.checkpoint_policy == CheckpointPolicy::full);
  CHECK(std::count_if(s.assumptions.begin(), s.assumptions.end(), [](auto& a) { return holds(a, "one by one"); }) == 1);
}

TEST_CASE("fabrics: stated, known from the notes, assumed") {
  PublishedRun r = small();
  r.gpus = r.dp_shard = 16, r.global_batch = 32, r.gpu = "a100-sxm-80";
  const auto bus = [&](double stated) {
    PublishedRun other = r;
    other.fabric_gbps_per_gpu = stated;
    return setup(other).cluster.inter_bus;
  };
  CHECK(bus(50) < bus(200));
  CHECK(setup(r).cluster.inter_bus == bus(50));
  CHECK(setup(r).assumptions.back() == "a fabric of 400 Gb/s per node");
  r.notes = "their README states 1600 Gb/s RoCE per node, 100 Gb/s storage";
  CHECK(setup(r).cluster.inter_bus == bus(200));
  r.notes = "99999999999999999999 Gb/s, Gb/s, -5 Gb/s", r.gpu = "h100-sxm-80";
  CHECK(setup(r).cluster.inter_bus == bus(400));
}

TEST_CASE("a last micro-batch that is smaller") {
  for (const PublishedRun& r : published().runs) {
    if (!r.float8.empty() && r.float8 != "no") continue;
    if (*r.micro_batch * *r.grad_accum * *r.gpus == *r.global_batch) continue;
    if (std::holds_alternative<std::string>(set_up(r, "model"))) continue;
    const ShardingPlan plan = setup(r).plan;
    CAPTURE(r.id);
    CHECK(plan.micro_batches.back() < plan.micro_batches.front());
    CHECK(plan.sequences_per_rank() * *r.gpus == *r.global_batch);
    return;
  }
  FAIL("no such row");
}

TEST_CASE("what cannot be expressed says so") {
  CHECK(reason(small()) == "");
  const auto with = [](auto change) {
    PublishedRun r = small();
    change(r);
    return reason(r);
  };
  CHECK(holds(with([](auto& r) { r.heads = 7; }), "heads"));
  CHECK(holds(with([](auto& r) { r.kv_heads = 3; }), "kv_heads"));
  CHECK(holds(with([](auto& r) { r.dp_shard = 4; }), "dp_shard: 4 x 1 replicas are not the 8 GPUs"));
  CHECK(holds(with([](auto& r) { r.global_batch = 32; }),
              "global_batch: 4 sequences per GPU are not 1 micro-batches of 2"));
  CHECK(holds(with([](auto& r) { r.global_batch = 12; }), "do not divide"));
  CHECK(holds(with([](auto& r) { r.global_batch = 8, r.grad_accum = 4; }), "global_batch"));
  CHECK(holds(with([](auto& r) { r.micro_batch.reset(), r.global_batch.reset(); }), "micro_batch"));
  CHECK(holds(with([](auto& r) { r.gpu = "h100-sxm-8"; }), "did you mean \"h100-sxm-80\""));
  CHECK(holds(with([](auto& r) { r.gpus.reset(); }), "gpus"));
  CHECK(holds(with([](auto& r) { r.float8 = "rowwise"; }), "float8"));  // of no torchtitan
  CHECK(holds(with([](auto& r) { r.float8 = "MXFP8"; }), "float8"));
  CHECK(holds(with([](auto& r) { r.float8 = "rowwise, abs() output saved"; }), "float8"));
  const auto by_te = [](PublishedRun& r) {
    r.source = "llm-foundry", r.float8 = "yes (TransformerEngine via amp_fp8)", r.precision = "amp_fp8";
  };
  CHECK(with(by_te) == "");
  CHECK(holds(with([&](auto& r) { by_te(r), r.source = "somebody"; }), "float8"));
  CHECK(holds(with([&](auto& r) { by_te(r), r.compile = "yes"; }), "float8"));
  CHECK(holds(with([&](auto& r) { by_te(r), r.precision = "amp_bf16"; }), "float8"));
  CHECK(holds(with([&](auto& r) { by_te(r), r.float8 = "TransformerEngine MXFP8"; }), "float8"));
  CHECK(
      holds(with([&](auto& r) { by_te(r), r.activation_checkpointing = "full"; }), "checkpointed: what is recomputed"));
  CHECK(holds(with([&](auto& r) { by_te(r), r.float8 = "no"; }), "precision"));
  CHECK(holds(with([](auto& r) { r.precision = "bf16_amp"; }), "autocast"));
  CHECK(with([](auto& r) { r.precision = "amp_bf16"; }) == "");
  CHECK(holds(with([](auto& r) { r.model = "Mixtral-8x7B"; }), "mixture of experts"));
  CHECK(holds(with([](auto& r) { r.model = "Llama LoRA"; }), "adapters"));
  CHECK(holds(with([](auto& r) { r.params = 46'700'000'000; }), "params"));
  CHECK(holds(with([](auto& r) { r.layers.reset(); }), "catalog"));
  CHECK(holds(with([](auto& r) { r.strategy = "ZeRO++"; }), "strategy"));
  CHECK(holds(with([](auto& r) { r.framework = "megatron"; }), "framework"));
  CHECK(holds(with([](auto& r) { r.activation_checkpointing = "sometimes"; }), "activation_checkpointing"));
  CHECK(holds(with([](auto& r) { r.optimizer = "adafactor"; }), "optimizer"));
  CHECK(holds(with([](auto& r) { r.param_dtype = "int4"; }), "param_dtype"));
  CHECK(holds(with([](auto& r) { r.cpu_offload = "half"; }), "cpu_offload: \"half\" is not modelled"));
  CHECK(holds(with([](auto& r) { r.cpu_offload = "optimizer and activations"; }), "cpu_offload: \"optimizer and"));
  CHECK(holds(with([](auto& r) { r.cpu_offload = "activations"; }), "offload: of activations that are not"));
  CHECK(holds(with([](auto& r) { r.cpu_offload = "optimizer", r.activation_offload = "yes"; }), "optimizer"));
  CHECK(holds(with([](auto& r) { r.activation_offload = "yes"; }), "offload: of activations that are not"));
  CHECK(with([](auto& r) { r.cpu_offload = "activations", r.activation_checkpointing = "full"; }) == "");
  CHECK(holds(with([](auto& r) { r.memory_kind = "rss", r.peak_memory_gib = 3; }), "memory_kind"));
}

TEST_CASE("a model that nobody has named is built from its columns") {
  PublishedRun r = small();
  r.model = "Nobody-1";
  CHECK(setup(r).model.family == "llama");
  r.kv_heads.reset(), r.ffn = 4096, r.vocab = 50304;
  CHECK(setup(r).model.family == "gpt2");
  const std::int64_t gpt = setup(r).model.parameter_count();
  r.params = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096) + 2 * 50304 * 1024;  // three matrices in the feed-forward, untied
  CHECK(setup(r).model.family == "llama");
  r.params = gpt;
  CHECK(setup(r).model.parameter_count() == gpt);
  r.heads.reset(), r.ffn.reset(), r.vocab.reset(), r.params.reset();
  CHECK(setup(r).assumptions.size() >= 4);
}

TEST_CASE("a run's month comes from its notes, source or software") {
  PublishedRun r;
  CHECK_FALSE(month_of(r).has_value());
  r.software_generation = "torch-2.8";
  CHECK(month_of(r) == 2025 * 12 + 7);
  for (const auto& [generation, out] : {std::pair{"torch-2.1", month(2023, 10)},
                                        {"torch-2.1.2", month(2023, 10)},
                                        {"Torch-2.1+cu121", month(2023, 10)},
                                        {"torch-1.13.1", month(2022, 10)},
                                        {"torch-2.10", month(2026, 1)},
                                        {"torch-2.11", month(2026, 3)},
                                        {"torch-2.14.1", month(2026, 4)},
                                        {"torch-2.20", month(2026, 4)},
                                        {"2024", month(2024, 7)}}) {
    CAPTURE(generation);
    r.software_generation = generation;
    CHECK(month_of(r) == out);
  }
  for (const char* unknown : {"torch", "torch-", "torch-2", "torch-2.", "torch-2.x", "torch-3.1"}) {
    CAPTURE(unknown);
    r.software_generation = unknown;
    CHECK_FALSE(month_of(r).has_value());
  }
  r.notes = "step 4 of 5, 2024-07-11";
  CHECK(month_of(r) == 2024 * 12 + 6);
  r.source_ref = "titan@b5bcd76c6:benchmarks/llama3_h100_202412_torchtitan.md#L29";
  CHECK(month_of(r) == 2024 * 12 + 11);
  r.software = "torch 1963fc8 (2023-01-23), torchtitan 9dec370";
  CHECK(month_of(r) == 2023 * 12);
  r.software = "torch 2.1.0, 20230827";
  CHECK(month_of(r) == 2023 * 12 + 7);
}

TEST_CASE("cuBLAS holds 8 MiB and 128 KiB before Hopper, 32 MiB from it on") {
  const auto peak = [](const char* gpu) {
    PublishedRun r = small();
    r.gpu = gpu;
    const RunSetup s = setup(r);
    return predict_peak(prepare(s), default_costs(s.cluster), MemoryKind::allocated).count();
  };
  const auto workspace = [](const char* gpu) { return cublas_workspaces(load_gpu(gpu, "gpu"))[1].bytes; };
  for (const char* gpu : {"a100-sxm-80", "l40s", "v100-sxm2-32"}) CHECK(workspace(gpu) == (8 << 20) + (128 << 10));
  for (const char* gpu : {"h100-sxm-80", "b200"}) CHECK(workspace(gpu) == 32 << 20);
  const double ampere = static_cast<double>(peak("a100-sxm-80")), more = 2 * ((24 << 20) - (128 << 10));
  for (const char* gpu : {"l40s", "v100-sxm2-32"}) CHECK(peak(gpu) == ampere);
  // Blocks of the pool are not split for a rest below 1 MiB, and when they come back depends on the GPU's times: the
  // blocks in use at the peak hold up to 1 MiB each that nobody asked for.
  for (const char* gpu : {"h100-sxm-80", "b200"})
    CHECK(std::abs(static_cast<double>(peak(gpu)) - ampere - more) < 4 << 20);
}

TEST_CASE("many equal micro-batches take as long as all of them") {
  int checked = 0;
  for (const char* id : {"43", "144", "532"}) {
    const RunSetup s = setup(row(id));
    const PreparedRun few = prepare(s);
    CAPTURE(id);
    CHECK(few.left_out > 0);
    const Costs costs = default_costs(s.cluster);
    const Program whole = lower(s.model, s.plan, *s.implementation);
    const CostContext context{s.model, s.plan, *s.implementation, s.cluster, costs};
    const double period = simulate(whole.steady_step, demands_of(whole.steady_step, whole, context)).duration;
    CHECK((predict_step_time(few, costs) - few.stops).count() == relative(period).epsilon(1e-4));
    ++checked;
  }
  CHECK(checked == 3);
}

TEST_CASE("trl prepares models in 4 bits that it does not shard, and adapters in fp32 are part of that") {
  PublishedRun run = small();
  run.software = "transformers 4.48.1", run.framework = "ddp", run.strategy = "", run.gpus = 1, run.dp_shard = 1;
  run.global_batch = 2, run.master_dtype = "bf16", run.reduce_dtype = "bf16";
  run.lora = "rank=8,targets=q_proj,base=nf4", run.notes = "QLoRA (--bf16; prepared by trl)";
  const RunSetup prepared = setup(run);
  CHECK(prepared.model.prepared);
  CHECK(prepared.model.adapter_casts);
  CHECK(prepared.plan.trained_dtype == DType::f32);
  CHECK(prepared.plan.reduce_dtype == DType::f32);
  run.notes = "QLoRA";
  CHECK_FALSE(setup(run).model.prepared);
  CHECK_FALSE(setup(run).plan.trained_dtype);
  run.notes = "prepared by trl", run.framework = "fsdp1", run.gpus = 2, run.dp_shard = 2, run.global_batch = 4;
  CHECK_FALSE(setup(run).model.prepared);
}
