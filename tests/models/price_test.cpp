// Prices as people write them, and what training costs then.
#include "models/price.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "models/catalog.h"

using namespace fsdp;

TEST_CASE("a price is a number, alone or with the word of its currency") {
  CHECK(parse_price("2.1", "t") == Price{2.1, ""});
  CHECK(parse_price("2.1 USD", "t") == Price{2.1, "USD"});
  CHECK(parse_price("98EUR", "t") == Price{98, "EUR"});
  CHECK(text_of({2.1, "USD"}) == "2.1 USD");
  CHECK(text_of({0.5, ""}) == "0.5");
}

TEST_CASE("what is no price is refused") {
  for (const char* text : {"",     " ",    "USD",  "-1",  "0",       "-0",       "0.0 USD",     "nan",
                           "inf",  "1e30", "1e2",  "2,1", "2.1 US$", "2.1  USD", "2.1 ",        "2.1 USDUSDUSD",
                           "2.1k", "5m",   "$2.1", "+2",  "0x10",    "2.1\n",    "999999999999"}) {
    CAPTURE(text);
    CHECK_THROWS_AS((void)parse_price(text, "t"), InputError);
  }
  for (const double value : {0.0, -2.0, std::nan(""), std::numeric_limits<double>::infinity(), 2e9})
    CHECK_THROWS_AS((void)checked_price(value, "t"), InputError);
}

TEST_CASE("the cost of a day and of tokens, by hand") {
  // 8 GPUs at 2.5 an hour: 20 an hour, 480 a day. 10^9 tokens at 100,000 a second take 10,000 s, 2.778 h: 55.56.
  const TrainingCost cost = training_cost({2.5, "EUR"}, 8, 100'000);
  CHECK(cost.per_day == doctest::Approx(480));
  CHECK(cost.per_billion_tokens == doctest::Approx(55.5556).epsilon(1e-5));
  CHECK(cost.gpus == 8);
}

TEST_CASE("where no tokens are trained, tokens have no cost") {
  for (const double none : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK_THROWS_AS((void)training_cost({1, ""}, 8, none), InputError);
}

TEST_CASE("money reads as such") {
  CHECK(money(0.07584, "") == "0.0758");
  CHECK(money(403.2, "USD") == "403 USD");
  CHECK(money(999.7, "") == "1,000");
  CHECK(money(12345.6, "USD") == "12,346 USD");
}

namespace {

ClusterSpec with_price(const std::string& price) {
  std::string text = cluster_file("dgx-h100");
  text.insert(text.find('{') + 1, "\"price\": " + price + ",");
  return cluster_from_json(text, "mine.json");
}

}  // namespace

TEST_CASE("a cluster file may state a price, which changes no digest") {
  CHECK(with_price("2.1").price == Price{2.1, ""});
  CHECK(with_price("\"2.1 USD\"").price == Price{2.1, "USD"});
  CHECK_FALSE(with_price("null").price);
  CHECK(with_price("2.1").digest() == cluster_from_json(cluster_file("dgx-h100"), "mine.json").digest());
  for (const char* bad : {"-1", "0", "1e400", "\"nan\"", "\"\"", "true", "[2.1]", "\"free\""}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)with_price(bad), InputError);
  }
}
