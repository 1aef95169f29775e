// An integer program of the choice that the certificate relaxes, solved by a program that others wrote: GLPK's glpsol,
// or CBC. One way for each block, with the costs of the real cost model, under a limit on what all of them hold.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "models/catalog.h"
#include "planner/bound/mixture.h"
#include "planner/bound/reference.h"
#include "planner/search/plan_choices.h"
#include "simulator/predict.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

// The file format that both read. Bytes are written in MiB: solvers compare with absolute tolerances.
std::string program_of(const std::vector<std::vector<Way>>& blocks, double room) {
  std::string cost, one, held, names;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    one += fmt::format(" one{}:", b);
    for (std::size_t w = 0; w < blocks[b].size(); ++w) {
      const std::string x = fmt::format("x{}_{}", b, w);
      cost += fmt::format(" + {:.17g} {}\n", 1e3 * blocks[b][w].seconds, x);
      held += fmt::format(" + {:.17g} {}\n", blocks[b][w].bytes / 1048576, x);
      one += " + " + x;
      names += " " + x + "\n";
    }
    one += " = 1\n";
  }
  return "Minimize\n cost:\n" + cost + "Subject To\n" + one + " room:\n" + held +
         fmt::format(" <= {:.17g}\n", room / 1048576) + "Binary\n" + names + "End\n";
}

bool found(const char* program) {
  return std::system(fmt::format("command -v {} >/dev/null 2>&1", program).c_str()) == 0;
}

class Solver {
 public:
  Solver() : folder_(std::filesystem::temp_directory_path() / fmt::format("integer_program.{}", getpid())) {
    std::filesystem::create_directory(folder_);
    glpk_ = found("glpsol");
    if (!glpk_ && !found("cbc")) missing_ = true;
  }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
  ~Solver() { std::filesystem::remove_all(folder_); }
  [[nodiscard]] bool missing() const { return missing_; }

  // The least seconds; with fractions of ways, or without. Negative: there is no solution.
  [[nodiscard]] double least(const std::string& program, bool fractions) const {
    const std::string in = folder_ / "program.lp", out = folder_ / "solution";
    std::ofstream(in) << program;
    const std::string call =
        glpk_ ? fmt::format("glpsol --lp {} {} --tmlim 60 -o {}", in, fractions ? "--nomip" : "", out)
              : fmt::format("cbc {} {} -solu {}", in, fractions ? "-initialSolve" : "-ratio 0 -solve", out);
    REQUIRE(std::system((call + " >/dev/null 2>&1").c_str()) == 0);
    std::ifstream file(out);
    std::stringstream text;
    text << file.rdbuf();
    const std::string answer = text.str(), word = glpk_ ? "cost = " : "objective value";
    REQUIRE(answer.find(word) != std::string::npos);
    if (answer.find("INFEASIBLE") != std::string::npos || answer.find("EMPTY") != std::string::npos ||
        answer.find("UNDEFINED") != std::string::npos || answer.find("nfeasible") != std::string::npos)
      return -1;
    REQUIRE(answer.find(glpk_ ? "OPTIMAL" : "Optimal") != std::string::npos);
    return 1e-3 * std::stod(answer.substr(answer.find(word) + word.size()));
  }

 private:
  std::filesystem::path folder_;
  bool glpk_ = false, missing_ = false;
};

// Of each block: recomputed by one of the policies, and gathered again for backward or kept.
std::vector<std::vector<Way>> ways_of_blocks(const char* cluster_name, std::int64_t gpus, const ModelGraph& model,
                                             double gathers_weigh) {
  const ClusterSpec cluster = load_cluster(cluster_name, gpus);
  const Costs costs = default_costs(cluster);
  const Implementation& implementation = find_implementation("torchtitan", false, "test");
  SearchOptions options = search_of({}, model, {.ranks = gpus, .seq_len = 2048});
  options.selective_op = true;
  const Space space = space_of(model, cluster, options);
  const PricedSpace priced{space, model, implementation, cluster, costs};
  const ShardingParts sharding = sharding_parts(1, 0, default_memory_limit(cluster), priced);
  std::vector<std::vector<Way>> blocks(sharding.blocks.size());
  for (const char* policy : {"none", "selective-op", "class:LlamaMLP", "full"}) {
    Design d = first_design(space);
    d.batch = {2, 1};
    const ComputeParts parts = compute_parts(d, policy, priced);
    REQUIRE(parts.blocks.size() == blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const double kernels = parts.blocks[b].kernels.seconds(), gather = gathers_weigh * sharding.blocks[b].all_gather;
      const auto saved = static_cast<double>(parts.blocks[b].saved),
                 whole = static_cast<double>(sharding.blocks[b].whole);
      blocks[b].push_back({kernels + 2 * gather, saved});
      blocks[b].push_back({kernels + gather, saved + whole});
    }
  }
  return blocks;
}

// Does the solver agree with ours on these blocks, under limits from the least that they can hold to the most?
void agree(const Solver& solver, const std::vector<std::vector<Way>>& blocks) {
  std::vector<Alike> ours;
  double least = 0, most = 0, one_block = 0;
  for (const std::vector<Way>& ways : blocks) {
    ours.push_back({ways, 1});
    const auto [small, large] =
        std::minmax_element(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.bytes < b.bytes; });
    const auto [fast, slow] =
        std::minmax_element(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.seconds < b.seconds; });
    least += small->bytes, most += large->bytes;
    one_block = std::max(one_block, slow->seconds - fast->seconds);
  }
  for (const double part : {0.0, 0.05, 0.2, 0.37, 0.5, 0.71, 0.9, 1.0}) {
    CAPTURE(part);
    const double room = least + part * (most - least) + 1;  // a byte, for what doubles cannot say
    const double relaxed = least_within(ours, room);
    const std::string program = program_of(blocks, room);
    CHECK(solver.least(program, true) == doctest::Approx(relaxed).epsilon(1e-6));
    const double whole = solver.least(program, false);
    CHECK(whole >= relaxed * (1 - 1e-6));
    CHECK(whole <= relaxed + one_block * (1 + 1e-6));  // one block at most is split on the way from one to the other
  }
  const std::string none = program_of(blocks, 0.9 * least);
  CHECK(least_within(ours, 0.9 * least) == std::numeric_limits<double>::infinity());
  CHECK(solver.least(none, false) < 0);
}

}  // namespace

TEST_CASE("what the certificate relaxes is what an independent solver finds, and whole blocks cost one block more") {
  const Solver solver;
  if (solver.missing()) {
    MESSAGE("skipped: no glpsol (Debian: glpk-utils) and no cbc (coinor-cbc)");
    return;
  }
  const ModelGraph model =
      small_llama({.layers = 8, .vocab = 4096, .hidden = 2048, .inner = 6144, .heads = 16, .kv_heads = 8});
  SUBCASE("8 H100") { agree(solver, ways_of_blocks("dgx-h100", 8, model, 0.1)); }
  SUBCASE("16 A100, gathers weigh much") { agree(solver, ways_of_blocks("dgx-a100-40", 16, model, 0.6)); }
  SUBCASE("blocks that differ, drawn at random") {
    std::mt19937_64 random(5);
    std::uniform_real_distribution<double> any(0.5, 2);
    std::vector<std::vector<Way>> blocks = ways_of_blocks("dgx-h100", 8, model, 0.3);
    for (std::vector<Way>& ways : blocks)
      for (Way& w : ways) w.seconds *= any(random), w.bytes *= any(random);
    agree(solver, blocks);
  }
}
