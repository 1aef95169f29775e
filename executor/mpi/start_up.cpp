#include "executor/mpi/start_up.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace fsdp::mpi {
namespace {

constexpr std::int64_t kBetweenLooks = 50;  // milliseconds
// What launchers call a process's rank, how many ranks there are, and how many on its machine: Open MPI, PMIx, MPICH
// and those like it, Slurm.
constexpr std::array kRank = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
constexpr std::array kRanks = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
constexpr std::array kRanksHere = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
constexpr const char* kNamespace = "PMIX_NAMESPACE";  // of one launch alone

std::int64_t milliseconds() {
  using namespace std::chrono;
  return duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch()).count();
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Of the text of an environment, "NAME=value\0NAME=value\0".
std::optional<std::string> value_in(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return std::string(entry.substr(name.size() + 1));
    environment.remove_prefix(std::min(environment.size(), entry.size() + 1));
  }
  return std::nullopt;
}

template <class Names>
std::optional<std::int64_t> number_in(std::string_view environment, const Names& names) {
  for (const char* name : names)
    if (const auto text = value_in(environment, name)) return std::strtoll(text->c_str(), nullptr, 10);
  return std::nullopt;
}

// Equal in all processes of one launch on one machine, and in no others. Without a namespace of its own, the launch is
// the process that started them.
std::string launch_in(std::string_view environment, std::int64_t parent) {
  if (const auto name = value_in(environment, kNamespace)) return *name;
  return fmt::format("{}-{}-{}", value_in(environment, "SLURM_JOB_ID").value_or(""),
                     value_in(environment, "SLURM_STEP_ID").value_or(""), parent);
}

std::string executable_of(const std::string& process) {
  std::array<char, 4096> path{};
  const ssize_t n = ::readlink((process + "/exe").c_str(), path.data(), path.size() - 1);
  return n > 0 ? std::string(path.data(), static_cast<std::size_t>(n)) : "";
}

std::string announcement(std::int64_t rank, std::int64_t pid) { return fmt::format("rank-{}-{}", rank, pid); }

}  // namespace

StartUp::StartUp() {
  const std::string environment = text_of("/proc/self/environ");  // as the launcher wrote it, whatever was set since
  rank_ = number_in(environment, kRank);
  ranks_ = number_in(environment, kRanks);
  ranks_here_ = number_in(environment, kRanksHere);
  executable_ = executable_of("/proc/self");
  command_ = text_of("/proc/self/cmdline");
  if (rank_ && !executable_.empty()) launch_ = launch_in(environment, ::getppid());
  if (!launch_.empty()) (void)claim(announcement(*rank_, ::getpid()));
}

bool StartUp::found_all() const {
  const auto most = ranks_here_ ? ranks_here_ : ranks_;
  return most && static_cast<std::int64_t>(peers_.size()) + 1 >= *most;
}

// A rank may run other commands of this program before it joins, or beside it: only what has announced itself is a
// peer. Of the rest, one that was started with the same words is the rank before it has come so far.
void StartUp::find_peers() {
  if (found_all()) return silent_.clear();
  std::vector<Peer> silent;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), &::closedir);
  for (const dirent* entry = nullptr; proc != nullptr && (entry = ::readdir(proc.get())) != nullptr;) {
    const std::int64_t pid = std::strtoll(entry->d_name, nullptr, 10);
    if (pid <= 0 || pid == ::getpid()) continue;
    const std::string process = "/proc/" + std::to_string(pid);
    if (executable_of(process) != executable_) continue;  // those of other users have no name here
    const std::string environment = text_of(process + "/environ");
    const Process p = look_at(pid);
    const auto rank = number_in(environment, kRank);
    if (!rank || *rank == *rank_ || has_peer(*rank)) continue;
    if (p.state == ProcessState::gone || launch_in(environment, p.parent) != launch_) continue;
    const Peer found{*rank, pid, p.started};
    if (is_claimed(announcement(*rank, pid), true)) peers_.push_back(found);
    else if (p.state == ProcessState::stopped && text_of(process + "/cmdline") == command_) silent.push_back(found);
  }
  for (Peer& now : silent)
    for (const Peer& before : silent_)
      if (now.pid == before.pid && now.started == before.started) now.stopped_looks = before.stopped_looks;
  silent_ = std::move(silent);
  std::erase_if(silent_, [&](const Peer& p) { return has_peer(p.rank); });
}

bool StartUp::has_peer(std::int64_t rank) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.rank == rank; });
}

std::optional<StartUp::Lost> StartUp::look() {
  const std::int64_t now = milliseconds();
  if (launch_.empty() || now - looked_ < kBetweenLooks) return std::nullopt;
  looked_ = now;
  other_reports_ = other_reports_ || is_claimed("reporter", false);
  find_peers();
  for (const Peer& peer : peers_) {
    const Process p = look_at(peer.pid);
    if (p.state == ProcessState::gone || p.started != peer.started)
      return Lost{peer.rank, fmt::format("died: its process, {}, was killed, crashed or ended", peer.pid), 0};
  }
  for (std::vector<Peer>* processes : {&peers_, &silent_}) {
    for (Peer& peer : *processes) {
      peer.stopped_looks = look_at(peer.pid).state == ProcessState::stopped ? peer.stopped_looks + 1 : 0;
      if (peer.stopped_looks >= kStoppedLooks)
        return Lost{peer.rank, fmt::format("is stopped (SIGSTOP): its process, {}, is killed", peer.pid), peer.pid};
    }
  }
  return std::nullopt;
}

std::vector<std::int64_t> StartUp::never_seen() const {
  std::vector<std::int64_t> missing;
  if (launch_.empty() || !ranks_ || ranks_here_ != ranks_)
    return missing;  // which ranks are here is known of all alone
  for (std::int64_t r = 0; r < *ranks_; ++r)
    if (r != *rank_ && !has_peer(r)) missing.push_back(r);
  return missing;
}

std::string StartUp::seen() const {
  std::set<std::int64_t> here;
  if (rank_) here.insert(*rank_);
  for (const Peer& p : peers_) here.insert(p.rank);
  return fmt::format("rank{} {}{}", here.size() == 1 ? "" : "s", fmt::join(here, " "),
                     ranks_ ? fmt::format(" of {}", *ranks_) : "");
}

// A socket's name without a file: it belongs to one process of the machine, until that ends or runs another program.
bool StartUp::claim(const std::string& what) const {
  return with_socket(what, true, [](int fd, const sockaddr* name, socklen_t bytes) {
    const bool bound = ::bind(fd, name, bytes) == 0;
    if (!bound) ::close(fd);
    return bound;  // it stays open
  });
}

bool StartUp::is_claimed(const std::string& what, bool without_socket) const {
  return with_socket(what, without_socket, [](int fd, const sockaddr* name, socklen_t bytes) {
    const bool bound = ::connect(fd, name, bytes) == 0;
    ::close(fd);
    return bound;
  });
}

bool StartUp::with_socket(const std::string& what, bool without_socket,
                          bool (*use)(int fd, const sockaddr*, socklen_t)) const {
  const std::string name = fmt::format("fsdp-plan-{}-{}-{}", ::geteuid(), launch_, what);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data() + (name.size() - length), length);  // the end tells them apart
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return without_socket;
  return use(fd, reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

void StartUp::tell_signal() const {
  if (!launch_.empty()) (void)claim("signal-" + std::to_string(*rank_));
}

bool StartUp::all_signalled() const {
  if (!rank_ || peers_.empty()) return false;
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](const Peer& p) { return is_claimed("signal-" + std::to_string(p.rank), false); });
}

}  // namespace fsdp::mpi
