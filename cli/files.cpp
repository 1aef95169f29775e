#include "cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/output_target.h"
#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp::cli {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 30U;

std::string reason() { return std::strerror(errno); }

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// Devices and pipes are written in place: there is nothing to rename onto.
bool is_special(const OutputTarget& target) {
  struct stat info {};
  return target.descriptor || (::stat(target.path.c_str(), &info) == 0 && !S_ISREG(info.st_mode));
}

// False: errno says why.
bool is_writable(const OutputTarget& target, bool special) {
  if (!target.descriptor) return ::access((special ? target.path : folder_of(target.path)).c_str(), W_OK) == 0;
  const int mode = ::fcntl(*target.descriptor, F_GETFL);
  if (mode < 0) return false;
  errno = EBADF;
  return (mode & O_ACCMODE) != O_RDONLY;
}

[[noreturn]] void refuse_to_write(const std::string& path, const OutputTarget& target) {
  const std::string why = reason();
  std::error_code none;
  const bool dangling = std::filesystem::is_symlink(path, none) && ::access(path.c_str(), F_OK) != 0;
  const std::string leads = dangling ? "leads to " + target.path + ", which " : "";
  throw InputError(path, leads + "cannot be written (" + why + ")",
                   "give a file in a folder that exists and can be written");
}

// False when the disk failed (errno says why).
bool write_all(std::FILE* file, std::string_view text) {
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int problem = errno;
  const bool closed = std::fclose(file) == 0;
  if (!wrote) errno = problem;
  return wrote && closed;
}

// After what was printed there so far.
std::FILE* open_in_place(const OutputTarget& target) {
  if (!target.descriptor) return std::fopen(target.path.c_str(), "wb");
  std::fflush(stdout);
  const int copy = ::dup(*target.descriptor);
  if (copy < 0) return nullptr;
  std::FILE* file = ::fdopen(copy, "wb");
  if (file == nullptr) {
    const int problem = errno;
    ::close(copy);
    errno = problem;
  }
  return file;
}

// A file beside the target, with the target's permissions if that exists.
std::FILE* open_beside(const std::string& beside, const OutputTarget& target) {
  std::FILE* file = std::fopen(beside.c_str(), "wb");
  struct stat info {};
  if (file != nullptr && ::stat(target.path.c_str(), &info) == 0) {
    if (::fchmod(::fileno(file), info.st_mode & 07777U) != 0) errno = 0;  // as a new file has them, then
  }
  return file;
}

void check_page(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (!ending.empty() && ending != ".html" && ending != ".htm")
    throw InputError("--report", "'" + printable(path) + "' is no name of a page, which is HTML",
                     "give one that ends with .html");
}

}  // namespace

std::string read_file(const std::string& path) {
  if (is_folder(path)) throw InputError(path, "is a folder", "give a file");
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw InputError(path, "cannot be read (" + reason() + ")", "check the path");
  std::string text;
  char block[65536];
  std::size_t got = 0;
  while (text.size() <= kLargestFile && (got = std::fread(block, 1, sizeof block, file)) > 0) text.append(block, got);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) throw InputError(path, "cannot be read to its end", "check the file");
  if (text.size() > kLargestFile)
    throw InputError(path, "is larger than 1 GiB", "no document of fsdp-plan is; check the path");
  return text;
}

void check_output(std::string_view flag, const std::optional<std::string>& path,
                  std::initializer_list<std::optional<std::string>> others) {
  if (!path) return;
  if (path->empty()) throw InputError(flag, "the name of the output is empty", "give the name of a file to write");
  const char* remedy = flag == "-o" ? "give one, or print with --json" : "give one";
  if (*path == "-") throw InputError(flag, "'-' is not the name of a file", remedy);
  const OutputTarget target = output_target(*path);
  if (!target.descriptor && is_folder(target.path))
    throw InputError(*path, "is a folder", "give the name of a file to write");
  const bool special = is_special(target);
  if (!is_writable(target, special)) refuse_to_write(*path, target);
  for (const std::optional<std::string>& other : others) {
    if (!other || special) continue;
    if (*other == *path || (!other->empty() && output_target(*other) == target))
      throw InputError(*path, "is named for two files at once", "give another name for the output");
    check_apart(*path, *other);
  }
  if (flag == "--report") check_page(*path);
}

void check_apart(const std::string& output, const std::string& input) {
  std::error_code error;
  if (std::filesystem::is_regular_file(output, error) && std::filesystem::equivalent(output, input, error))
    throw InputError(output, "is the file that is read", "give another name for the output");
}

void write_file(const std::string& path, std::string_view text) {
  const OutputTarget target = output_target(path);
  if (!target.descriptor && is_folder(target.path))
    throw InputError(path, "is a folder", "give the name of a file to write");
  const bool in_place = is_special(target);
  const std::string beside = fmt::format("{}.tmp.{}", target.path, ::getpid());
  std::FILE* file = in_place ? open_in_place(target) : open_beside(beside, target);
  if (file == nullptr) refuse_to_write(path, target);
  const bool written = write_all(file, text);
  if (written && (in_place || std::rename(beside.c_str(), target.path.c_str()) == 0)) return;
  const std::string why = reason();
  if (!in_place) std::remove(beside.c_str());
  throw MachineError(path + ": could not be written (" + why + ")");
}

void print(std::FILE* out, std::string_view text) { std::fwrite(text.data(), 1, text.size(), out); }

}  // namespace fsdp::cli
