// plan over several clusters, numbers of GPUs and sequences: each row is what `plan` says of it by itself, and the best
// is first.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/json_answer.h"

using fsdp::testing::Answer;
using fsdp::testing::parsed;
using fsdp::testing::Program;
using fsdp::testing::says;
using nlohmann::json;

namespace {

const std::string kSmall = "fsdp-plan plan --model qwen3-0.6b --search uniform --wrap block ";

std::string of_row(const json& row) {
  return "--cluster " + row["cluster"].get<std::string>() + " --gpus " + row["gpus"].dump() + " --seq-len " +
         row["seq_len"].dump();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<double> values(const json& rows, const std::string& key) {
  std::vector<double> found;
  for (const json& row : rows)
    if (row.contains("plan")) found.push_back(row.at(json::json_pointer(key)).get<double>());
  return found;
}

}  // namespace

TEST_CASE("each row of a sweep is what plan says of its cluster, GPUs and sequence by itself") {
  const Program program;
  const json swept = parsed(program.run(
      kSmall + "--cluster dgx-h100,p4d --gpus 4,8,12 --seq-len 2k,8192 --price dgx-h100=2.5USD,p4d=1.25USD --json"));
  CHECK(swept["schema"] == "fsdp-plan/sweep/1");
  CHECK(swept["asked"] == 12);
  CHECK(swept["sorted_by"] == "cost");
  const json& rows = swept["rows"];
  REQUIRE(rows.size() == 12);
  int refused = 0;
  for (const json& row : rows) {
    CAPTURE(of_row(row));
    const std::string price = row["cluster"] == "p4d" ? "1.25USD" : "2.5USD";
    const Answer alone = program.run(kSmall + of_row(row) + " --price " + price + " --json=brief");
    if (row["verdict"] == "refused") {
      ++refused;
      CHECK(row["gpus"] == 12);
      CHECK(alone.code == 2);
      CHECK(alone.err == "fsdp-plan: " + row["why_none"].get<std::string>() + "\n");
      continue;
    }
    const json plan = parsed(alone), prediction = plan["prediction"];
    CHECK(row["verdict"] == plan["verdict"]);
    CHECK(row["plan"] == plan["plan"]);
    for (const char* key : {"step_time_s", "tokens_per_s", "mfu", "peak_total_bytes"})
      CHECK(row[key] == prediction[key]);
    CHECK(row["cost"]["per_1e9_tokens"] == prediction["cost"]["per_1e9_tokens"]);
    CHECK(row["cost"]["currency"] == "USD");
    CHECK(row["tokens_per_s_per_gpu"].get<double>() ==
          doctest::Approx(row["tokens_per_s"].get<double>() / row["gpus"].get<double>()));
  }
  CHECK(refused == 4);
  const std::vector<double> costs = values(rows, "/cost/per_1e9_tokens");
  CHECK(std::is_sorted(costs.begin(), costs.end()));
  CHECK(costs.front() < costs.back());
}

TEST_CASE("rows are sorted by what is asked for, and the first line says which is best") {
  const Program program;
  const std::string call = kSmall + "--cluster p4d,dgx-h100 --gpus 4,8 --seq-len 4k ";
  const auto rows_by = [&](const std::string& flags) { return parsed(program.run(call + flags + " --json"))["rows"]; };
  for (const auto& [flags, key] :
       {std::pair{"", "/tokens_per_s"}, {"--sort tokens-per-s-per-gpu", "/tokens_per_s_per_gpu"}}) {
    std::vector<double> found = values(rows_by(flags), key);
    REQUIRE(found.size() == 4);
    CHECK(std::is_sorted(found.rbegin(), found.rend()));
  }
  const json given = rows_by("--sort given");
  CHECK(given[0]["cluster"] == "p4d");
  CHECK(given[1]["gpus"] == 8);
  CHECK(given[3]["cluster"] == "dgx-h100");
  // A dear fast cluster and a cheap slow one: speed and cost do not agree.
  const std::string prices = "--price dgx-h100=20,p4d=1";
  const Answer cheap = program.run(call + prices), fast = program.run(call + prices + " --sort tokens-per-s");
  CHECK_MESSAGE(cheap.out.starts_with("Cheapest: "), cheap.out);
  CHECK(says(cheap.out.substr(0, cheap.out.find(':') + 30), "p4d"));
  CHECK_MESSAGE(fast.out.starts_with("Fastest: 8 GPUs of dgx-h100, 4,096 tokens per sequence: "), fast.out);
  // What it says to do next gives that plan.
  const std::size_t next = fast.out.find("next: `");
  REQUIRE(next != std::string::npos);
  const std::string command = fast.out.substr(next + 7, fast.out.rfind('`') - next - 7);
  const Answer kept = program.run(command);
  CHECK_MESSAGE(kept.code == 0, kept.err);
  REQUIRE(program.run(call + prices + " --sort tokens-per-s -o best.json").code == 0);
  CHECK(program.run("cmp plan.json best.json").code == 0);
}

TEST_CASE("a row that does not fit says what is missing, and the answer is no only where none fits") {
  const Program program;
  const std::string call = "fsdp-plan plan --model llama3-8b --seq-len 8k --search uniform --gpus 1,8 --cluster ";
  const Answer some = program.run(call + "dgx-h100 --json");
  const json rows = parsed(some)["rows"];
  CHECK(some.code == 0);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["gpus"] == 8);
  CHECK(rows[1]["verdict"] == "does not fit");
  const json alone =
      parsed(program.run("fsdp-plan plan --model llama3-8b --search uniform " + of_row(rows[1]) + " --json=brief"));
  CHECK(rows[1]["missing_bytes"].get<double>() ==
        alone["least"]["peak_total_bytes"].get<double>() - rows[1]["memory_limit_bytes"].get<double>());
  CHECK(rows[1]["why_none"] == alone["why_none"]);
  // As given, the first row need not be one that fits.
  const Answer given = program.run(call + "dgx-h100 --sort given -o first.json");
  CHECK(given.code == 0);
  CHECK_MESSAGE(says(given.out, "first.json holds the plan for 8 GPUs of dgx-h100, 8,192 tokens per sequence."),
                given.out);
  CHECK(json::parse(program.text_of("first.json")) == rows[0]["plan"]);
  const Answer none = program.run(call + "dgx-h100 --memory-limit 8GiB");
  CHECK(none.code == 1);
  CHECK_MESSAGE(none.out.starts_with("Nothing fits in any of 2 combinations.\n"), none.out);
  CHECK(says(none.out, " are missing for "));
}

