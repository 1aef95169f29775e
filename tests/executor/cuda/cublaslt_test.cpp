// How matmuls talk to cuBLASLt, with a library of ours in its place that interprets what it is told
// (cublaslt_on_host/): no GPU needed.
#include "tests/executor/cuda/matmul_cases.h"

namespace fsdp::testing {
namespace {

struct HostMemory {
  BufferView to_device(BufferView v) {  // aligned as memory of a GPU is
    if (v.bytes == 0) return {};
    auto& m = memory_.emplace_back(static_cast<std::size_t>(v.bytes) + 256);
    auto* at = m.data() + (256 - reinterpret_cast<std::uintptr_t>(m.data()) % 256);
    std::copy_n(v.data, v.bytes, at);
    return {at, v.bytes};
  }
  void to_host(BufferView from, BufferView to) const { std::copy_n(from.data, to.bytes, to.data); }
  std::vector<std::vector<std::byte>> memory_;
};

cuda::Library on_host() { return cuda::Library::open({FSDP_CUBLASLT_ON_HOST}); }

TEST_CASE("products through a library that interprets agree with the host") {
  unsigned seed = 300;
  for (const MatmulCase& c : matmul_cases())
    if (!c.bias_apart) check_matmul_case(HostMemory(), on_host(), c, seed += 20);  // that takes a kernel
}

TEST_CASE("an algorithm is asked for once per shape and alignment") {
  HostMemory memory;
  std::vector<std::byte> bytes(1 << 16);
  std::byte* const at = memory.to_device({bytes.data(), 1 << 16}).data;
  const auto call = [&](std::int64_t m, std::size_t offset) {
    return cuda::MatmulCall{
        .matmul = {.type = DType::bf16, .m = m, .n = 8, .k = 16}, .a = at + offset, .b = at + 8192, .c = at + 16384};
  };
  cuda::MatmulRunner runner(on_host());
  const cuda::MatmulRoom room{.workspace = at + 32768 + 64, .workspace_bytes = 4096};
  runner.multiply(call(8, 0), room, nullptr);
  runner.multiply(call(8, 256), room, nullptr);
  CHECK(runner.algorithms() == 1);
  runner.multiply(call(8, 16), room, nullptr);
  CHECK(runner.algorithms() == 2);
  runner.multiply(call(9, 0), room, nullptr);
  CHECK(runner.algorithms() == 3);
  runner.multiply(call(8, 0), {.workspace = room.workspace, .workspace_bytes = 4096, .multiprocessors = 100}, nullptr);
  CHECK(runner.algorithms() == 4);
  runner.multiply(call(8, 0), {.workspace = room.workspace, .workspace_bytes = 2048},
                  nullptr);  // what was chosen may need more
  CHECK(runner.algorithms() == 1);
  runner.multiply(call(0, 0), room, nullptr);
}

TEST_CASE("without the library, or with one that lacks a function, the error says so") {
  const auto words = [](const cuda::Library& library) -> std::string {
    try {
      cuda::MatmulRunner runner(library);
    } catch (const MachineError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(words(cuda::Library::open({"/nowhere/libcublasLt.so"})).find("cuBLASLt") != std::string::npos);
  CHECK(words(cuda::Library::open({"libm.so.6"})).find("has no cublasLtCreate") != std::string::npos);
}

}  // namespace
}  // namespace fsdp::testing
