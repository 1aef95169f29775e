#include "models/units.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "models/dtype.h"
#include "models/input/counted.h"
#include "models/input/digest.h"
#include "models/input/error.h"

using namespace fsdp;

TEST_CASE("sizes, rates and times carry their unit") {
  CHECK(parse_bytes("80GiB", "t").count() == 85'899'345'920);
  CHECK(parse_bytes("80GB", "t").count() == 80'000'000'000);
  CHECK(parse_bytes("0B", "t").count() == 0);
  CHECK(parse_bytes("1.5KiB", "t").count() == 1536);
  CHECK(parse_bytes("9223372036854775807B", "t").count() == std::numeric_limits<std::int64_t>::max());
  CHECK(parse_bytes("80 GiB", "t") == parse_bytes("80GiB", "t"));
  CHECK(parse_rate("12 GB/s", "t").count() == 12e9);
  CHECK(parse_seconds("5 s", "t").count() == 5);
  CHECK(parse_rate("400Gb/s", "t").count() == 5e10);
  CHECK(parse_rate("3.35TB/s", "t").count() == 3.35e12);
  CHECK(parse_flops_rate("989TFLOP/s", "t").count() == 989e12);
  CHECK(parse_seconds("3.4us", "t").count() == 3.4e-6);
  CHECK(parse_seconds("1.5ms", "t").count() == 1.5e-3);
  CHECK(parse_long_time("5us", "t").count() == 5e-6);
  CHECK(parse_long_time("90min", "t").count() == 5400);
  CHECK(parse_long_time("1.5 h", "t").count() == 5400);
  CHECK(parse_long_time("2d", "t").count() == 172'800);
  CHECK((Bytes(100) / BytesPerSecond(50)).count() == 2.0);
  CHECK((Flops(100) / FlopsPerSecond(50)).count() == 2.0);
}

TEST_CASE("anything but a number and its unit is refused, naming the field") {
  for (const char* text : {"",       "80",     "GiB",   "80  GiB", " 80GiB",         "80GiB ",
                           "-1GiB",  "+1GiB",  "80gib", "80Gb",    "80GB/s",         "1e999GiB",
                           "nanB",   "infB",   "0x10B", "8EiB",    "99999999999TiB", "9223372036854775808B",
                           "1,5GiB", "80GiB\n"}) {
    CAPTURE(text);
    CHECK_THROWS_AS((void)parse_bytes(text, "f: memory"), InputError);
  }
  for (const char* text : {"450", "450GB", "450 GB/ s", "450GiB/s", "-1GB/s", "1e400GB/s", "GB/s"}) {
    CAPTURE(text);
    CHECK_THROWS_AS((void)parse_rate(text, "f"), InputError);
  }
  CHECK_THROWS_AS((void)parse_flops_rate("989TFLOPS", "f"), InputError);
  CHECK_THROWS_AS((void)parse_seconds("5  s", "f"), InputError);
  CHECK_THROWS_AS((void)parse_seconds("5min", "f"), InputError);
  for (const char* text : {"", "5", "h", "-5h", "3mh", "5  d", "5D", "1e308d", "5 hours"}) {
    CAPTURE(text);
    CHECK_THROWS_AS((void)parse_long_time(text, "f"), InputError);
  }
  CHECK_THROWS_WITH(
      (void)parse_bytes("80", "gpu.json: memory"),
      "gpu.json: memory: \"80\" was not understood; expected a size with its unit, such as \"80GiB\" or \"512MiB\"");
  CHECK_THROWS_AS((void)parse_bytes(std::string(100'000, '9') + "B", "f"), InputError);
}

TEST_CASE("parse(exact_text(x)) == x") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const Bytes b(static_cast<std::int64_t>(random() >> (1 + random() % 60)));
    const double d = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 120) - 100);
    CAPTURE(b.count());
    CAPTURE(d);
    CHECK(parse_bytes(exact_text(b), "t") == b);
    CHECK(parse_rate(exact_text(BytesPerSecond(d)), "t").count() == d);
    CHECK(parse_flops_rate(exact_text(FlopsPerSecond(d)), "t").count() == d);
    CHECK(parse_seconds(exact_text(Seconds(d)), "t").count() == d);
  }
  for (const char* text : {"3.4us", "14us", "0.1ms", "123.456ns", "7s"}) {
    const Seconds s = parse_seconds(text, "t");
    CHECK(parse_seconds(exact_text(s), "t") == s);
  }
  CHECK(exact_text(Bytes(85'899'345'920)) == "80GiB");
  CHECK(exact_text(Bytes(0)) == "0B");
}

TEST_CASE("sizes, times and rates are printed with three digits and a unit") {
  CHECK(human(Bytes(76'558'000'000)) == "71.3 GiB");
  CHECK(human(Bytes(0)) == "0 B");
  CHECK(human(Bytes(1023)) == "1023 B");
  CHECK(human(Seconds(1.46)) == "1.46 s");
  CHECK(human(Seconds(0.0123)) == "12.3 ms");
  CHECK(human(Seconds(4.2e-7)) == "420 ns");
  CHECK(human(Seconds(0.9999)) == "1.00 s");
  CHECK(human(BytesPerSecond(450e9)) == "450 GB/s");
  CHECK(human(FlopsPerSecond(312e12)) == "312 TFLOP/s");
  CHECK(human_count(8'030'261'248.0) == "8.03 B");
  CHECK(human_count(42) == "42");
  CHECK(with_commas(8'030'261'248) == "8,030,261,248");
  CHECK(with_commas(-1234) == "-1,234");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(std::numeric_limits<std::int64_t>::min()) == "-9,223,372,036,854,775,808");
}

TEST_CASE("products and sums of sizes do not wrap") {
  const std::int64_t big = std::int64_t{1} << 62;
  CHECK(checked_mul(big, 1, "t") == big);
  CHECK_THROWS_AS((void)checked_mul(big, 2, "t"), InputError);
  CHECK_THROWS_AS((void)checked_add(big, big, "t"), InputError);
  CHECK(checked_add(big, big - 1, "t") == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("what is counted has its plural, and one of it has none") {
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(std::size_t{2}, "network card") == "2 network cards");
  CHECK(counted(std::int64_t{1024}, "GPU") == "1024 GPUs");
}

TEST_CASE("element types are parsed by name; others are refused") {
  for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64}) CHECK(parse_dtype(name(t), "t") == t);
  CHECK(size_of(parse_dtype("bf16", "t")) == 2);
  CHECK_THROWS_WITH((void)parse_dtype("float8", "--param-dtype"),
                    "--param-dtype: \"float8\" is no element type; use fp64, fp32, bf16, fp16 or int64");
}

TEST_CASE("digests: FNV-1a's published vectors, and fields that cannot run into each other") {
  CHECK(digest_of("") == "cbf29ce484222325");
  CHECK(digest_of("a") == "af63dc4c8601ec8c");
  CHECK(digest_of("foobar") == "85944171f73967e8");
  Digest ab, a_b;
  ab.add("x", "ab");
  ab.add("y", "");
  a_b.add("x", "a");
  a_b.add("y", "b");
  CHECK(ab.text() != a_b.text());
  Digest third, tenth;
  third.add("d", 0.1 + 0.2);
  tenth.add("d", 0.3);
  CHECK(third.text() != tenth.text());
}
