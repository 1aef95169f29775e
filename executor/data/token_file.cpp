#include "executor/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "executor/data/order.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kCheckedBytes = std::int64_t{1} << 30;  // a second or so
constexpr std::int64_t kStart = 1 << 16;                       // what guesses are made from
constexpr std::int64_t kHeaderBytes = 1024;                    // llm.c: 256 integers of 32 bits

struct TokenType {
  DataType type;
  std::string_view name;
  std::int64_t width;
};
constexpr std::array kTokenTypes = {TokenType{DataType::automatic, "auto", 0}, TokenType{DataType::text, "text", 1},
                                    TokenType{DataType::uint16, "uint16", 2}, TokenType{DataType::uint32, "uint32", 4}};

// llm.c's header, if the file has one.
struct LlmC {
  DataType type;
  std::int64_t tokens;
};
std::optional<LlmC> llm_c_header(const FileReader& file) {
  if (file.size() < kHeaderBytes) return std::nullopt;
  std::array<std::int32_t, 3> head{};
  file.read(0, sizeof head, head.data());
  if (head[0] == 20240520 && head[1] == 1) return LlmC{DataType::uint16, head[2]};
  if (head[0] == 20240801 && head[1] == 7) return LlmC{DataType::uint32, head[2]};
  return std::nullopt;
}

std::vector<unsigned char> start_of(const FileReader& file) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(std::min(file.size(), kStart)));
  file.read(0, static_cast<std::int64_t>(bytes.size()), bytes.data());
  return bytes;
}

// UTF-8 (RFC 3629, overlong forms not told apart) without control characters but white space; a last character may be
// cut.
bool reads_as_text(const std::vector<unsigned char>& bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const unsigned char c = bytes[i++];
    if (c < 0x20 && (c < '\t' || c > '\r')) return false;
    if (c < 0x80) continue;
    std::size_t more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
    if (c < 0xC2 || c > 0xF4) return false;
    for (; more > 0 && i < bytes.size(); --more)
      if ((bytes[i++] & 0xC0) != 0x80) return false;
  }
  return true;
}

bool every_second_word_is_zero(const std::vector<unsigned char>& bytes) {
  if (bytes.size() < 4) return false;
  for (std::size_t i = 0; i + 3 < bytes.size(); i += 4)
    if (bytes[i + 2] != 0 || bytes[i + 3] != 0) return false;
  return true;
}

struct Guess {
  DataType type;
  std::string reason;
};
std::optional<Guess> guess(const FileReader& file) {
  static constexpr std::array texts = {".txt", ".text", ".md", ".csv", ".json", ".jsonl", ".html", ".xml"};
  const std::string suffix = std::filesystem::path(file.path()).extension().string();
  if (std::find(texts.begin(), texts.end(), suffix) != texts.end()) return Guess{DataType::text, "by its name"};
  if (suffix == ".u16" || suffix == ".uint16") return Guess{DataType::uint16, "by its name"};
  if (suffix == ".u32" || suffix == ".uint32") return Guess{DataType::uint32, "by its name"};
  const std::vector<unsigned char> start = start_of(file);
  if (suffix == ".bin") {
    const bool wide = file.size() % 4 == 0 && every_second_word_is_zero(start);
    return wide ? Guess{DataType::uint32, "assumed: every second 16-bit word at its start is zero"}
                : Guess{DataType::uint16, "assumed for .bin"};
  }
  if (reads_as_text(start)) return Guess{DataType::text, "assumed: it reads as text"};
  return std::nullopt;
}

}  // namespace

std::string_view name(DataType type) { return kTokenTypes.at(static_cast<std::size_t>(type)).name; }

DataType parse_data_type(std::string_view text, std::string_view where) {
  for (const TokenType& row : kTokenTypes)
    if (row.name == text) return row.type;
  throw InputError(std::string(where), "'" + printable(text) + "' is not a type of data",
                   "give auto, text, uint16 or uint32");
}

TokenFile::TokenFile(const std::string& path, std::string_view where, const DataOptions& options)
    : file_(std::make_shared<const FileReader>(path, where)), options_(options) {
  if (options.vocab < 1 || options.seq_len < 1)
    throw MachineError("data are read for a vocabulary and sequences of at least one token");
  if (file_->size() == 0) throw InputError(file_->named(), "is empty", "give a file with at least one sequence");
  decide(options.type);
  if (type_ == DataType::text && options_.vocab < 256)
    throw InputError(file_->named(), fmt::format("is read as bytes, but the model has only {} tokens", options_.vocab),
                     "use a model with a vocabulary of 256 or more, or a token file (--data-type uint16)");
  if (tokens_ < options_.seq_len + 1)
    throw InputError(
        file_->named(),
        fmt::format("has {} tokens ({}), but one sequence needs {}", tokens_, name(type_), options_.seq_len + 1),
        "give a longer file, or plan shorter sequences (--seq-len)");
  windows_ = (tokens_ - 1) / options_.seq_len;
  check_tokens();
}

