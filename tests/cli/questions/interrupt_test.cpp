// Ctrl-C during a search: the answer is the best so far, and the exit code says that it was stopped.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/program.h"
#include "tests/cli/program_process.h"

using namespace fsdp::testing;
using nlohmann::json;
using std::chrono::milliseconds;

namespace {

// Interrupts the program in the middle of its search: sooner where it had ended, later where it had not begun to
// listen.
Ended interrupted(const RunFolder& folder, const std::vector<std::string>& words) {
  milliseconds wait(800);
  for (int tries = 0; tries < 12; ++tries) {
    const pid_t child = folder.start(words);
    std::this_thread::sleep_for(wait);
    ::kill(child, SIGINT);
    Ended e = folder.wait(child);
    if (e.exit == 4) return e;
    CAPTURE(e.said);
    CHECK((e.exit == 0 || e.signal == SIGINT));
    wait = e.exit == 0 ? wait / 2 : wait * 2;
  }
  FAIL("the signal never came during the search");
  return {};
}

}  // namespace

TEST_CASE("an interrupted search answers with the best plan so far and how far it can be from the best") {
  const RunFolder folder;
  const std::vector<std::string> target = {"--model", "llama3-8b", "--cluster", "dgx-h100"};
  // The script goes to standard output, and so the answer to standard error.
  const Ended e =
      interrupted(folder, with(with({"plan"}, target), {"--gpus", "64", "--seq-len", "8k", "--global-batch-tokens",
                                                        "4M", "-o", "plan.json", "--emit", "pytorch"}));
  CHECK_MESSAGE(e.said.find("SIGINT ended the search, and another plan may be better") != std::string::npos, e.said);
  CHECK_MESSAGE(e.said.find("Certificate: within ") != std::string::npos, e.said);
  // It is a plan that keeps to what was asked for, and that fits as the answer says.
  const json plan = json::parse(text_of(folder.path() / "plan.json"));
  double sequences = 0;
  for (const json& size : plan["micro_batches"]) sequences += size.get<double>();
  CHECK(sequences * 64 * 8192 == 4 * 1024 * 1024);
  const pid_t again =
      folder.start(with(with({"simulate", "--plan", "plan.json", "-o", "prediction.json"}, target), {}));
  CHECK(folder.wait(again).exit == 0);
}

TEST_CASE("an interrupted sweep has the rows that were searched") {
  const RunFolder folder;
  (void)interrupted(folder, {"plan", "--model", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "8,16,32,64,128",
                             "--seq-len", "8k", "--csv", "rows.csv"});
  const std::string csv = text_of(folder.path() / "rows.csv");
  const auto lines = std::count(csv.begin(), csv.end(), '\n');
  CHECK(lines >= 1);
  CHECK(lines < 6);
}
