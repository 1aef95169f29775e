// safetensors files: what the reference library writes is read, what the format forbids is refused by name.
#include "executor/data/safetensors.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

std::string length(std::uint64_t n) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &n, 8);
  return bytes;
}
std::string file_of(const std::string& json, std::size_t data) {
  return length(json.size()) + json + std::string(data, '\x01');
}

// safetensors 0.8.0 (Python): save_file({"w": [[1, -2.5, 3], [0.1, 65504, -0.]] fp32, "h": [0.1, -1, 6e-8] fp16, "b":
// [0.1, -3] bf16, "d": 0.1 fp64, "none": zeros(0, 3), "mask": [T, F, T, T, F]}, metadata={"format": "pt"})
std::string of_the_reference() {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"d":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"none":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},)"
      R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[32,36]},)"
      R"("h":{"dtype":"F16","shape":[3],"data_offsets":[36,42]},"mask":{"dtype":"BOOL","shape":[5],"data_offsets":[42,47]}})";
  REQUIRE(json.size() == 0x170);
  const char* hex = "9a9999999999b93f0000803f000020c000004040cdcccc3d00e07f4700000080cd3d40c0662e00bc01000100010100";
  std::string data;
  for (const char* c = hex; *c != 0; c += 2)
    data.push_back(static_cast<char>(std::stoi(std::string(c, 2), nullptr, 16)));
  return length(json.size()) + json + data;
}

template <class T>
std::vector<T> read(const SafetensorsFile& file, const char* name, std::int64_t first, std::int64_t count, DType type) {
  std::vector<T> values(static_cast<std::size_t>(count));
  const SafetensorsTensor* t = file.header().find(name);
  REQUIRE(t != nullptr);
  file.read(*t, first, count, type, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace

TEST_CASE("a file of the reference library is read, converted, in parts") {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("model.safetensors", of_the_reference()), "--init-from");
  const SafetensorsHeader& h = file.header();
  CHECK(h.metadata.at("format") == "pt");
  REQUIRE(h.tensors.size() == 6);
  CHECK(h.find("mask")->type_name == "BOOL");
  CHECK(!h.find("mask")->type);
  CHECK(h.find("w")->shape == std::vector<std::int64_t>{2, 3});
  CHECK(h.find("none")->numel() == 0);
  CHECK(h.find("d")->numel() == 1);
  CHECK(h.find("absent") == nullptr);
  CHECK(read<float>(file, "w", 0, 6, DType::f32) == std::vector<float>{1.0F, -2.5F, 3.0F, 0.1F, 65504.0F, -0.0F});
  CHECK(read<double>(file, "w", 2, 2, DType::f64) == std::vector<double>{3.0, static_cast<double>(0.1F)});
  CHECK(read<float>(file, "b", 0, 2, DType::f32) == std::vector<float>{0.10009765625F, -3.0F});
  CHECK(read<float>(file, "h", 0, 3, DType::f32) == std::vector<float>{0.0999755859375F, -1.0F, 0x1p-24F});
  CHECK(read<double>(file, "d", 0, 1, DType::f64) == std::vector<double>{0.1});
  CHECK(read<float>(file, "d", 0, 1, DType::f32) == std::vector<float>{0.1F});
  CHECK(read<std::uint16_t>(file, "w", 3, 1, DType::bf16) == std::vector<std::uint16_t>{0x3dcd});
  CHECK(read<float>(file, "none", 0, 0, DType::f32).empty());
  std::byte one[8];
  CHECK_THROWS_AS(file.read(*h.find("w"), 5, 2, DType::f32, one), MachineError);
  CHECK_THROWS_AS(file.read(*h.find("w"), -1, 1, DType::f32, one), MachineError);
  CHECK_THROWS_AS(file.read(*h.find("mask"), 0, 1, DType::f32, one), MachineError);
}

TEST_CASE("long tensors are converted part by part") {
  const TemporaryFolder folder;
  const std::size_t n = 100'001;  // more than one part of 64 KiB, and no multiple of it
  std::string data(4 * n, '\0');
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<float>(i);
    std::memcpy(data.data() + 4 * i, &x, 4);
  }
  const std::string json = R"({"x":{"dtype":"F32","shape":[100001],"data_offsets":[0,400004]}})";
  const SafetensorsFile file(folder.write("x", length(json.size()) + json + data), "t");
  const auto values = read<double>(file, "x", 1, static_cast<std::int64_t>(n - 1), DType::f64);
  for (std::size_t i = 0; i + 1 < n; ++i)
    if (values[i] != static_cast<double>(i + 1)) FAIL("element ", i + 1, " is ", values[i]);
}

TEST_CASE("names of types go both ways") {
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64})
    CHECK(safetensors_type(safetensors_name(t)) == t);
  CHECK(safetensors_name(DType::bf16) == "BF16");
  CHECK(!safetensors_type("BOOL"));
  CHECK(!safetensors_type("F31"));
}