TEST_CASE("comma-separated values hold what JSON does, each row with all columns") {
  const Program program;
  const std::string call = kSmall + "--cluster dgx-h100 --gpus 8,12 --seq-len 4k --price 2 --sort given ";
  const Answer answer = program.run(call + "--json --csv plans.csv");
  const json rows = parsed(answer)["rows"];
  const std::string text = program.text_of("plans.csv");
  const std::vector<std::string> lines = lines_of(text);
  REQUIRE(lines.size() == 3);
  CHECK(std::count(lines[0].begin(), lines[0].end(), ',') == 13);
  CHECK(lines[1].starts_with("dgx-h100,8,4096,fits," + rows[0]["step_time_s"].dump() + "," +
                             rows[0]["tokens_per_s"].dump()));
  CHECK(says(lines[1],
             "," + rows[0]["cost"]["per_1e9_tokens"].dump() + ",,\"" + rows[0]["label"].get<std::string>() + "\","));
  CHECK_MESSAGE(lines[2].starts_with("dgx-h100,12,4096,refused,,,,,,,,,,"), lines[2]);
  // On standard output alone: the table goes to standard error.
  const Answer printed = program.run(call + "--csv -");
  CHECK(printed.out == text);
  CHECK(says(printed.err, "plan, or what is missing"));
}

