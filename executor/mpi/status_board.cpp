#include "executor/mpi/status_board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "models/input/error.h"

namespace fsdp::mpi {
namespace {

constexpr const char* kFile = "/ranks";

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw MachineError(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

std::string temporary_folder() {
  const char* set = std::getenv("TMPDIR");
  return set != nullptr && *set != '\0' ? set : "/tmp";
}

}  // namespace

std::string new_board_folder() {
  std::random_device random;
  return fmt::format("{}/fsdp-plan-{:08x}{:08x}", temporary_folder(), random(), random());
}

void make_board_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) fail("cannot make this folder", path);
}

void remove_board(const std::string& folder) {
  ::unlink((folder + kFile).c_str());
  ::rmdir(folder.c_str());
}

// Every atomic starts as zero bytes, which is what a fresh file holds; each rank constructs its own slot.
StatusBoard::StatusBoard(const std::string& folder, std::int64_t ranks) : folder_(folder) {
  const std::string file = folder + kFile;
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) fail("cannot make this folder", folder_);
  struct stat found {};
  if (::lstat(folder_.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != ::geteuid())
    throw MachineError(folder_ + ": is not a folder of this user's");
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) fail("cannot make this file", file);
  if (::fstat(fd, &found) == 0) device_ = found.st_dev, inode_ = found.st_ino;
  bytes_ = sizeof(Slot) * static_cast<std::size_t>(ranks) + sizeof(Claims) + alignof(Slot);
  if (::ftruncate(fd, static_cast<off_t>(bytes_)) == 0)
    mapped_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped_ == nullptr || mapped_ == MAP_FAILED) fail("cannot map this file", file);
  claims_ = static_cast<Claims*>(mapped_);
  auto* first = static_cast<std::byte*>(mapped_) + (sizeof(Claims) + alignof(Slot) - 1) / alignof(Slot) * alignof(Slot);
  slots_ = {reinterpret_cast<Slot*>(first), static_cast<std::size_t>(ranks)};
}

StatusBoard::~StatusBoard() { unlink(); }  // stays mapped: threads that were left behind may still write

bool StatusBoard::in_place() const {
  struct stat found {};
  return ::stat((folder_ + kFile).c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_;
}

void StatusBoard::unlink() noexcept {
  if (folder_.empty()) return;
  remove_board(folder_);
  folder_.clear();
}

bool StatusBoard::claim(std::size_t which) {
  std::int32_t nobody = 0;
  return (*claims_)[which].compare_exchange_strong(nobody, 1);
}

// /proc/PID/stat: "pid (name) state ... starttime ...": state is the 3rd field, the parent the 4th, the start the
// 22nd. The name may hold anything.
Process look_at(std::int64_t pid) {
  std::array<char, 1024> text{};
  std::array<char, 64> path{};
  *fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", pid).out = '\0';
  const int fd = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  const char* after = n > 0 ? std::strrchr(text.data(), ')') : nullptr;
  if (after == nullptr || after[1] == '\0') return {};
  const char state = after[2];
  const char* field = after + 2;
  for (int i = 3; i < 22 && field != nullptr; ++i) {
    field = std::strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  Process p;
  p.parent = std::strtoll(after + 3, nullptr, 10);
  p.started = field != nullptr ? std::strtoll(field, nullptr, 10) : 0;
  p.state = state == 'Z' || state == 'X' || state == 'x' ? ProcessState::gone
            : state == 'T'                               ? ProcessState::stopped
                                                         : ProcessState::runs;
  return p;
}

}  // namespace fsdp::mpi
