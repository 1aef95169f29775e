// What the cuda backend does without a GPU: where it looks for libraries, what errors say, which rank goes where, and
// the arithmetic between virtual ranks. Runs everywhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "executor/cuda/driver.h"
#include "executor/cuda/emulation.h"
#include "executor/cuda/errors.h"
#include "executor/cuda/library.h"
#include "executor/cuda/placement.h"
#include "executor/cuda/rank_reduction.h"
#include "executor/cuda_backend.h"
#include "executor/ranks/reduce.h"
#include "models/input/error.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using namespace fsdp::cuda;

namespace {

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}
bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

// --- hardware ---

TEST_CASE("GPUs on the bus and the loaded driver are known without a call of the driver") {
  const fsdp::testing::TemporaryFolder root;
  const auto device = [&](const std::string& name, const char* vendor, const char* kind) {
    const std::string folder = "sys/bus/pci/devices/" + name;
    std::filesystem::create_directories(root.path() / folder);
    (void)root.write(folder + "/vendor", vendor);
    (void)root.write(folder + "/class", kind);
  };
  device("0000:17:00.0", "0x10de\n", "0x030200\n");  // a GPU without a display
  device("0000:65:00.0", "0x10de\n", "0x030000\n");  // with one
  device("0000:65:00.1", "0x10de\n", "0x040300\n");  // its sound
  device("0000:03:00.0", "0x8086\n", "0x030000\n");  // of another vendor
  NvidiaHardware found = find_nvidia_hardware(root.path().string());
  CHECK(found.gpus == 2);
  CHECK(found.kernel_module.empty());
  std::filesystem::create_directories(root.path() / "proc/driver/nvidia");
  (void)root.write("proc/driver/nvidia/version",
                   "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
                   "GCC version:  gcc version 12.3.0\n");
  found = find_nvidia_hardware(root.path().string());
  CHECK(found.kernel_module == "550.54.15");
  CHECK(find_nvidia_hardware("/nowhere").gpus == 0);
}

// --- libraries ---

Surroundings made_up(std::map<std::string, std::string> variables,
                     std::map<std::string, std::vector<std::string>> folders) {
  return {[=](const char* name) -> std::optional<std::string> {
            const auto found = variables.find(name);
            return found == variables.end() ? std::nullopt : std::optional(found->second);
          },
          [=](const std::string& folder) {
            const auto found = folders.find(folder);
            return found == folders.end() ? std::vector<std::string>{} : found->second;
          }};
}

TEST_CASE("libraries are looked for in the toolkit, then by the loader, then in Python packages") {
  const std::vector<std::string> files = {"libcublasLt.so.13", "libcublasLt.so.12"};
  const Surroundings s =
      made_up({{"CUDA_HOME", "/opt/cuda"}, {"VIRTUAL_ENV", "/venv"}, {"FSDP_PLAN_PYTHON", "/torch/bin/python"}},
              {{"/opt/cuda/lib64", {"libcublasLt.so.12", "libfoo.so"}},
               {"/usr/local/cuda/lib", {"libcublasLt.so.12", "libcublasLt.so.13"}},
               {"/venv/lib", {"python3.11", "pkgconfig"}},
               {"/venv/lib/python3.11/site-packages/nvidia", {"cublas", "nccl"}},
               {"/venv/lib/python3.11/site-packages/nvidia/cublas/lib", {"libcublasLt.so.12"}},
               {"/torch/lib", {"python3.12"}},
               {"/torch/lib/python3.12/site-packages/nvidia", {"cu13"}},
               {"/torch/lib/python3.12/site-packages/nvidia/cu13/lib", {"libcublasLt.so.13"}}});
  CHECK(candidates(files, s) ==
        std::vector<std::string>{"/opt/cuda/lib64/libcublasLt.so.12", "/usr/local/cuda/lib/libcublasLt.so.13",
                                 "/usr/local/cuda/lib/libcublasLt.so.12", "libcublasLt.so.13", "libcublasLt.so.12",
                                 "/torch/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
                                 "/venv/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12"});
  CHECK(candidates(files, made_up({}, {})) == files);  // the loader alone
}

TEST_CASE("a library loads from the first place that has it; one that is nowhere says what was tried") {
  const Library m = Library::open({"/nowhere/libm.so.6", "libm.so.6", "libdl.so.2"});
  REQUIRE(m);
  CHECK(m.path() == "libm.so.6");
  CHECK(m.why().empty());
  double (*cosine)(double) = nullptr;
  m.set(cosine, "cos");
  REQUIRE(static_cast<bool>(cosine));
  CHECK(cosine(0) == 1);
  CHECK(m.find("no_such_symbol_here") == nullptr);
  const Library none = Library::open({"/nowhere/liba.so", "libb-not-there.so.7"});
  CHECK(!none);
  CHECK(says(none.why(), "/nowhere/liba.so"));
  CHECK(says(none.why(), "libb-not-there.so.7"));
  CHECK(none.find("cos") == nullptr);
  CHECK(!Library::open({}).why().empty());
}

