// Reading of Python's pickle format as data: dictionaries, lists, tuples, texts, numbers, booleans, None. A pickle can
// name functions for Python to call; here nothing is ever called, and a file that names one is refused.
//
//   const PickleDocument document(bytes, "snapshot.pickle");
//   for (const PickleValue& segment : document.root().at("segments").list())
//     total += segment.at("total_size").integer(0, kMaxInteger);
//
// Texts refer to `bytes`, which must outlive the document. A value that a file refers to several times is stored once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class PickleDocument;

// Errors name the file and the key; a reader of lists adds the position (InputError::at).
class PickleValue {
 public:
  PickleValue(const PickleDocument& document, std::uint32_t node, std::string_view key)
      : document_(&document), node_(node), key_(key) {}

  [[nodiscard]] std::optional<PickleValue> find(std::string_view key) const;  // of a dictionary; None counts as absent
  [[nodiscard]] PickleValue at(std::string_view key) const;                   // throws if absent
  [[nodiscard]] std::size_t size() const;                                     // of a list or tuple
  [[nodiscard]] PickleValue item(std::size_t index) const;                    // of a list or tuple
  [[nodiscard]] std::vector<PickleValue> list() const;
  [[nodiscard]] std::int64_t integer(std::int64_t min, std::int64_t max) const;
  [[nodiscard]] std::string_view text() const;
  // Equal for two values that are the same object in the file.
  [[nodiscard]] std::uint32_t identity() const { return node_; }
  [[noreturn]] void refuse(const std::string& problem, const std::string& remedy = "") const;

 private:
  const PickleDocument* document_;
  std::uint32_t node_;
  std::string_view key_;
};

class PickleDocument {
 public:
  // Throws InputError: not a pickle, cut off, more than data, an integer beyond 64 bits.
  PickleDocument(std::string_view bytes, std::string where);
  PickleDocument(PickleDocument&&) noexcept;
  PickleDocument& operator=(PickleDocument&&) noexcept;
  ~PickleDocument();
  [[nodiscard]] PickleValue root() const&;
  PickleValue root() const&& = delete;
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  friend class PickleValue;
  struct Nodes;
  std::unique_ptr<Nodes> nodes_;
  std::string where_;
};

}  // namespace fsdp
