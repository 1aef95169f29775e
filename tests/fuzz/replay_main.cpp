// Runs a fuzzer's body without libFuzzer: over the files of a folder, so that what once was found stays mended, or over
// random bytes, which a release build does much faster than a fuzzer.
//
//   fuzz_units_test tests/fuzz/corpus/units_fuzz
//   fuzz_whole_way_test --random 100000 1 0       inputs, seed, the first of them; input k is always the same
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

int random_inputs(std::uint64_t count, std::uint64_t seed, std::uint64_t first) {
  constexpr std::size_t kLongest = 48;
  for (std::uint64_t k = first; k < first + count; ++k) {
    std::mt19937_64 random(seed * 1'000'000'007 + k);
    std::vector<std::uint8_t> bytes(random() % (kLongest + 1));
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(random());
    if (k % 1000 == 0 || count < 1000) std::fprintf(stderr, "input %llu\n", static_cast<unsigned long long>(k));
    (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(count));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 4 && std::string(argv[1]) == "--random")
    return random_inputs(std::stoull(argv[2]), std::stoull(argv[3]), argc > 4 ? std::stoull(argv[4]) : 0);
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);  // the last line names the file that ended it
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
