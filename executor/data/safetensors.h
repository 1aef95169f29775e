// Reading safetensors files, strictly: 8 bytes (little-endian) give the length of a JSON header, which names tensors
// with their types, shapes and byte ranges; the rest is their data, row-major and little-endian
// (github.com/huggingface/safetensors, "Format").
//
//   const SafetensorsFile file("model.safetensors", "--init-from");
//   const SafetensorsTensor* t = file.header().find("lm_head.weight");
//   file.read(*t, first_element, count, DType::f32, to);        // converted
//
// A file is hostile until its header has been parsed: lengths and offsets beyond the file, products that overflow,
// ranges that overlap or leave a hole, names that occur twice are refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "executor/data/file_reader.h"
#include "models/dtype.h"

namespace fsdp {

struct SafetensorsTensor {
  std::string name;
  std::string type_name;              // as the file writes it: "F32", "BF16", "BOOL"
  std::optional<DType> type;          // empty: one that nothing here computes with
  std::vector<std::int64_t> shape;    // empty: a scalar
  std::int64_t begin = 0, bytes = 0;  // within the data, which starts at SafetensorsHeader::data_begin
  [[nodiscard]] std::int64_t numel() const;
  friend bool operator==(const SafetensorsTensor&, const SafetensorsTensor&) = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  // in the file, in bytes
  std::int64_t data_bytes = 0;
  [[nodiscard]] const SafetensorsTensor* find(
      std::string_view name) const;  // nullptr: there is none; linear in their number
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// `json`: the header's text; the data after it has `data_bytes` bytes. Throws InputError(`where`, ...) for everything
// that the format does not allow. Stricter than the reference in one thing: a header of more than 64 MiB is refused
// (there: 100 MB).
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes,
                                                         std::string_view where);

// "F32" <-> DType::f32. No name: nullopt.
[[nodiscard]] std::optional<DType> safetensors_type(std::string_view type_name);
[[nodiscard]] std::string_view safetensors_name(DType);

class SafetensorsFile {
 public:
  // Opens the file, reads and checks its header: InputError(`where`: "path", ...).
  SafetensorsFile(const std::string& path, std::string_view where);
  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const FileReader& file() const { return file_; }
  // Elements [first, first + count) of a tensor of header(), row-major, to `to` as `type`; both types floating-point.
  // Rounded to nearest, ties to even, where the file's type is wider (fp64 to 16 bits by way of fp32, as PyTorch does).
  // Called by several threads; takes no heap. Throws MachineError (see FileReader::read).
  void read(const SafetensorsTensor&, std::int64_t first, std::int64_t count, DType type, std::byte* to) const;

 private:
  FileReader file_;
  SafetensorsHeader header_;
};

}  // namespace fsdp
