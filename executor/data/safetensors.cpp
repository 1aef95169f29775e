#include "executor/data/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "executor/arithmetic/convert.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in the file");

struct TypeRow {
  std::string_view name;
  std::int64_t bits;
  std::optional<DType> type;
};
// All types that version 0.8 of the reference writes.
constexpr std::array kTypes = {
    TypeRow{"F64", 64, DType::f64}, TypeRow{"F32", 32, DType::f32},
    TypeRow{"F16", 16, DType::f16}, TypeRow{"BF16", 16, DType::bf16},
    TypeRow{"I64", 64, DType::i64}, TypeRow{"U64", 64, {}},
    TypeRow{"I32", 32, {}},         TypeRow{"U32", 32, {}},
    TypeRow{"I16", 16, {}},         TypeRow{"U16", 16, {}},
    TypeRow{"I8", 8, {}},           TypeRow{"U8", 8, {}},
    TypeRow{"BOOL", 8, {}},         TypeRow{"F8_E4M3", 8, {}},
    TypeRow{"F8_E5M2", 8, {}},      TypeRow{"F8_E8M0", 8, {}},
    TypeRow{"F8_E4M3FNUZ", 8, {}},  TypeRow{"F8_E5M2FNUZ", 8, {}},
    TypeRow{"C64", 64, {}},         TypeRow{"F6_E2M3", 6, {}},
    TypeRow{"F6_E3M2", 6, {}},      TypeRow{"F4", 4, {}},
};
const TypeRow* type_row(std::string_view name) {
  const auto row = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.name == name; });
  return row == kTypes.end() ? nullptr : &*row;
}

constexpr const char* kAgain = "write or download the file again";

bool shows(std::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(),
                                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

SafetensorsTensor read_tensor(const std::string& name, JsonObject entry) {
  SafetensorsTensor t;
  t.name = name;
  t.type_name = entry.text("dtype");
  const TypeRow* row = type_row(t.type_name);
  if (row == nullptr)
    entry.refuse("dtype", "\"" + printable(t.type_name) + "\" is not a type of safetensors 0.8", kAgain);
  t.type = row->type;
  t.shape = entry.integers("shape", 0, kMaxInteger);
  std::int64_t bits = row->bits;
  for (const std::int64_t d : t.shape)
    if (__builtin_mul_overflow(bits, d, &bits)) entry.refuse("shape", "is larger than 64 bits can count", kAgain);
  const std::vector<std::int64_t> range = entry.integers("data_offsets", 0, kMaxInteger);
  if (range.size() != 2 || range[0] > range[1]) entry.refuse("data_offsets", "is not a range [begin, end]", kAgain);
  t.begin = range[0];
  t.bytes = range[1] - range[0];
  if (bits % 8 != 0 || t.bytes != bits / 8)
    entry.refuse("data_offsets", fmt::format("spans {} bytes, but the shape needs {}", t.bytes, (bits + 7) / 8),
                 kAgain);
  entry.finish();
  return t;
}

// One after the other they must cover the data, all of it.
void check_ranges(const std::vector<SafetensorsTensor>& tensors, std::int64_t data_bytes, const std::string& where) {
  std::int64_t end = 0;
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& t : tensors) {
    if (t.begin < end)
      throw InputError(where,
                       fmt::format("the bytes of tensor \"{}\", [{}, {}), overlap those of \"{}\", which end at {}",
                                   t.name, t.begin, t.begin + t.bytes, before->name, end),
                       kAgain);
    if (t.begin > end)
      throw InputError(
          where,
          fmt::format("bytes [{}, {}) of the data, before tensor \"{}\", belong to no tensor", end, t.begin, t.name),
          kAgain);
    end = t.begin + t.bytes;
    before = &t;
  }
  if (end > data_bytes)
    throw InputError(
        where,
        fmt::format("its data should have {} bytes, but has {}: the file was cut short (tensor \"{}\" ends beyond it)",
                    end, data_bytes, before->name),
        kAgain);
  if (end < data_bytes)
    throw InputError(where, fmt::format("the last {} bytes of its data belong to no tensor", data_bytes - end), kAgain);
}