TEST_CASE("headers that the format forbids are refused by name") {
  const auto says = [](const std::string& json, std::int64_t data = 8) {
    return refusal([&] { return parse_safetensors_header(json, data, "f"); });
  };
  const auto tensor = [](const std::string& name, const std::string& type, const std::string& shape,
                         const std::string& range) {
    return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + range + "}";
  };
  CHECK(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "}  ") == "");
  CHECK(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("none", "F32", "[0]", "[8,8]") + "}") == "");
  CHECK(says("{}", 0) == "");
  CHECK(says(R"({"__metadata__":null,)" + tensor("a", "F32", "[2]", "[0,8]") + "}") == "");

  CHECK(holds(says(""), "does not begin with '{'"));
  CHECK(holds(says("[]"), "does not begin with '{'"));
  CHECK(holds(says("{"), "cut short"));
  CHECK(holds(says("{\"a\":1}"), "f: a: "));
  CHECK(holds(says("{" + tensor("a", "F31", "[2]", "[0,8]") + "}"), "a.dtype: \"F31\" is not a type"));
  CHECK(holds(says("{" + tensor("a", "F32", "[-2]", "[0,8]") + "}"), "a.shape"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2.0]", "[0,8]") + "}"), "a.shape"));
  CHECK(holds(says("{" + tensor("a", "F32", "[4611686018427387904,4611686018427387904]", "[0,8]") + "}"),
              "a.shape: is larger than 64 bits"));
  CHECK(holds(says("{" + tensor("a", "F32", "[3]", "[0,8]") + "}"), "spans 8 bytes, but the shape needs 12"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[8,0]") + "}"), "not a range"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,8,16]") + "}"), "not a range"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,18446744073709551616]") + "}"), "f"));
  CHECK(holds(says("{" + tensor("a", "F4", "[3]", "[0,2]") + "}"), "spans 2 bytes"));
  CHECK(holds(says(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})"), "more"));
  CHECK(holds(says(R"({"a":{"dtype":"F32","shape":[2]}})"), "data_offsets"));
  CHECK(holds(says(R"({"__metadata__":{"a":1}})", 0), "__metadata__.a"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("a", "F32", "[2]", "[0,8]") + "}"),
              "\"a\" occurs twice"));
  CHECK(holds(says("{" + tensor("", "F32", "[2]", "[0,8]") + "}"), "empty or has control characters"));
  CHECK(holds(says("{" + tensor("a\\u001b[31m", "F32", "[2]", "[0,8]") + "}"), "empty or has control characters"));
  // Ranges: overlap, hole in front, between and behind, beyond the end.
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "F32", "[1]", "[4,8]") + "}"),
              "tensor \"b\", [4, 8), overlap those of \"a\""));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "F32", "[2]", "[0,8]") + "}"),
              "overlap"));
  CHECK(holds(says("{" + tensor("a", "F32", "[1]", "[4,8]") + "}"), "bytes [0, 4) of the data, before tensor \"a\""));
  CHECK(holds(says("{" + tensor("a", "F32", "[1]", "[0,4]") + "}"), "the last 4 bytes"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("none", "F32", "[0]", "[9,9]") + "}", 9),
              "bytes [8, 9)"));
  CHECK(holds(says("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", 7),
              "should have 8 bytes, but has 7: the file was cut short"));
}

TEST_CASE("files that are none are refused by name, and nothing waits for a pipe") {
  const TemporaryFolder folder;
  const auto says = [&](const std::string& path) {
    return refusal([&] { return SafetensorsFile(path, "--init-from").header().data_bytes; });
  };
  CHECK(holds(says(folder.at("absent")), "there is no such file"));
  CHECK(holds(says(folder.path().string()), "is a folder"));
  const std::string pipe = folder.at("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(holds(says(pipe), "is not a regular file"));
  CHECK(holds(says(folder.write("empty", "")), "has 0 bytes"));
  CHECK(holds(says(folder.write("seven", "1234567")), "has 7 bytes"));
  CHECK(holds(says(folder.write("huge", length(~0ULL) + "{}")),
              "says that its header has 18446744073709551615 bytes, but only 2 follow"));
  CHECK(holds(says(folder.write("cut", length(100) + "{}")), "but only 2 follow"));
  const std::string good = file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8);
  CHECK(says(folder.write("good", good)) == "");
  for (std::size_t n = 0; n < good.size(); ++n) CHECK(says(folder.write("part", good.substr(0, n))) != "");
}

TEST_CASE("a file that shrinks while it is open ends with a message, not with a signal") {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("a", file_of(R"({"a":{"dtype":"F32","shape":[2048],"data_offsets":[0,8192]}})", 8192));
  const SafetensorsFile file(path, "t");
  std::filesystem::resize_file(path, 4096);
  std::vector<std::byte> to(8192);
  CHECK_THROWS_WITH_AS(file.read(file.header().tensors[0], 0, 2048, DType::f32, to.data()),
                       doctest::Contains("cut short meanwhile"), MachineError);
}
