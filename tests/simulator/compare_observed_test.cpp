// A measurement of PyTorch says what it could see: the rest is not compared, and what is compared can fail.
#include <doctest/doctest.h>

#include "models/input/error.h"
#include "simulator/records/compare.h"

using namespace fsdp;

namespace {

// Host order: gather, copy-out, forward, gather, copy-out, forward. `order` lists stream by stream.
Prediction prediction() {
  Prediction p;
  p.provenance = {"toy", "m1", "p1", "dgx-h100", "c1", "k1", "hf", "i1", "fsdp2"};
  p.ranks = p.roles = 1;
  p.step_time = Seconds(0.1);
  p.order = {{Stream::compute, Action::gather_copy_out, "unit 0 (a) mb 0"},
             {Stream::compute, Action::forward, "a mb 0"},
             {Stream::compute, Action::gather_copy_out, "unit 1 (root) mb 0"},
             {Stream::compute, Action::forward, "b mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 0 (a) mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 1 (root) mb 0"}};
  p.issued = {-1, 4, 0, 1, 5, 2, 3};
  p.memory.steady_step = {{{100, 100}, {150, 150}, {200, 150}, {400, 300}, {350, 350}, {500, 350}, {1000, 100}}, 100};
  p.memory.peak = 1000;
  p.peak_allocated = Bytes(1000);
  return p;
}

// Collectives and copies in host order, with the bytes at each.
Measurement measured() {
  Measurement m;
  m.provenance = prediction().provenance;
  m.observed = {"all_gather", "gather_copy_out", "memory"};
  RankMeasurement r;
  r.order = {{Stream::all_gather, Action::all_gather, "unit 0 (a) mb 0"},
             {Stream::compute, Action::gather_copy_out, "unit 0 (a) mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 1 (root) mb 0"},
             {Stream::compute, Action::gather_copy_out, "unit 1 (root) mb 0"}};
  r.moments = {150, 200, 350, 500};
  r.peak_allocated_bytes = 1000;
  m.ranks = {r};
  return m;
}

bool mentions(const std::vector<std::string>& texts, const std::string& words) {
  for (const std::string& text : texts)
    if (text.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("what was observed is equal, and what was not is named") {
  const ValidationReport r = compare(prediction(), measured());
  CHECK(r.differences.empty());
  CHECK(r.within);
  CHECK(r.order_equal);
  CHECK(r.memory_equal);
  CHECK(r.memory_compared);
  CHECK_FALSE(r.time_compared);
  CHECK(r.peak.error() == 0);
  CHECK(mentions(r.not_compared, "step time"));
  CHECK(mentions(r.not_compared, "kernels"));
}

TEST_CASE("the order is the host's: a gather that is issued before the copy-out of the unit before it") {
  Measurement m = measured();
  std::swap(m.ranks[0].order[1], m.ranks[0].order[2]);  // the same within each stream
  const ValidationReport r = compare(prediction(), m);
  CHECK_FALSE(r.order_equal);
  CHECK_FALSE(r.within);
  CHECK(mentions(r.differences,
                 "position 1 of what was observed: predicted 'D: gather_copy_out unit 0 (a) mb 0', "
                 "executed 'G: all_gather unit 1 (root) mb 0'"));
}

TEST_CASE("an operation more or less is a difference, and memory by moment is then not compared") {
  Measurement m = measured();
  m.ranks[0].order.pop_back();
  m.ranks[0].moments.pop_back();
  ValidationReport r = compare(prediction(), m);
  CHECK_FALSE(r.order_equal);
  CHECK(mentions(r.differences, "executed nothing"));
  CHECK(mentions(r.not_compared, "memory by moment of rank 0"));
  m = measured();
  m.ranks[0].order.push_back({Stream::reduce_scatter, Action::reduce_scatter, "unit 0 (a) mb 0"});
  m.ranks[0].moments.push_back(0);
  CHECK(mentions(compare(prediction(), m).differences, "predicted nothing"));
}

TEST_CASE("memory at a moment differs from 1 % of the peak on; that of an all-gather is not compared") {
  Measurement m = measured();
  m.ranks[0].moments[1] += 10;
  CHECK(compare(prediction(), m).within);
  m.ranks[0].moments[1] += 1;
  const ValidationReport r = compare(prediction(), m);
  CHECK_FALSE(r.memory_equal);
  CHECK_FALSE(r.within);
  CHECK(mentions(r.differences, "at 'D: gather_copy_out unit 0 (a) mb 0': predicted 200 B allocated, measured 211 B"));
  m = measured();
  m.ranks[0].moments[0] += 500;
  CHECK(compare(prediction(), m).within);
  m.ranks[0].peak_allocated_bytes = 980;  // predicted 2 % too high
  CHECK_FALSE(compare(prediction(), m).within);
}

TEST_CASE("a shard group of one rank casts and copies one after the other: a copy-out lies between both ends of it") {
  const auto alone = [](std::int64_t bytes) {
    Prediction p = prediction();
    p.order[4].action = p.order[5].action = Action::cast_shard;
    p.order[4].stream = p.order[5].stream = Stream::compute;
    Measurement m = measured();
    m.observed = {"gather_copy_out", "memory"};
    m.ranks[0].order = {m.ranks[0].order[1], m.ranks[0].order[3]};
    m.ranks[0].moments = {200, bytes};
    return compare(p, m);
  };
  CHECK(alone(500).within);  // as predicted
  CHECK(alone(360).within);  // predicted 350 when the casts are gone
  CHECK_FALSE(alone(339).memory_equal);
  CHECK_FALSE(alone(511).memory_equal);
}

TEST_CASE("times that are said to be observed must be there, of every rank") {
  Measurement m = measured();
  m.observed.push_back("collective_times");
  CHECK_THROWS_AS((void)compare(prediction(), m), InputError);
  m.ranks[0].profiled.emplace();
  CHECK(compare(prediction(), m).within);
  CHECK_FALSE(mentions(compare(prediction(), m).not_compared, "times of collectives"));
  CHECK(mentions(compare(prediction(), measured()).not_compared, "times of collectives"));
}

TEST_CASE("the peak is that of a step up to its optimizer, as recorded") {
  Prediction p = prediction();
  p.order.push_back({Stream::compute, Action::optimizer, "unit 0 (a)"});
  p.issued.push_back(6);
  p.memory.steady_step.points.push_back({1500, 100});
  p.memory.peak = 1500;
  CHECK(compare(p, measured()).peak.predicted == 1000);
  CHECK(compare(p, measured()).within);
}

TEST_CASE("what was not observed is never called equal, and memory needs its moments") {
  Measurement m = measured();
  m.observed = {"step_time"};
  m.median_step_seconds = 0.1;
  m.ranks[0].order.clear();
  m.ranks[0].moments.clear();
  const ValidationReport r = compare(prediction(), m);
  CHECK_FALSE(r.order_compared);
  CHECK(mentions(r.not_compared, "order: the measurement observed no operation"));
  m = measured();
  m.ranks[0].moments.clear();
  CHECK_THROWS_WITH_AS((void)compare(prediction(), m), doctest::Contains("moments_bytes"), InputError);
  m.ranks.clear();
  CHECK_THROWS_WITH_AS((void)compare(prediction(), m), doctest::Contains("ranks"), InputError);
}

TEST_CASE("a step time is compared where it was observed") {
  Measurement m = measured();
  m.observed.push_back("step_time");
  m.median_step_seconds = 0.1;
  CHECK(compare(prediction(), m).within);
  m.median_step_seconds = 0.2;
  const ValidationReport r = compare(prediction(), m);
  CHECK(r.time_compared);
  CHECK_FALSE(r.within);
}

TEST_CASE("ranks that were not recorded, unknown things and predictions of earlier versions") {
  Prediction p = prediction();
  p.ranks = 2;
  CHECK(mentions(compare(p, measured()).differences, "1 ranks were measured, the plan has 2"));
  Measurement m = measured();
  m.observed.push_back("kernels");
  CHECK_THROWS_WITH_AS((void)compare(prediction(), m), doctest::Contains("'kernels' is nothing that is compared"),
                       InputError);
  p = prediction();
  p.issued.clear();
  CHECK_THROWS_WITH_AS((void)compare(p, measured()), doctest::Contains("predict again"), InputError);
  m = measured();
  m.provenance.implementation = "native";
  CHECK_THROWS_WITH_AS((void)compare(prediction(), m), doctest::Contains("--implementation native"), InputError);
}

TEST_CASE("both records keep what this needs") {
  const Measurement m = parse_measurement(to_json_text(measured()), "m.json");
  CHECK(m.observed == measured().observed);
  CHECK(m.ranks[0].moments == measured().ranks[0].moments);
  CHECK(m.ranks[0].order == measured().ranks[0].order);
}

TEST_CASE("collectives over tensor ranks are compared by kind and micro-batch, between those of units") {
  Prediction p = prediction();
  p.order.push_back({Stream::tensor, Action::reduce_scatter, "redistribute layers.0.mlp op 14 mb 0"});
  p.issued[3] = 6;  // in the place of the forward of a
  Measurement m = measured();
  m.observed.push_back("reduce_scatter");
  m.ranks[0].order.insert(m.ranks[0].order.begin() + 2, {Stream::tensor, Action::reduce_scatter, "tensor ranks mb 0"});
  m.ranks[0].moments.insert(m.ranks[0].moments.begin() + 2, 400);
  CHECK(compare(p, m).within);
  Measurement other = m;
  other.ranks[0].order[2].object = "tensor ranks mb 1";
  CHECK_FALSE(compare(p, other).order_equal);
  other = m;
  std::swap(other.ranks[0].order[1], other.ranks[0].order[2]);
  CHECK_FALSE(compare(p, other).order_equal);
  other = m;
  other.ranks[0].moments[2] = 700;
  CHECK_FALSE(compare(p, other).memory_equal);
  // Within the loss, memory is not compared.
  p.order.back().object = "cross_entropy loss op 20 mb 0";
  CHECK(compare(p, other).memory_equal);
  CHECK(mentions(compare(p, other).not_compared, "the loss of split logits"));
}
