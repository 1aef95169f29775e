// Retries near the limit, against published runs. Where the replay says that the allocator stops in every step, runs
// take longer by about that; where it does not, they take what is predicted, also those that reserve more than there is
// without a limit.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "simulator/published/accuracy.h"
#include "simulator/published/run_setup.h"

using namespace fsdp;

namespace {

struct Found {
  std::string source, model;
  double stops_s = 0, measured_s = 0, predicted_s = 0;  // predicted: without the stops
  [[nodiscard]] double missing_s() const { return measured_s - predicted_s; }
};

const std::map<std::string, Found>& all_runs() {
  static const std::map<std::string, Found> runs = [] {
    std::map<std::string, Found> found;
    KnownStops known;
    std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/published_runs.csv", std::ios::binary);
    RunReader reader(file, "published_runs.csv");
    std::optional<PublishedRun> run;
    RefusedRow refused;
    while (reader.next(run, refused)) {
      if (!run) continue;
      auto setup = set_up(*run, "test");
      if (!std::holds_alternative<RunSetup>(setup)) continue;
      const PreparedRun p = prepare(std::get<RunSetup>(std::move(setup)), known);
      const auto measured = measured_step_time(*run, p.setup.plan);
      if (!measured) continue;
      const double predicted = predict_step_time(p, default_costs(p.setup.cluster)).count() - p.stops.count();
      found[run->id] = {run->source, run->model, p.stops.count(), *measured, predicted};
    }
    return found;
  }();
  return runs;
}

}  // namespace

TEST_CASE("of all published runs those stop that take far longer than their kernels, and no others but one") {
  // The time of a stop is from these: MPT-760m in mosaicml/examples, 16 micro-batches of 16,384 tokens on 40 GB, and
  // three runs of Modalities on 64 GB.
  const std::set<std::string> known = {"915", "920", "927", "928", "929", "930",  "931",  "932", "933",
                                       "934", "935", "936", "937", "938", "1351", "1357", "1473"};
  // Recomputed under PyTorch 1.12 and 1.13, nothing fitted to them: MPT-7b and MPT-13b on 40 GB, MPT-30b on 80 GB.
  std::set<std::string> expected = {"144", "149", "151", "242", "247", "249", "605",
                                    "847", "848", "849", "850", "855", "858"};
  expected.insert(known.begin(), known.end());
  expected.insert("403");  // 247 again, half a year later, which did not stop: unexplained
  expected.erase("1473");  // stopped until second rounds of its products were shorter: some MiB decide
  std::set<std::string> stop;
  for (const auto& [id, f] : all_runs())
    if (f.stops_s > 0) stop.insert(id);
  CHECK(stop == expected);
  for (const std::string& id : stop) {
    const Found& f = all_runs().at(id);
    MESSAGE(fmt::format("{} {}: measured {:.2f} s, predicted {:.2f} s and {:.2f} s of stops", id, f.model, f.measured_s,
                        f.predicted_s, f.stops_s));
    CAPTURE(id);
    if (id == "403") continue;
    // 0.3 until products waited for the slowest GPU, which took 1 % off what these miss.
    if (known.count(id) == 1) CHECK(f.missing_s() > 0.29 * f.predicted_s * (f.source.starts_with("mosaicml") ? 2 : 1));
    CHECK(f.missing_s() > 0.35 * f.stops_s);  // a stop takes 0.4 to 1.4 s, 0.8 is what is likely
    CHECK(f.missing_s() < 1.75 * f.stops_s);
  }
}

TEST_CASE("others of the same source that take more than a quarter longer than predicted are known by number") {
  std::set<std::string> slow;
  for (const auto& [id, f] : all_runs())
    if (f.stops_s == 0 && f.missing_s() > 0.25 * f.predicted_s && f.source.starts_with("mosaicml/examples"))
      slow.insert(id);
  CHECK(slow == std::set<std::string>{"1001", "1016", "1032"});  // single runs, beside equal ones that are not slow
}