SafetensorsHeader read_header(const FileReader& file) {
  std::uint64_t length = 0;
  if (file.size() < static_cast<std::int64_t>(sizeof length))
    throw InputError(file.named(), fmt::format("has {} bytes: too short for a safetensors file", file.size()), kAgain);
  file.read(0, sizeof length, &length);
  const auto rest = static_cast<std::uint64_t>(file.size()) - sizeof length;
  if (length > rest)
    throw InputError(
        file.named(),
        fmt::format("says that its header has {} bytes, but only {} follow: it was cut short or is no safetensors file",
                    length, rest),
        kAgain);
  if (length > static_cast<std::uint64_t>(kMaxJsonBytes))
    throw InputError(file.named(), "has a header of more than 64 MiB", kAgain);
  std::string json(static_cast<std::size_t>(length), '\0');
  file.read(sizeof length, static_cast<std::int64_t>(length), json.data());
  SafetensorsHeader header = parse_safetensors_header(json, static_cast<std::int64_t>(rest - length), file.named());
  header.data_begin = static_cast<std::int64_t>(sizeof length + length);
  return header;
}

}  // namespace

std::int64_t SafetensorsTensor::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

const SafetensorsTensor* SafetensorsHeader::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const SafetensorsTensor& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

std::optional<DType> safetensors_type(std::string_view type_name) {
  const TypeRow* row = type_row(type_name);
  return row == nullptr ? std::nullopt : row->type;
}

std::string_view safetensors_name(DType type) {
  return std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& r) { return r.type == type; })->name;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes, std::string_view where) {
  if (!json.starts_with('{'))
    throw InputError(std::string(where), "its header does not begin with '{': it is no safetensors file", kAgain);
  const JsonDocument document = parse_document(json, where, "");
  JsonObject root = document.root();
  SafetensorsHeader header;
  header.data_bytes = data_bytes;
  for (const std::string& name : root.keys()) {
    if (name == "__metadata__") {
      if (auto metadata = root.optional_object(name))
        for (const std::string& key : metadata->keys()) header.metadata[key] = metadata->at(key).any_text();
      continue;
    }
    if (!shows(name))
      throw InputError(std::string(where),
                       "a tensor's name is empty or has control characters: \"" + printable(name) + "\"", kAgain);
    header.tensors.push_back(read_tensor(name, root.object(name)));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::pair(a.begin, a.bytes) <
           std::pair(b.begin, b.bytes);  // one without bytes before the one that begins where it does
  });
  check_ranges(header.tensors, data_bytes, std::string(where));
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path, std::string_view where)
    : file_(path, where), header_(read_header(file_)) {}

void SafetensorsFile::read(const SafetensorsTensor& tensor, std::int64_t first, std::int64_t count, DType type,
                           std::byte* to) const {
  if (!tensor.type || *tensor.type == DType::i64 || type == DType::i64)
    throw MachineError(fmt::format("{}: tensor \"{}\" of type {} is not read as {}", file_.named(), tensor.name,
                                   tensor.type_name, name(type)));
  const DType from = *tensor.type;
  const std::int64_t width = size_of(from);
  if (first < 0 || count < 0 || first > tensor.bytes / width - count)
    throw MachineError(fmt::format("{}: elements [{}, +{}) are asked of tensor \"{}\", which has {}", file_.named(),
                                   first, count, tensor.name, tensor.bytes / width));
  std::int64_t at = header_.data_begin + tensor.begin + first * width;
  if (from == type) return file_.read(at, count * width, to);
  alignas(8) std::array<std::byte, 64 * 1024> part;
  while (count > 0) {
    const std::int64_t n = std::min(count, static_cast<std::int64_t>(part.size()) / width);
    file_.read(at, n * width, part.data());
    with_type(from, [&](auto source) {
      with_type(type, [&](auto target) {
        convert_elements(reinterpret_cast<const decltype(source)*>(part.data()),
                         reinterpret_cast<decltype(target)*>(to), n, false);
      });
    });
    at += n * width;
    to += n * size_of(type);
    count -= n;
  }
}

}  // namespace fsdp
