// Safetensors files with arbitrary headers: an InputError, or tensors that cover their data once, in order. As initial
// weights of a mixture and of a model with adapters: an InputError, or every element of every parameter can be read.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "executor/data/initial_weights.h"
#include "executor/data/safetensors.h"
#include "models/catalog.h"
#include "models/graph/lora.h"
#include "tests/fuzz/fuzz.h"

namespace {

fsdp::ModelGraph model_of(std::uint8_t which) {
  if (which % 2 == 0)
    return fsdp::model_from_config(
        R"({"model_type": "mixtral", "hidden_size": 4, "intermediate_size": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_hidden_layers": 1, "num_local_experts": 2, "num_experts_per_tok": 1,
            "vocab_size": 3})",
        "fuzz");
  return fsdp::add_lora(
      fsdp::model_from_config(R"({"model_type": "llama", "hidden_size": 4, "intermediate_size": 2, "vocab_size": 3,
                                  "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1})",
                              "fuzz"),
      {.rank = 1, .targets = {"q_proj"}}, "fuzz");
}

// A safetensors file in memory, with this header and as much data as it asks for, unless that is much.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view header) : descriptor_(::memfd_create("fuzz", 0)) {
    std::string bytes(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    bytes += header;
    bytes.append(data_bytes(header), '\x01');
    fsdp::fuzz::require(::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
                        "a file in memory can be written");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  // The largest number in it: of a header without mistakes, the end of its last tensor.
  static std::size_t data_bytes(std::string_view header) {
    std::size_t most = 0, number = 0;
    for (const char c : header) {
      number =
          c >= '0' && c <= '9' ? std::min<std::size_t>(number * 10 + static_cast<std::size_t>(c - '0'), 1 << 20) : 0;
      most = std::max(most, number);
    }
    return most <= 4096 ? most : 0;
  }
  int descriptor_;
};

// `header` is parsed as that of `bytes` bytes of data.
void check_header(std::string_view header, std::int64_t bytes) {
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::SafetensorsHeader parsed = fsdp::parse_safetensors_header(header, bytes, "fuzz");
    std::int64_t end = 0;
    for (const fsdp::SafetensorsTensor& t : parsed.tensors) {
      fsdp::fuzz::require(t.begin == end && t.bytes >= 0, "tensors lie one after the other");
      fsdp::fuzz::require(!t.type || t.numel() * fsdp::size_of(*t.type) == t.bytes,
                          "a tensor has the bytes that its shape needs");
      end += t.bytes;
    }
    fsdp::fuzz::require(end == bytes, "tensors cover the data");
  });
}

void check_weights(std::string_view header, const fsdp::ModelGraph& model) {
  const MemoryFile file(header);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::StateReader read = fsdp::InitialWeights(file.path(), "fuzz", model).reader();
    for (const fsdp::Parameter& p : model.parameters)
      for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(p.shape.size()); ++dim) {
        std::vector<float> values(static_cast<std::size_t>(p.numel()) + 1, -7.0F);
        read(p, fsdp::StatePart::parameter, {dim, 0, p.shape[static_cast<std::size_t>(dim)]}, fsdp::DType::f32,
             reinterpret_cast<std::byte*>(values.data()));
        fsdp::fuzz::require(
            std::find(values.begin(), values.end() - 1, -7.0F) == values.end() - 1 && values.back() == -7.0F,
            "all elements are read, and no more");
      }
  });
}

}  // namespace

// The first byte is the length of the data after the header, and chooses the model.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_header(header, data[0]);
  check_weights(header, model_of(data[0]));
  return 0;
}
