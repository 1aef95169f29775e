// Training data: which tokens a sequence holds, and files that are refused.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "executor/data/order.h"
#include "executor/data/token_file.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  std::string bytes(numbers.size() * sizeof(T), '\0');
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}
std::string header(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::vector<std::int32_t> words(256);
  words[0] = magic, words[1] = version, words[2] = tokens;
  return bytes_of(words);
}
// 0, 1, 2, ...: a token says where it stands.
template <class T>
std::vector<T> counting(std::size_t n) {
  std::vector<T> numbers(n);
  for (std::size_t i = 0; i < n; ++i) numbers[i] = static_cast<T>(i);
  return numbers;
}

DataOptions options(std::int64_t vocab = 1000, std::int64_t seq_len = 4, DataType type = DataType::automatic) {
  return {type, vocab, seq_len, 7};
}

struct Sequence {
  std::vector<std::int64_t> ids, targets;
};
Sequence sequence_of(const TokenFile& data, std::int64_t sequence, std::size_t seq_len) {
  Sequence s{std::vector<std::int64_t>(seq_len), std::vector<std::int64_t>(seq_len)};
  data.read(sequence, s.ids.data(), s.targets.data());
  return s;
}

}  // namespace

TEST_CASE("an epoch holds each window once, in an order of its own") {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097}) {
    CAPTURE(n);
    std::vector<std::int64_t> first, second;
    for (std::int64_t i = 0; i < n; ++i)
      first.push_back(window_of_sequence(3, i, n)), second.push_back(window_of_sequence(3, n + i, n));
    for (const auto& epoch : {first, second})
      CHECK(std::set(epoch.begin(), epoch.end()).size() == static_cast<std::size_t>(n));
    CHECK(*std::min_element(first.begin(), first.end()) == 0);
    CHECK(*std::max_element(first.begin(), first.end()) == n - 1);
    if (n > 10) {
      CHECK(first != second);
      CHECK(!std::is_sorted(first.begin(), first.end()));
      CHECK(window_of_sequence(4, 0, n) + n * window_of_sequence(4, 1, n) != first[0] + n * first[1]);  // another seed
    }
  }
  CHECK(window_of_sequence(1, INT64_MAX, std::int64_t{1} << 62) < std::int64_t{1} << 62);
  CHECK_THROWS_AS((void)window_of_sequence(1, -1, 5), MachineError);
  CHECK_THROWS_AS((void)window_of_sequence(1, 0, 0), MachineError);
  CHECK_THROWS_AS((void)window_of_sequence(1, 0, (std::int64_t{1} << 62) + 1), MachineError);
}

TEST_CASE("a shuffle prefers no window and keeps no neighbours") {
  // Over 4,000 epochs of 10 windows each window should stand first 400 times; the deviation of such a count is
  // sqrt(4000 * .1 * .9) = 19.
  std::vector<int> first(10);
  int neighbours = 0;
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch) {
    ++first[static_cast<std::size_t>(window_of_sequence(5, 10 * epoch, 10))];
    neighbours += window_of_sequence(5, 10 * epoch + 1, 10) == window_of_sequence(5, 10 * epoch, 10) + 1 ? 1 : 0;
  }
  for (const int count : first) CHECK(std::abs(count - 400) < 100);
  CHECK(std::abs(neighbours - 400) < 100);  // 9 of the 90 ordered pairs
}

TEST_CASE("the order is the recorder's") {
  std::ifstream file(FSDP_TESTS_DIR "/golden/hf_models.json");
  const auto golden = nlohmann::json::parse(file);
  const auto starts = golden["first_starts"].get<std::vector<std::int64_t>>();
  const TokenFile text(FSDP_TESTS_DIR "/golden/text.txt", "--data",
                       {DataType::automatic, 256, golden["seq_len"], golden["seed"]});
  for (std::size_t s = 0; s < starts.size(); ++s)
    CHECK(window_of_sequence(golden["seed"], static_cast<std::int64_t>(s), text.windows()) * 12 == starts[s]);
}