TEST_CASE("versions are read as the libraries write them, and compare") {
  CHECK(text(nccl_version(22809)) == "2.28.9");
  CHECK(text(nccl_version(2708)) == "2.7.8");
  CHECK(text(cublas_version(130100)) == "13.1.0");
  CHECK(text(cudnn_version(91900)) == "9.19.0");
  CHECK(text(cudnn_version(8907)) == "8.9.7");
  CHECK(text(cuda_version(13000)) == "13.0.0");
  CHECK(text(cuda_version(12080)) == "12.8.0");
  CHECK(nccl_version(22809) > nccl_version(22703));
  CHECK(nccl_version(22809) > nccl_version(2708));
  CHECK(Version{2, 9, 9} < Version{2, 28, 0});
}

// --- errors and places ---

TEST_CASE("refusals name rank, call, error and remedy") {
  const std::string memory = refusal(3, "cudaMalloc of 9 GiB", "cudaErrorMemoryAllocation", "out of memory");
  CHECK(memory.starts_with("rank 3: cudaMalloc of 9 GiB: cudaErrorMemoryAllocation: out of memory; "));
  CHECK(says(memory, "nvidia-smi"));
  CHECK(refusal(-1, "asking for GPUs", "cudaErrorSomethingNew", "words") ==
        "asking for GPUs: cudaErrorSomethingNew: words");
  CHECK(refusal(0, "a call", "X", "") == "rank 0: a call: X");
  CHECK(says(refusal(0, "init", "ncclInvalidUsage", "invalid usage"), "--virtual-ranks"));
  CHECK(is_sticky("cudaErrorIllegalAddress"));
  CHECK(!is_sticky("cudaErrorMemoryAllocation"));
  CHECK(!is_sticky("cudaErrorSomethingNew"));
}

TEST_CASE("ranks go to GPUs one by one, or all to the first; what cannot be is refused") {
  CHECK(place_ranks(3, 4, {}, false) == std::vector<int>{0, 1, 2});
  CHECK(place_ranks(2, 4, {3, 1}, false) == std::vector<int>{3, 1});
  CHECK(place_ranks(3, 4, {2, 1}, true) == std::vector<int>{2, 2, 2});
  CHECK(place_ranks(4, 1, {}, true) == std::vector<int>{0, 0, 0, 0});
  CHECK(says(error_of([] { (void)place_ranks(2, 1, {}, false); }), "the plan has 2 ranks, but there is 1 GPU"));
  CHECK(says(error_of([] { (void)place_ranks(2, 1, {}, false); }), "--virtual-ranks"));
  CHECK(says(error_of([] { (void)place_ranks(1, 0, {}, false); }), "no GPU"));
  CHECK(says(error_of([] { (void)place_ranks(1, 2, {2}, false); }), "there is no GPU 2"));
  CHECK(says(error_of([] { (void)place_ranks(1, 2, {-1}, false); }), "there is no GPU -1"));
  CHECK(says(error_of([] { (void)place_ranks(2, 2, {1, 1}, false); }), "named twice"));
  CHECK_THROWS_AS((void)place_ranks(0, 2, {}, true), InputError);
}

TEST_CASE("processes take the GPUs of their machine in turn, whether they see all of them or one each") {
  for (int place = 0; place < 8; ++place) CHECK(place_process(place, 8, {}) == place);
  for (int place = 0; place < 8; ++place) CHECK(place_process(place, 1, {}) == 0);  // CUDA_VISIBLE_DEVICES of its own
  CHECK(place_process(0, 8, {6, 2}) == 6);
  CHECK(place_process(1, 8, {6, 2}) == 2);
  CHECK(place_process(3, 8, {6, 2}) == 2);
  CHECK(says(error_of([] { (void)place_process(0, 0, {}); }), "no GPU"));
  CHECK(says(error_of([] { (void)place_process(0, 4, {4}); }), "there is no GPU 4"));
}

TEST_CASE("two ranks on one GPU are named; GPUs of one number on two machines are two") {
  const std::vector<DeviceAssignment> apart = {
      {"node1", "GPU-a", 0}, {"node1", "GPU-b", 1}, {"node2", "GPU-c", 0}, {"node2", "GPU-d", 1}};
  CHECK_NOTHROW(check_assignments(apart));
  for (const DeviceAssignment& s : apart) CHECK(parse_assignment(format_assignment(s)) == s);
  std::vector<DeviceAssignment> shared = apart;
  shared[3] = shared[2];
  CHECK(says(error_of([&] { check_assignments(shared); }), "ranks 2 and 3 are on one GPU, 0 of node2 (GPU-c)"));
  for (const char* damaged : {"", "0", "0\nGPU-a", "x\nGPU-a\nnode", "1 \nGPU-a\nnode", "\n\n"})
    CHECK_THROWS_AS((void)parse_assignment(damaged), MachineError);
}