TEST_CASE("--max of several clusters is answered for each") {
  const Program program;
  const std::string call =
      kSmall + "--gpus 1 --seq-len 4k --activation-checkpointing none --max micro-batch --cluster ";
  const json rows = parsed(program.run(call + "dgx-a100-40,dgx-h100 --sort given --json"))["rows"];
  for (const json& row : rows)
    CHECK(row["plan"]["micro_batches"][0] ==
          parsed(program.run(call + row["cluster"].get<std::string>() + " --json=brief"))["size_question"]["answer"]);
  CHECK(rows[0]["plan"]["micro_batches"][0] < rows[1]["plan"]["micro_batches"][0]);
}

TEST_CASE("lists and prices that are none are refused in a sentence, before any search") {
  const Program program;
  const std::string call = "fsdp-plan plan --model llama3.1-405b --seq-len 8k ";
  for (const auto& [flags, said] :
       {std::pair<std::string, std::string>{"--cluster dgx-h100,p4d --price 2",
                                            "--price: is one price, but there are 2 clusters"},
        {"--cluster dgx-h100,p4d --price dgx-h100=2", "--price: has none for p4d"},
        {"--cluster dgx-h100,p4d --price dgx-h100=2,p4d=1,p5=3", "--price: 'p5' is none of the clusters"},
        {"--cluster dgx-h100,p4d --price dgx-h100=2,p4d=1,p4d=2", "--price: has two prices for 'p4d'"},
        {"--cluster dgx-h100,p4d --price dgx-h100=2,p4d", "--price: 'p4d' is no cluster with its price"},
        {"--cluster dgx-h100,p4d --price dgx-h100=2,p4d=-1", "--price: "},
        {"--cluster dgx-h100 --price p4d=1", "--price: has none for dgx-h100"},
        {"--cluster dgx-h100,p4d --sort cost", "--sort: cost: no price is known of dgx-h100"},
        {"--cluster dgx-h100,p4d --sort cost --price dgx-h100=2USD,p4d=1EUR",
         "--sort: cost: the prices are in several"},
        {"--cluster dgx-h100,p4d --sort speed", "--sort: 'speed' is nothing to sort by"},
        {"--cluster dgx-h100,,p4d", "--cluster: has an empty value"},
        {"--cluster dgx-h100,dgx-h100", "--cluster: lists 'dgx-h100' twice"},
        {"--cluster dgx-h100,dgx-h900", "--cluster: \"dgx-h900\" is not in the catalog"},
        {"--cluster dgx-h100 --gpus 8,16,-3", "--gpus: '-3' is too small"},
        {"--cluster dgx-h100 --gpus 8,", "--gpus: has an empty value"},
        {"--cluster dgx-h100,p4d --emit pytorch", "--emit: is of one plan"},
        {"--cluster dgx-h100,p4d --report a.html", "--report: is of one plan"},
        {"--cluster dgx-h100,p4d --csv - --json", "--csv: - and --json both print"},
        {"--cluster dgx-h100,p4d --csv nowhere/a.csv", "nowhere/a.csv: cannot be written"},
        {"--gpus 8,16", "--cluster: is missing"}}) {
    CAPTURE(flags);
    const Answer answer = program.run(call + flags);
    CHECK(answer.code == 2);
    CHECK_MESSAGE(says(answer.err, said), answer.err);
    CHECK(std::count(answer.err.begin(), answer.err.end(), '\n') == 1);
    CHECK(answer.out.empty());
  }
  CHECK(says(program.run(call + "--cluster dgx-h100 --seq-len 4k,4096").err, "--seq-len"));  // given twice
  const Answer same = program.run("fsdp-plan plan --model tiny-llama --cluster dgx-h100 --seq-len 4k,4096");
  CHECK_MESSAGE(says(same.err, "--seq-len: lists '4096' twice"), same.err);
  // Not even the model is looked at.
  const Answer many = program.run(
      "fsdp-plan plan --model absent --cluster dgx-h100 --gpus $(seq -s, 1 1000) --seq-len $(seq -s, 1 1000)");
  CHECK(many.code == 2);
  CHECK_MESSAGE(says(many.err, "are 1,000,000 combinations, more than 1,000"), many.err);
}
