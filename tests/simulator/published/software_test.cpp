// The software behind published rows whose sources were read: what its loops hold, and what it never compiled.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "models/implementation.h"
#include "simulator/published/run_setup.h"
#include "simulator/published/software/run_software.h"

using namespace fsdp;

namespace {

// `file`: 2 to 6.
PublishedRun run_of(const std::string& file, const std::string& id) {
  std::ostringstream text;
  text << std::ifstream(std::string(FSDP_TESTS_DIR) + "/accuracy/published_runs_" + file + ".csv", std::ios::binary)
              .rdbuf();
  const PublishedRuns read = parse_runs(text.str(), "runs.csv");
  const auto at = std::find_if(read.runs.begin(), read.runs.end(), [&](const PublishedRun& r) { return r.id == id; });
  REQUIRE(at != read.runs.end());
  return *at;
}

RunSetup setup_of(const std::string& file, const std::string& id) {
  auto setup = set_up(run_of(file, id), "model");
  if (const auto* reason = std::get_if<std::string>(&setup)) FAIL("row " << id << ": " << *reason);
  return std::get<RunSetup>(std::move(setup));
}

OpFacts loss_of(const RunSetup& s) {
  return facts(*s.implementation, s.model.ops.back(), {s.plan.micro_batches[0], s.plan.seq_len, 2, s.plan.loss_chunks});
}

}  // namespace

TEST_CASE("llama-recipes held outputs over the next forward until its pull request 41, and the loss alone since") {
  for (const char* id : {"5013", "5014", "5016", "5017"})
    CHECK(setup_of("4", id).implementation->loop_holds == LoopHolds::outputs);
  for (const char* id : {"5015", "5018"}) CHECK(setup_of("4", id).implementation->loop_holds == LoopHolds::loss);
  CHECK_FALSE(setup_of("4", "5013").plan.limit_all_gathers);
  CHECK(setup_of("4", "5014").plan.limit_all_gathers);
}

TEST_CASE("LitGPT's own scripts cast logits and copy ddp's gradients, lightning-thunder's benchmark does neither") {
  const Implementation own = *setup_of("4", "5074").implementation, then = *setup_of("4", "5033").implementation,
                       eager = *setup_of("3", "4069").implementation, compiled = *setup_of("3", "4068").implementation;
  CHECK(own.name == "litgpt");
  CHECK(then.name == "litgpt-2023");
  for (const Implementation* i : {&own, &then}) {
    CHECK(i->ddp_copies_gradients);
    CHECK(i->loop_holds == LoopHolds::nothing);
  }
  for (const Implementation* i : {&eager, &compiled}) {
    CHECK(i->name == "litgpt-benchmark");
    CHECK(i->loop_holds == LoopHolds::logits);
    CHECK_FALSE(i->ddp_copies_gradients);
  }
  CHECK_FALSE(eager.compiled);
  CHECK(compiled.compiled);
  CHECK(setup_of("3", "4082").implementation->float8_copies == Float8Copies::of_all);  // PyTorch before 2.7
  CHECK(setup_of("3", "4099").implementation->float8_copies == Float8Copies::none);    // told to cast again
}

TEST_CASE("torchtune dropped what torch.compile made of a plain loss, one in chunks is compiled in place") {
  const RunSetup plain = setup_of("4", "5010"), chunked = setup_of("4", "5011"), eager = setup_of("4", "5009");
  CHECK(plain.implementation->compiled);
  CHECK_FALSE(eager.implementation->compiled);
  CHECK(loss_of(plain) == loss_of(eager));
  CHECK(loss_of(chunked).saved_extra_bytes < loss_of(eager).saved_extra_bytes / 100);
}

