// The machine's own file system (Linux).
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "executor/checkpoint/file_system.h"

namespace fsdp {
namespace {

template <class T>
T or_error(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

constexpr std::size_t kStartWriting = std::size_t{1} << 20U;

std::int64_t write_some(int file, std::span<const std::byte> bytes) {
  const ssize_t n = ::write(file, bytes.data(), bytes.size());
  if (n < 0) return -errno;
  // The disk begins at once instead of when memory fills up or at the sync: it works while the next piece is made. Only
  // a hint.
  if (static_cast<std::size_t>(n) >= kStartWriting) {
    const off_t end = ::lseek(file, 0, SEEK_CUR);
    if (end >= n) ::sync_file_range(file, end - n, n, SYNC_FILE_RANGE_WRITE);
  }
  return n;
}

int open_to_read(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return -errno;
  ::posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
  return file;
}

int list_names(const std::string& folder, std::vector<std::string>& names) {
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return -errno;
  errno = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int problem = errno;
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return -problem;
}

int inspect_path(const std::string& path, Entry& entry) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) < 0) return -errno;
  entry = {S_ISREG(info.st_mode)   ? EntryKind::file
           : S_ISDIR(info.st_mode) ? EntryKind::folder
                                   : EntryKind::other,
           info.st_size};
  return 0;
}

}  // namespace

FileSystem machine_file_system() {
  FileSystem f;
  f.create = [](const std::string& p) {
    return or_error(::open(p.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  };
  f.open = open_to_read;
  f.open_folder = [](const std::string& p) { return or_error(::open(p.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); };
  f.write = write_some;
  f.read = [](int file, std::span<std::byte> to, std::int64_t at) -> std::int64_t {
    return or_error(::pread(file, to.data(), to.size(), at));
  };
  f.sync = [](int file) { return or_error(::fsync(file)); };
  f.close = [](int file) { return or_error(::close(file)); };
  f.lock = [](int folder) { return or_error(::flock(folder, LOCK_EX | LOCK_NB)); };
  f.make_folder = [](const std::string& p) { return or_error(::mkdir(p.c_str(), 0777)); };
  f.remove_file = [](const std::string& p) { return or_error(::unlink(p.c_str())); };
  f.remove_folder = [](const std::string& p) { return or_error(::rmdir(p.c_str())); };
  f.rename = [](const std::string& from, const std::string& to) {
    return or_error(::rename(from.c_str(), to.c_str()));
  };
  f.list = list_names;
  f.inspect = inspect_path;
  return f;
}

}  // namespace fsdp