TEST_CASE("windows overlap by the token that one predicts and the next reads; a rest is left out") {
  const TemporaryFolder folder;
  const TokenFile data(folder.write("a.u16", bytes_of(counting<std::uint16_t>(12))), "--data", options());
  CHECK(data.tokens() == 12);
  CHECK(data.windows() == 2);  // 0..4 and 4..8; 9, 10 and 11 are left out
  std::set<std::int64_t> starts;
  for (std::int64_t s = 0; s < 2; ++s) {
    const Sequence q = sequence_of(data, s, 4);
    starts.insert(q.ids[0]);
    for (std::int64_t i = 0; i < 4; ++i) {
      CHECK(q.ids[static_cast<std::size_t>(i)] == q.ids[0] + i);
      CHECK(q.targets[static_cast<std::size_t>(i)] == q.ids[0] + i + 1);
    }
  }
  CHECK(starts == std::set<std::int64_t>{0, 4});
}

TEST_CASE("the same tokens as bytes, 16 bits, 32 bits and with llm.c's headers") {
  const TemporaryFolder folder;
  const std::size_t n = 200;
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text.push_back(static_cast<char>(32 + i * 7 % 90));
  std::vector<std::uint16_t> narrow(text.begin(), text.end());
  std::vector<std::uint32_t> wide(text.begin(), text.end());
  const auto describes = [&](const std::string& path, DataType type, const char* why) {
    const TokenFile data(path, "--data", options(300));
    CAPTURE(data.describe());
    CHECK(data.type() == type);
    CHECK(data.tokens() == static_cast<std::int64_t>(n));
    CHECK(holds(data.describe(), why));
    CHECK(holds(data.describe(), "200 tokens"));
    const TokenFile plain(folder.write("plain.txt", text), "--data", options(300));
    for (std::int64_t s = 0; s < 100; ++s) {
      const Sequence a = sequence_of(data, s, 4), b = sequence_of(plain, s, 4);
      CHECK(a.ids == b.ids);
      CHECK(a.targets == b.targets);
    }
  };
  describes(folder.write("a.txt", text), DataType::text, "text, by its name");
  describes(folder.write("README", text), DataType::text, "assumed: it reads as text");
  describes(folder.write("a.bin", bytes_of(narrow)), DataType::uint16, "assumed for .bin");
  describes(folder.write("b.bin", bytes_of(wide)), DataType::uint32,
            "assumed: every second 16-bit word at its start is zero");
  describes(folder.write("a.u32", bytes_of(wide)), DataType::uint32, "by its name");
  describes(folder.write("c.bin", header(20240520, 1, 200) + bytes_of(narrow)), DataType::uint16, "by llm.c's header");
  describes(folder.write("d.bin", header(20240801, 7, 200) + bytes_of(wide)), DataType::uint32, "by llm.c's header");
}

