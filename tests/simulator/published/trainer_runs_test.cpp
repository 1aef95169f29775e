// Runs of transformers' Trainer: what its releases decide (tests/accuracy/published_runs_4.csv, fms-acceleration).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "simulator/published/run_setup.h"

using namespace fsdp;

namespace {

PublishedRun row(const std::string& id) {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/published_runs_4.csv", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const PublishedRuns read = parse_runs(text.str(), "published_runs_4.csv");
  const auto found =
      std::find_if(read.runs.begin(), read.runs.end(), [&](const PublishedRun& r) { return r.id == id; });
  REQUIRE(found != read.runs.end());
  return *found;
}

bool reentrant(const PublishedRun& run) {
  const auto setup = set_up(run, "published_runs_4.csv");
  REQUIRE(std::holds_alternative<RunSetup>(setup));
  return std::get<RunSetup>(setup).plan.reentrant;
}

}  // namespace

TEST_CASE("the Trainer's gradient checkpointing is reentrant before transformers 5, around the units of fsdp1") {
  for (const char* id : {"5049", "5053", "5057", "5066"}) {
    CAPTURE(std::string(id));
    CHECK(reentrant(row(id)));
  }
  CHECK_FALSE(reentrant(row("5051")));  // without FSDP
  PublishedRun run = row("5053");
  run.software = "torch 2.9, transformers 5.1.0, accelerate 1.12";
  CHECK_FALSE(reentrant(run));
  run = row("5053");
  run.notes += " use_reentrant=False";
  CHECK_FALSE(reentrant(run));
  run = row("5053");
  run.activation_checkpointing = "none";
  CHECK_FALSE(reentrant(run));
}
