// A regular file that is read in place: byte ranges on demand, by several threads, nothing kept in memory but the
// system's own cache.
//
//   const FileReader file("model.safetensors", "--init-from");
//   file.read(0, 8, bytes);
//
// Ranges are read, not mapped: a mapped file that another program cuts short kills the process with SIGBUS; here the
// reader throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace fsdp {

class FileReader {
 public:
  // Throws InputError(`where`: "path", ...): absent, not a regular file (a folder, a pipe: never waits for one), not
  // readable.
  FileReader(const std::string& path, std::string_view where);
  FileReader(FileReader&&) noexcept;
  FileReader& operator=(FileReader&&) noexcept;
  ~FileReader();

  [[nodiscard]] std::int64_t size() const { return size_; }  // in bytes, when it was opened
  [[nodiscard]] const std::string& path() const { return path_; }
  // For errors: `where: "path"`.
  [[nodiscard]] const std::string& named() const { return named_; }
  // Bytes [offset, offset + count) to `to`. Takes no heap. Throws MachineError if the file has become shorter or the
  // disk fails.
  void read(std::int64_t offset, std::int64_t count, void* to) const;

 private:
  std::string path_, named_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};
static_assert(std::is_nothrow_move_constructible_v<FileReader> && !std::is_copy_constructible_v<FileReader>);

}  // namespace fsdp
