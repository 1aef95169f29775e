#include "cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "models/input/error.h"

namespace fsdp::cli {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 30U;

std::string reason() { return std::strerror(errno); }

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// Devices and pipes (/dev/stdout) are written in place: there is nothing to rename onto.
bool is_special(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

// False when the disk failed (errno says why).
bool write_all(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    throw InputError(path, "cannot be written (" + reason() + ")",
                     "give a file in a folder that exists and can be written");
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int problem = errno;
  const bool closed = std::fclose(file) == 0;
  if (!wrote) errno = problem;
  return wrote && closed;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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

void check_output(const std::optional<std::string>& path, std::initializer_list<std::optional<std::string>> others) {
  if (!path) return;
  if (path->empty()) throw InputError("-o", "the name of the output is empty", "give the name of a file to write");
  if (*path == "-") throw InputError("-o", "'-' is not the name of a file", "give one, or print with --json");
  if (is_folder(*path)) throw InputError(*path, "is a folder", "give the name of a file to write");
  const std::size_t slash = path->rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path->substr(0, slash + 1);
  if (::access(is_special(*path) ? path->c_str() : folder.c_str(), W_OK) != 0)
    throw InputError(*path, "cannot be written (" + reason() + ")",
                     "give a file in a folder that exists and can be written");
  for (const std::optional<std::string>& other : others) {
    if (!other || is_special(*path)) continue;
    if (*other == *path) throw InputError(*path, "is named for two files at once", "give another name for the output");
    check_apart(*path, *other);
  }
}

void check_apart(const std::string& output, const std::string& input) {
  std::error_code error;
  if (std::filesystem::is_regular_file(output, error) && std::filesystem::equivalent(output, input, error))
    throw InputError(output, "is the file that is read", "give another name for the output");
}

void write_file(const std::string& path, std::string_view text) {
  if (is_folder(path)) throw InputError(path, "is a folder", "give the name of a file to write");
  if (is_special(path)) {
    if (!write_all(path, text)) throw MachineError(path + ": could not be written (" + reason() + ")");
    return;
  }
  const std::string beside = fmt::format("{}.tmp.{}", path, ::getpid());
  bool written = false;
  try {
    written = write_all(beside, text);
  } catch (const InputError&) {
    throw InputError(path, "cannot be written (" + reason() + ")",
                     "give a file in a folder that exists and can be written");
  }
  if (written && std::rename(beside.c_str(), path.c_str()) == 0) return;
  const std::string why = reason();
  std::remove(beside.c_str());
  throw MachineError(path + ": could not be written (" + why + ")");
}

void print(std::FILE* out, std::string_view text) { std::fwrite(text.data(), 1, text.size(), out); }

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::say(const std::string& text) {
  if (!terminal_ || now() - last_ < 0.05) return;
  last_ = now();
  shown_ = true;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

std::string bold(std::FILE* out, const std::string& text) {
  return ::isatty(::fileno(out)) == 1 ? "\033[1m" + text + "\033[0m" : text;
}

}  // namespace fsdp::cli