TEST_CASE("several threads read one file") {
  const TemporaryFolder folder;
  const TokenFile data(folder.write("a.u32", bytes_of(counting<std::uint32_t>(20'001))), "--data", options(20'001, 20));
  const TokenReader read = data.reader();
  std::vector<std::vector<std::int64_t>> seen(4, std::vector<std::int64_t>(1000));
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < seen.size(); ++t)
    threads.emplace_back([&, t] {
      std::int64_t ids[20], targets[20];
      for (std::size_t s = 0; s < 1000; ++s) {
        read(static_cast<std::int64_t>(s), 20, ids, targets);
        seen[t][s] = targets[19] == ids[0] + 20 ? ids[0] : -1;
      }
    });
  threads.clear();
  for (const auto& starts : seen) {
    CHECK(starts == seen[0]);
    CHECK(std::set(starts.begin(), starts.end()).size() == 1000);
    CHECK(*std::min_element(starts.begin(), starts.end()) == 0);
  }
  std::int64_t ids[21], targets[21];
  CHECK_THROWS_AS(read(0, 21, ids, targets), MachineError);
}

TEST_CASE("a long sequence crosses the parts in which a file is read") {
  const TemporaryFolder folder;
  const TokenFile data(folder.write("a.u16", bytes_of(counting<std::uint16_t>(5001))), "--data", options(5001, 5000));
  const Sequence s = sequence_of(data, 0, 5000);
  for (std::size_t i = 0; i < 5000; ++i)
    if (s.ids[i] != static_cast<std::int64_t>(i) || s.targets[i] != static_cast<std::int64_t>(i + 1))
      FAIL("position ", i);
}

TEST_CASE("data that are none are refused by name") {
  const TemporaryFolder folder;
  const auto says = [&](const std::string& path, const DataOptions& o = options()) {
    return refusal([&] { return TokenFile(path, "--data", o).tokens(); });
  };
  CHECK(holds(says(folder.at("absent")), "--data: \"" + folder.at("absent") + "\": there is no such file"));
  CHECK(holds(says(folder.path().string()), "is a folder"));
  REQUIRE(::mkfifo(folder.at("pipe").c_str(), 0600) == 0);
  CHECK(holds(says(folder.at("pipe")), "is not a regular file"));
  CHECK(holds(says("/dev/zero"), "is not a regular file"));
  CHECK(holds(says(folder.write("empty.txt", "")), "is empty"));
  CHECK(holds(says(folder.write("short.txt", "four")), "has 4 tokens (text), but one sequence needs 5"));
  CHECK(says(folder.write("enough.txt", "fives")) == "");
  CHECK(holds(says(folder.at("enough.txt"), options(255)),
              "is read as bytes, but the model has only 255 tokens; use a model with a vocabulary of 256"));
  CHECK(holds(says(folder.write("odd.u16", "123456789ab")),
              "has 11 bytes, which is not a multiple of the 2 of a token (uint16, by its name)"));
  CHECK(holds(says(folder.write("odd.u32", "123456789abcdef1234512")), "not a multiple of the 4"));
  CHECK(holds(says(folder.write("cut.bin", header(20240520, 1, 9) + "123456789")),
              "says that it has 9 tokens, but has room for 4"));
  CHECK(holds(says(folder.write("many.bin", header(20240520, 1, -5) + "1234567890")), "says that it has -5 tokens"));
  CHECK(holds(says(folder.at("cut.bin"), options(70000, 4, DataType::uint32)),
              "has llm.c's header for uint16; leave --data-type out"));
  CHECK(holds(says(folder.write("unknown.dat", std::string("\x01\x00\x02\x00\x03\x00\x01\x00\x02\x00\x03\x00", 12))),
              "does not say what it holds"));
  CHECK(says(folder.at("unknown.dat"), options(1000, 4, DataType::uint16)) == "");
  // Beyond the vocabulary: the position is said.
  std::vector<std::uint16_t> tokens(5000, 1);
  tokens[4321] = 1000;
  CHECK(holds(says(folder.write("beyond.bin", bytes_of(tokens))),
              "token 1000, at position 4321, is not one of the model's 1000 (read as uint16, assumed for .bin)"));
  std::vector<std::uint32_t> wide(50, 1);
  wide[7] = 0xFFFFFFFFu;
  CHECK(holds(says(folder.write("beyond.u32", bytes_of(wide)), options(INT32_MAX)), "token 4294967295, at position 7"));
  CHECK(holds(refusal([] { return parse_data_type("uint8", "--data-type"); }),
              "--data-type: 'uint8' is not a type of data; give auto, text, uint16 or uint32"));
  for (const DataType t : {DataType::automatic, DataType::text, DataType::uint16, DataType::uint32})
    CHECK(parse_data_type(name(t), "t") == t);
}

TEST_CASE("a file that changes during a run ends with a message, not with a signal") {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.u16", bytes_of(counting<std::uint16_t>(900)));
  const TokenFile data(path, "--data", options());
  std::filesystem::resize_file(path, 2);
  std::int64_t ids[4], targets[4];
  CHECK_THROWS_WITH_AS(data.read(0, ids, targets), doctest::Contains("cut short meanwhile"), MachineError);
  std::ofstream(path, std::ios::binary) << std::string(1800, '\xff');
  CHECK_THROWS_WITH_AS(data.read(0, ids, targets), doctest::Contains("token 65535, at position "), MachineError);
}
