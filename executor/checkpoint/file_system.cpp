#include "executor/checkpoint/file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::size_t kGather = std::size_t{1} << 20U, kLarge = std::size_t{1} << 18U;

}  // namespace

void fail_machine(const std::string& path, const std::string& what, std::int64_t result) {
  throw MachineError(fmt::format("{}: {} ({})", path, what, std::strerror(static_cast<int>(-result))));
}

FileWriter::FileWriter(const FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {
  file_ = files_.create(path_);
  if (file_ < 0) fail_machine(path_, "could not be created", file_);
}

FileWriter::~FileWriter() {
  if (file_ >= 0) files_.close(file_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t n = files_.write(file_, bytes);
    if (n == -EINTR) continue;
    if (n <= 0) fail_machine(path_, "could not be written", n == 0 ? -ENOSPC : n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void FileWriter::flush() {
  write(gathered_);
  gathered_.clear();
}

void FileWriter::append(std::span<const std::byte> bytes) {
  bytes_ += static_cast<std::int64_t>(bytes.size());
  if (gathered_.size() + bytes.size() > kGather || bytes.size() >= kLarge) flush();
  if (bytes.size() >= kLarge) return write(bytes);
  gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
}

void FileWriter::append(const std::string& text) { append(std::as_bytes(std::span(text))); }

void FileWriter::sync() {
  flush();
  if (const int result = files_.sync(file_); result < 0)
    fail_machine(path_, "could not be written to the disk", result);
}

void FileWriter::finish() {
  sync();
  const int closed = files_.close(file_);
  file_ = -1;
  if (closed < 0) fail_machine(path_, "could not be closed", closed);
}

CheckedFile::CheckedFile(const FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {
  Entry entry;
  const int found = files_.inspect(path_, entry);
  if (found == -ENOENT || found == -ENOTDIR)
    throw InputError(path_, "is missing", "check the path, or use another checkpoint");
  if (found >= 0 && entry.kind != EntryKind::file)
    throw InputError(path_, "is not a file (links are not followed)", "put the file itself there");
  file_ = found < 0 ? found : files_.open(path_);
  if (file_ < 0)
    throw InputError(path_, fmt::format("cannot be read ({})", std::strerror(-file_)),
                     "check the file and its permissions");
}

CheckedFile::~CheckedFile() {
  if (file_ >= 0) files_.close(file_);
}

void CheckedFile::read(std::int64_t at, std::span<std::byte> to) const {
  while (!to.empty()) {
    const std::int64_t n = files_.read(file_, to, at);
    if (n == -EINTR) continue;
    if (n < 0) fail_machine(path_, fmt::format("could not be read at byte {}", at), n);
    if (n == 0)
      throw InputError(path_, fmt::format("ends at byte {}, where {} more belong", at, to.size()),
                       "it is truncated; use another checkpoint");
    at += n;
    to = to.subspan(static_cast<std::size_t>(n));
  }
}

bool is_kind(const FileSystem& files, const std::string& path, EntryKind kind) {
  Entry entry;
  return files.inspect(path, entry) == 0 && entry.kind == kind;
}

std::string read_text(const FileSystem& files, const std::string& path, std::int64_t most) {
  const CheckedFile file(files, path);
  Entry entry;
  if (const int result = files.inspect(path, entry); result < 0) fail_machine(path, "cannot be read", result);
  if (entry.bytes > most)
    throw InputError(path, fmt::format("has {} bytes, more than the {} that such a file may have", entry.bytes, most));
  std::string text(static_cast<std::size_t>(entry.bytes), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void sync_folder(const FileSystem& files, const std::string& path) {
  const int folder = files.open_folder(path);
  if (folder < 0) fail_machine(path, "could not be opened", folder);
  const int result = files.sync(folder);
  files.close(folder);
  if (result < 0) fail_machine(path, "could not be written to the disk", result);
}

}  // namespace fsdp
