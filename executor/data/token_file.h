// Text and token files as training data.
//
//   const TokenFile data("input.txt", "--data", {.vocab = model.vocab, .seq_len = plan.seq_len, .seed = plan.seed});
//   options.training.tokens = data.reader();
//
// A file of N tokens is cut into windows: window w holds tokens w S .. w S + S (S = seq_len): S to read and, one on, S
// to predict; so each token but the first is predicted once in an epoch, and a rest of fewer than S is left out.
// Windows come in the order of executor/data/order.h.
//
// Three kinds of file:
//   text            a token is a byte; the model needs 256 or more
//   uint16, uint32  little-endian numbers without a header, as nanoGPT writes them; or with llm.c's header (1,024
//                   bytes: magic number 20240520, version 1, count for uint16; 20240801, 7, count for uint32), which
//                   decides
// Left to itself, the reader goes by llm.c's header, then by the name (.bin, .u16, .uint16, .u32, .uint32; .txt, .md,
// .text, .csv, .json, .jsonl, .html, .xml: text), then by the content (UTF-8 without control characters: text). Of a
// .bin it is uint32 if every second 16-bit word of its start is zero, else uint16. What was assumed is said;
// --data-type ends the guessing.
//
// Nothing is loaded: sequences are read from the file when they are used (executor/data/file_reader.h says why it is
// not mapped).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "executor/data/file_reader.h"
#include "executor/training_inputs.h"

namespace fsdp {

enum class DataType : std::uint8_t { automatic, text, uint16, uint32 };
[[nodiscard]] std::string_view name(DataType);  // "auto" "text" "uint16" "uint32"
[[nodiscard]] DataType parse_data_type(std::string_view text,
                                       std::string_view where);  // throws InputError with the list

struct DataOptions {
  DataType type = DataType::automatic;
  std::int64_t vocab = 0, seq_len = 0;  // of the model and the plan
  std::uint64_t seed = 0;
};

class TokenFile {
 public:
  // Throws InputError(`where`: "path", ...): no regular file, empty, cut short, shorter than seq_len + 1 tokens, a
  // token beyond the vocabulary (with its position; all of a file up to 1 GiB is looked at now, of a larger one the
  // first GiB), text for a small vocabulary, a type that cannot be told.
  TokenFile(const std::string& path, std::string_view where, const DataOptions&);

  [[nodiscard]] DataType type() const { return type_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t windows() const { return windows_; }
  // "README.md: 31,337 tokens of one byte each (text, by its name), 489 windows of 64".
  [[nodiscard]] std::string describe() const;
  // Sequence `sequence` of training: options.seq_len tokens, and the token after each. Called by several threads at
  // once; takes no heap. Throws MachineError: a token beyond the vocabulary, a file that has become shorter.
  void read(std::int64_t sequence, std::int64_t* ids, std::int64_t* targets) const;
  // For Training::tokens. Shares the open file; MachineError if it is asked for sequences of another length.
  [[nodiscard]] TokenReader reader() const;

 private:
  void decide(DataType);
  void check_tokens() const;
  std::int64_t read_tokens(std::int64_t first, std::int64_t count, std::int64_t* to) const;

  std::shared_ptr<const FileReader> file_;
  DataOptions options_;
  DataType type_ = DataType::automatic;
  std::string reason_;      // why it is of that type
  std::int64_t begin_ = 0;  // where tokens start, in bytes
  std::int64_t width_ = 1;  // of one, in bytes
  std::int64_t tokens_ = 0, windows_ = 0;
};

}  // namespace fsdp
