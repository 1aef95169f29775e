#include "executor/data/file_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {

FileReader::FileReader(const std::string& path, std::string_view where)
    : path_(path), named_(std::string(where) + ": \"" + printable(path) + "\"") {
  // Non-blocking: opening a pipe that nobody writes to would wait for ever.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw InputError(named_, "there is no such file", "check the path");
    throw InputError(named_, std::string("cannot be opened: ") + std::strerror(errno), "check its permissions");
  }
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw InputError(named_, known && S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file", "give a file");
  }
  size_ = status.st_size;
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      named_(std::move(other.named_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(named_, other.named_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileReader::read(std::int64_t offset, std::int64_t count, void* to) const {
  auto* next = static_cast<std::byte*>(to);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, next, static_cast<std::size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw MachineError(fmt::format("{}: cannot be read: {}", named_, std::strerror(errno)));
    if (got == 0)
      throw MachineError(
          fmt::format("{}: ends at byte {} although it had {} bytes when it was opened: it was cut short meanwhile",
                      named_, offset, size_));
    next += got;
    offset += got;
    count -= got;
  }
}

}  // namespace fsdp
