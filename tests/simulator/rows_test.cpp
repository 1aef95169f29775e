// Rows of records: what JSON and tables say about a key is read back as the same key, and nothing else is a key.
#include "simulator/records/rows.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "models/input/error.h"
#include "planner/breakdown.h"
#include "planner/verdict.h"
#include "simulator/records/measurement.h"

using namespace fsdp;

TEST_CASE("kinds of operations: every action, and every op that it computes, comes back from its text") {
  std::set<std::string> texts;
  const auto returns = [&](const ActionKey& key) {
    CAPTURE(text(key));
    CHECK(parse_action_key(text(key)) == key);
    CHECK(texts.insert(text(key)).second);  // no two keys share a text
  };
  for (int a = 0; a < kActions; ++a) {
    returns({static_cast<Action>(a)});
    for (int k = 0; k < kOpKinds; ++k) returns({static_cast<Action>(a), static_cast<OpKind>(k)});
  }
  for (const char* wrong : {"", "forwards", "forward ", "forward line", "forward linear ", " forward", "linear"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_action_key(wrong).has_value());
  }
}

TEST_CASE("units: index and modules come back from their text") {
  for (const UnitKey& key :
       {UnitKey{}, UnitKey{0, "root"}, UnitKey{12, "model.layers.1 and 2 more"}, UnitKey{3, "a)"}}) {
    CAPTURE(text(key));
    CHECK(parse_unit_key(text(key)) == key);
  }
  CHECK(text(UnitKey{3, "model.layers.1"}) == "unit 3 (model.layers.1)");
  for (const char* wrong : {"", "unit", "unit 3", "unit (a)", "unit 3 a", "unit -1 (a)", "unit 3x (a)", "unit 3 (a",
                            "unit 3 )", "unit 99999999999 (a)", "no unit "}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_unit_key(wrong).has_value());
  }
}

TEST_CASE("operations in order: stream, action and object come back from their text") {
  std::set<char> letters;
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    CHECK(letters.insert(letter(stream)).second);
    for (int a = 0; a < kActions; ++a)
      for (const char* object : {"", "mb 0", "unit 4 (model.layers.3) mb 0"}) {
        const OrderedOperation operation{stream, static_cast<Action>(a), object};
        CHECK(parse_ordered_operation(text(operation)) == operation);
      }
  }
  CHECK(text(OrderedOperation{Stream::all_gather, Action::all_gather, "unit 4 (a) mb 0"}) ==
        "G: all_gather unit 4 (a) mb 0");
  for (const char* wrong : {"", "G:", "G: ", "X: all_gather", "G all_gather", "G: gather unit 0"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_ordered_operation(wrong).has_value());
  }
}

TEST_CASE("a document with a word that names nothing is refused, with the field that holds it") {
  Measurement m;
  m.by_action = {{{Action::all_gather}, 1, 0.5}};
  RankMeasurement rank;
  rank.order = {{Stream::compute, Action::forward, "linear a op 0 mb 0"}};
  rank.by_unit = {{{0, "root"}, 0.5, 0}};
  m.ranks = {rank};
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    std::string document = to_json_text(m);
    const std::size_t at = document.find(from);
    REQUIRE(at != std::string::npos);
    document.replace(at, from.size(), to);
    CHECK_THROWS_WITH_AS((void)parse_measurement(document, "m.json"), doctest::Contains(words), InputError);
  };
  refused("\"what\":\"all_gather\"", "\"what\":\"all_gathers\"", "m.json: by_action[0].what: 'all_gathers' is no kind");
  refused("D: forward linear", "D: fward linear",
          "m.json: ranks[0].order: 'D: fward linear a op 0 mb 0' is no operation");
  refused("unit 0 (root)", "unit zero (root)", "m.json: ranks[0].by_unit[0].what: 'unit zero (root)' is no unit");
}

TEST_CASE("the parts of a breakdown: every member once, all names different, their sum is the total") {
  Breakdown b;
  std::set<std::string_view> keys, labels, nouns;
  double next = 1;
  for (const BreakdownPart& part : kBreakdownParts) {
    CHECK((b.*part.member).count() == 0);  // no member stands twice
    b.*part.member = Seconds(next);
    next *= 2;
    CHECK(keys.insert(part.key).second);
    CHECK(labels.insert(part.label).second);
    CHECK(nouns.insert(part.noun).second);
  }
  CHECK(total(b) == Seconds(next - 1));
  CHECK(exposed_communication(b) == b.exposed_all_gather + b.exposed_reduce_scatter + b.exposed_all_reduce);
}

TEST_CASE("verdicts have different words, best first") {
  CHECK(name(static_cast<Verdict>(0)) == "fits");
  CHECK(name(static_cast<Verdict>(1)) == "tight");
  CHECK(name(static_cast<Verdict>(2)) == "does not fit");
}
