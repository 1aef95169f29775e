// Pickles are read as data: what Python would run is refused, and no damaged file does harm.
#include "models/input/pickle.h"

#include <doctest/doctest.h>

#include <string>

#include "models/input/error.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace std::string_literals;

namespace {

// pickle.dumps({"a": 1, "b": [-2, 300, 70000, 2**40, -2**40], "c": (True, None, 1.5), "d": "x"}, protocol=4)
const std::string kProtocol4 =
    "\x80\x04\x95\x49\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
    "a\x94K\x01\x8c\x01"
    "b\x94]\x94(J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x06\x00\x00\x00\x00\x00\xff"
    "e\x8c\x01"
    "c\x94\x88NG?\xf8\x00\x00\x00\x00\x00\x00\x87\x94\x8c\x01"
    "d\x94\x8c\x01x\x94u."s;

std::string refused(const std::string& bytes) {
  const std::string said = testing::refusal([&] { return PickleDocument(bytes, "x.pickle"); });
  return said.empty() ? "not refused" : said;
}

bool says(const std::string& text, const std::string& words) { return testing::holds(text, words); }

}  // namespace

TEST_CASE("what Python writes is read: numbers of every width, texts, lists, tuples, None") {
  const PickleDocument document(kProtocol4, "x.pickle");
  const PickleValue root = document.root();
  CHECK(root.at("a").integer(0, 10) == 1);
  const std::int64_t expected[] = {-2, 300, 70'000, std::int64_t{1} << 40, -(std::int64_t{1} << 40)};
  REQUIRE(root.at("b").size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(root.at("b").item(i).integer(INT64_MIN, INT64_MAX) == expected[i]);
  CHECK(root.at("c").size() == 3);
  CHECK(root.at("d").text() == "x");
  CHECK_FALSE(root.find("absent"));
  CHECK_THROWS_AS((void)root.at("absent"), InputError);
  CHECK_THROWS_AS((void)root.at("a").text(), InputError);
  CHECK_THROWS_AS((void)root.at("a").integer(2, 3), InputError);
  CHECK_THROWS_AS((void)root.at("d").size(), InputError);
  CHECK_THROWS_AS((void)root.at("b").at("x"), InputError);
}

TEST_CASE("what would run code in Python is refused, whatever opcode says it") {
  CHECK(says(refused("\x80\x02"s + "cos\nsystem\n(X\x02\x00\x00\x00idtR."s), "would run code"));
  CHECK(says(refused("\x80\x04\x8c\x02os\x8c\x06system\x93."s), "would run code"));
  for (const char opcode : "ciobRPQ\x81\x82\x83\x84\x92\x93"s)
    CHECK_MESSAGE(says(refused("\x80\x02N"s + opcode + "."), "would run code"), static_cast<int>(opcode));
}

TEST_CASE("every prefix of a file is refused, and says that the file ends too early") {
  for (std::size_t size = 1; size < kProtocol4.size(); ++size)
    CHECK_MESSAGE(says(refused(kProtocol4.substr(0, size)), "too early"), size);
  CHECK(says(refused(""), "is empty"));
}

TEST_CASE("sizes beyond the file, stacks that are empty, and integers beyond 64 bits are refused") {
  CHECK(says(refused("\x80\x02X\xff\xff\xff\xff"s), "too early"));
  CHECK(says(refused("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s), "too early"));
  CHECK(says(refused("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff."s), "too early"));
  CHECK(says(refused("\x80\x02\x8a\x0aSSSSSSSSSS."s), "64 bits"));
  CHECK(says(refused("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s), "64 bits"));
  for (const char* body : {".", "e.", "u.", "s.", "a.", "t.", "\x85.", "\x94.", "h\x05.", "K\x01s.", "]K\x01u.",
                           "}(K\x01u.", "}K\x01K\x01K\x01.", "N(N.", "\xfe.", "}(e."})
    CHECK_MESSAGE(refused("\x80\x02"s + body) != "not refused", body);
  CHECK(says(refused("PK\x03\x04 a zip of torch.save"), "not a pickle"));
  CHECK(says(refused("\x80\x09N."s), "protocol 9"));
}

TEST_CASE("a list that holds itself is read, and costs nothing") {
  const std::string bytes = "\x80\x02]q\x00h\x00"s + "a."s;
  const PickleDocument document(bytes, "x.pickle");
  CHECK(document.root().item(0).item(0).size() == 1);
}

TEST_CASE("a list that refers to one list a thousand times over, again and again, takes no more memory than its file") {
  std::string bytes = "\x80\x02]q\x00"s;
  for (int depth = 1; depth < 200; ++depth) {
    bytes += "]q"s + static_cast<char>(depth) + "(";
    for (int k = 0; k < 100; ++k) bytes += "h"s + static_cast<char>(depth - 1);
    bytes += "e";
  }
  bytes += "\xc7"s;  // no opcode
  CHECK(says(refused(bytes), "damaged"));
}