void TokenFile::decide(DataType type) {
  const auto header = type == DataType::text ? std::nullopt : llm_c_header(*file_);
  if (header) {
    if (type != DataType::automatic && type != header->type)
      throw InputError(file_->named(), fmt::format("has llm.c's header for {}", name(header->type)),
                       "leave --data-type out");
    type_ = header->type;
    reason_ = "by llm.c's header";
    begin_ = kHeaderBytes;
  } else if (type == DataType::automatic) {
    const std::optional<Guess> found = guess(*file_);
    if (!found)
      throw InputError(file_->named(),
                       "does not say what it holds: neither by its name nor by a header, and it is no text",
                       "say it with --data-type text, uint16 or uint32");
    type_ = found->type;
    reason_ = found->reason;
  } else {
    type_ = type;
    reason_ = "as asked";
  }
  width_ = kTokenTypes.at(static_cast<std::size_t>(type_)).width;
  const std::int64_t bytes = file_->size() - begin_;
  tokens_ = bytes / width_;
  if (header && tokens_ != header->tokens)
    throw InputError(file_->named(),
                     fmt::format("says that it has {} tokens, but has room for {}", header->tokens, tokens_),
                     "write the file again");
  if (bytes % width_ != 0)
    throw InputError(file_->named(),
                     fmt::format("has {} bytes, which is not a multiple of the {} of a token ({}, {}): it was cut "
                                 "short or is of another type",
                                 bytes, width_, name(type_), reason_),
                     "write it again, or say its type with --data-type");
}

void TokenFile::check_tokens() const {
  if (type_ == DataType::text) return;
  std::array<std::int64_t, 1024> part{};
  const std::int64_t last = std::min(tokens_, kCheckedBytes / width_);
  for (std::int64_t first = 0; first < last;) {
    const std::int64_t n = std::min<std::int64_t>(last - first, part.size());
    if (const std::int64_t bad = read_tokens(first, n, part.data()); bad >= 0)
      throw InputError(
          file_->named(),
          fmt::format("token {}, at position {}, is not one of the model's {} (read as {}, {})",
                      part[static_cast<std::size_t>(bad)], first + bad, options_.vocab, name(type_), reason_),
          "make it with the model's tokenizer, or say its type with --data-type");
    first += n;
  }
}

// Which of them, from 0, is the first beyond the vocabulary (it is stored, what follows it is not); -1: none.
std::int64_t TokenFile::read_tokens(std::int64_t first, std::int64_t count, std::int64_t* to) const {
  alignas(8) std::array<unsigned char, 4096> part;
  const std::int64_t at_once = static_cast<std::int64_t>(part.size()) / width_;
  for (std::int64_t done = 0; done < count; done += at_once) {
    const std::int64_t n = std::min(count - done, at_once);
    file_->read(begin_ + (first + done) * width_, n * width_, part.data());
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint32_t token = 0;
      std::memcpy(&token, part.data() + i * width_, static_cast<std::size_t>(width_));
      to[done + i] = token;
      if (to[done + i] >= options_.vocab) return done + i;
    }
  }
  return -1;
}

void TokenFile::read(std::int64_t sequence, std::int64_t* ids, std::int64_t* targets) const {
  const std::int64_t first = window_of_sequence(options_.seed, sequence, windows_) * options_.seq_len;
  const auto refuse = [&](std::int64_t position, std::int64_t token) {
    throw MachineError(fmt::format("{}: token {}, at position {}, is not one of the model's {}", file_->named(), token,
                                   position, options_.vocab));
  };
  if (const std::int64_t bad = read_tokens(first, options_.seq_len, ids); bad >= 0) refuse(first + bad, ids[bad]);
  std::copy(ids + 1, ids + options_.seq_len, targets);
  std::int64_t& last = targets[options_.seq_len - 1];
  if (read_tokens(first + options_.seq_len, 1, &last) >= 0) refuse(first + options_.seq_len, last);
}

TokenReader TokenFile::reader() const {
  return [data = *this](std::int64_t sequence, std::int64_t seq_len, std::int64_t* ids, std::int64_t* targets) {
    if (seq_len != data.options_.seq_len)
      throw MachineError(
          fmt::format("sequences of {} tokens are asked of data cut into {}", seq_len, data.options_.seq_len));
    data.read(sequence, ids, targets);
  };
}

std::string TokenFile::describe() const {
  return fmt::format("{}: {} tokens ({}, {}), {} windows of {}", printable(file_->path()), with_commas(tokens_),
                     name(type_), reason_, with_commas(windows_), with_commas(options_.seq_len));
}

}  // namespace fsdp