TEST_CASE("without a GPU, or not built in, the backend says so") {
  const std::string why = why_no_cuda();
  if (why.empty()) return;                                 // there is a GPU
  CHECK_MESSAGE(why.find(';') != std::string::npos, why);  // a remedy
  const std::string error = error_of([] { (void)make_cuda_backend({1, 1}); });
  CHECK_MESSAGE((says(error, "not built in") || says(error, "no NVIDIA GPU or driver here")), error);
}

// --- reductions between virtual ranks ---

template <class T>
void check_same_bits(DType type, Combine combine, Reduction reduction, int ranks) {
  constexpr std::int64_t kCount = 3000;
  std::mt19937_64 random(static_cast<std::uint64_t>(ranks) * 100 + static_cast<std::uint64_t>(combine));
  std::vector<std::vector<T>> parts(static_cast<std::size_t>(ranks), std::vector<T>(kCount));
  Inputs inputs{};
  std::vector<const std::byte*> addresses;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    for (T& x : parts[r])
      store(x, static_cast<Math<T>>(std::ldexp(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5,
                                               static_cast<int>(random() % 16) - 8)));
    parts[r][7] = T{};
    store(parts[r][8], static_cast<Math<T>>(r == 1 ? HUGE_VAL : 1));
    store(parts[r][9], static_cast<Math<T>>(-0.0));
    inputs.of[r] = parts[r].data();
    addresses.push_back(reinterpret_cast<const std::byte*>(parts[r].data()));
  }
  std::vector<T> expected(kCount);
  host::reduce_in_order(type, reduction, addresses, kCount, reinterpret_cast<std::byte*>(expected.data()));
  int wrong = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const T got = reduce_element<T>(combine, reduction.multiply, inputs, ranks, i);
    wrong += std::memcmp(&got, &expected[static_cast<std::size_t>(i)], sizeof(T)) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("virtual ranks reduce to the bits of the host backend") {
  const std::array<std::pair<Combine, Reduction>, 4> manners = {
      {{Combine::sum, Reduction::sum},
       {Combine::average, Reduction::average},
       {Combine::scaled_sum, {ReductionKind::scaled_sum, 0.3}},
       {Combine::maximum, Reduction::maximum}}};
  for (const int ranks : {1, 2, 3, 5, 8, 13})
    for (const auto& [combine, reduction] : manners) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(combine));
      check_same_bits<float>(DType::f32, combine, reduction, ranks);
      check_same_bits<double>(DType::f64, combine, reduction, ranks);
      check_same_bits<BFloat16>(DType::bf16, combine, reduction, ranks);
      check_same_bits<Float16>(DType::f16, combine, reduction, ranks);
    }
}

// --- a world that is not there ---

TEST_CASE("a played collective holds the multiprocessors, the time and the traffic of its demand") {
  Demand d;
  d.alone = Seconds(2e-3);
  d.use[static_cast<std::size_t>(Resource::compute)] = 24.0 / 132;
  d.use[static_cast<std::size_t>(Resource::memory)] = 0.25;
  CHECK(model_collective(d, 132, 3.2e12) == ModelledCollective{24, 2'000'000, 1'600'000'000});
  d.use = {};
  CHECK(model_collective(d, 132, 3.2e12) ==
        ModelledCollective{1, 2'000'000, 0});  // copy engines: a single block keeps the time
  d.use[static_cast<std::size_t>(Resource::compute)] = 9;
  CHECK(model_collective(d, 132, 3.2e12).blocks == 132);
}

TEST_CASE("all-reduce's chunks cover all elements once, and bytes from others add up") {
  for (const std::int64_t members : {1, 2, 3, 7, 8})
    for (const std::int64_t elements : {0, 1, 6, 8, 1000}) {
      std::int64_t received = 0;
      host::CollectiveCall p{.action = host::CollectiveAction::all_reduce, .elements = elements, .type = DType::f32};
      for (std::int64_t m = 0; m < members; ++m) {
        CHECK(chunk_begin(elements, members, m) <= chunk_begin(elements, members, m + 1));
        received += bytes_from_others(p, m, members);
      }
      CHECK(chunk_begin(elements, members, 0) == 0);
      CHECK(chunk_begin(elements, members, members) == elements);
      CHECK(received == 4 * 2 * (members - 1) *
                            elements);  // each element comes to its owner from all others, and goes to all others
    }
  host::CollectiveCall gather{
      .action = host::CollectiveAction::all_gather,
      .counts = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{3, 0, 5}),
      .type = DType::bf16};
  CHECK(bytes_from_others(gather, 0, 3) == 10);
  CHECK(bytes_from_others(gather, 1, 3) == 16);
  host::CollectiveCall cast{.action = host::CollectiveAction::broadcast, .elements = 10, .type = DType::f64, .root = 1};
  CHECK(bytes_from_others(cast, 1, 3) == 0);
  CHECK(bytes_from_others(cast, 2, 3) == 80);
}

}  // namespace