TEST_CASE("Mixtral in transformers 4 loops over its experts, and the host waits once for each") {
  for (const auto& [file, id] : {std::pair("4", "5060"), {"3", "4105"}}) {
    CAPTURE(id);
    const RunSetup setup = setup_of(file, id);
    CHECK(setup.implementation->name == "hf-4");
    std::int64_t reads = 0;
    for (const Op& op : setup.model.ops)
      reads += facts(*setup.implementation, op, {2, 4096, 2}, setup.model).forward_reads;
    CHECK(reads == 32 * 8);
  }
  // Its own loss and optimizer stay, beside the loop.
  const Implementation then = *setup_of("4", "5060").implementation;
  Implementation expected = copying_logits(by_foreach(before_torch_2_11(hf_4_implementation())), /*cast_first=*/false);
  expected.sdpa = AttentionKernel::flash2;  // which the row names
  CHECK(digest(then) == digest(expected));
  CHECK(then.optimizer_temps_at_once);
}

TEST_CASE("a row names its kernel of attention, what its loss reads, its AdamW and its threads") {
  const auto kernel = [](const char* id) { return setup_of("6", id).implementation->sdpa; };
  CHECK(kernel("7021") == AttentionKernel::flash3);
  CHECK(kernel("7022") == AttentionKernel::cudnn);  // TransformerEngine on Hopper
  CHECK(kernel("7023") == AttentionKernel::flash2);
  CHECK(kernel("7027") == AttentionKernel::sdpa_before_2_11);

  // F.cross_entropy of logits in bf16 keeps the logarithms of all in bf16; cast first, in fp32; compiled, of rows.
  const RunSetup in_16_bits = setup_of("6", "7003"), in_fp32 = setup_of("4", "5008"), compiled = setup_of("6", "7021");
  const auto logits = [](const RunSetup& s) {
    return s.plan.micro_batches[0] * s.plan.seq_len * s.model.ops.back().shape.vocab;
  };
  CHECK(loss_of(in_16_bits).saved_extra_bytes == 2 * logits(in_16_bits));
  CHECK(loss_of(in_fp32).saved_extra_bytes == 4 * logits(in_fp32));
  CHECK(loss_of(compiled).saved_extra_bytes < logits(compiled) / 100);

  CHECK(setup_of("5", "6036").implementation->optimizer_temps_at_once);         // "torch default foreach", no Trainer
  CHECK_FALSE(setup_of("5", "6034").implementation->optimizer_traffic == 1.0);  // torchtitan's of its time
  const auto threads = [](const char* file, const char* id) { return setup_of(file, id).plan.loop.host_threads; };
  CHECK(threads("3", "4101") == 26);  // its launch script's OMP_NUM_THREADS
  CHECK(threads("3", "4067") > 1);    // torchtune's recipe
  CHECK(threads("5", "6040") == 0);   // one rank a node: all
  CHECK(setup_of("3", "4067").plan.units.front().modules.front() == "model.embed_tokens");
}

TEST_CASE("threads that a row's notes cannot mean are named") {
  PublishedRun run;
  run.notes = "OMP_NUM_THREADS=0";
  std::vector<std::string> said;
  CHECK_THROWS_WITH((void)host_threads_of(run, said), doctest::Contains("a number from 1 to 1,024 is expected"));
  run.notes = "OMP_NUM_THREADS=many";
  CHECK_THROWS_WITH((void)host_threads_of(run, said), doctest::Contains("a number from 1 to 1,024 is expected"));
  run.notes.clear(), run.gpus_per_node = 8;
  CHECK(host_threads_of(run, said) == 0);
  CHECK(said == std::vector<std::string>{"one thread of each rank for what is offloaded, as torchrun starts them"});
}

TEST_CASE("prime-rl's blocks of its own are Qwen3's: another model with a loss in chunks of tokens is predicted") {
  PublishedRun run = run_of("2", "3020");
  const auto refused = set_up(run, "model");
  REQUIRE(std::holds_alternative<std::string>(refused));
  CHECK(std::get<std::string>(refused).starts_with("software: prime-rl's own blocks for Qwen3"));
  run.model = "Llama of the same sizes";
  run.params.reset();
  run.head_dim = 64;
  CHECK(std::holds_alternative<RunSetup>(set_up(run, "model")));
}
