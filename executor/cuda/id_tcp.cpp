#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "executor/cuda/id_text.h"
#include "models/error.h"

namespace fsdp::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kLongest = 8192;       // of a message

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { if (fd_ >= 0) ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

std::string last_error() { return std::generic_category().message(errno); }

// True: ready before the limit.
bool ready(int fd, short events, Clock::time_point limit) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, left > 0 ? static_cast<int>(std::min<long long>(left + 1, 1000)) : 0);
    if (n > 0) return true;
    if (Clock::now() >= limit) return false;
  }
}

bool send_text(int fd, const std::string& text, Clock::time_point limit) {
  for (std::size_t sent = 0; sent < text.size();) {
    if (!ready(fd, POLLOUT, limit)) return false;
    const ssize_t n = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

// Until `ending` has come, the other side closes, or the time is over.
std::string receive_text(int fd, std::string_view ending, Clock::time_point limit) {
  std::string text;
  char part[512];
  while (text.size() < kLongest && !std::string_view(text).ends_with(ending) && ready(fd, POLLIN, limit)) {
    const ssize_t n = ::recv(fd, part, sizeof part, 0);
    if (n <= 0) break;
    text.append(part, static_cast<std::size_t>(n));
  }
  return text;
}

// Connected, or -1 (refused, unreachable, out of time).
int connect_to(const addrinfo& address, Clock::time_point limit) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return fd;
  int error = errno;
  socklen_t size = sizeof error;
  if (error == EINPROGRESS && ready(fd, POLLOUT, limit) && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

IdServer::IdServer(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const auto refuse = [&] {
    const std::string why = last_error();
    if (socket_ >= 0) ::close(socket_);
    throw MachineError(fmt::format("TCP port {}: rank 0 cannot listen there ({}); give a free one", port, why));
  };
  if (socket_ < 0) refuse();
  const int yes = 1;
  (void)::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  socklen_t size = sizeof address;
  if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(socket_, 512) != 0) refuse();
  if (::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) refuse();
  port_ = ntohs(address.sin_port);
}

IdServer::~IdServer() { ::close(socket_); }

void IdServer::serve(const Meeting& meeting, const Id& id, std::int64_t others) const {
  check(meeting);
  const auto limit = Clock::now() + meeting.timeout;
  const std::string answer = format_id({meeting.run_id, id}), strangers = format_id({meeting.run_id, {}});
  for (std::int64_t served = 0; served < others;) {
    if (!ready(socket_, POLLIN, limit))
      throw MachineError(fmt::format("TCP port {}: {} of {} other processes asked for the communicator's id within {:.3g} s; see whether all were started with run id '{}'",
                                     port_, served, others, std::chrono::duration<double>(meeting.timeout).count(), meeting.run_id));
    const Socket caller(::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.get() < 0) continue;
    const auto patience = std::min(limit, Clock::now() + std::chrono::seconds(2));  // one that says nothing does not hold up the others
    const auto asked = parse_id(receive_text(caller.get(), "\nend\n", patience));
    if (!asked) continue;
    const bool ours = asked->run_id == meeting.run_id;
    if (send_text(caller.get(), ours ? answer : strangers, patience) && ours) ++served;
  }
}

Id ask_for_id(const std::string& host, std::uint16_t port, const Meeting& meeting) {
  check(meeting);
  const auto limit = Clock::now() + meeting.timeout;
  const std::string where = fmt::format("{}:{}", host, port), question = format_id({meeting.run_id, {}});
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    throw MachineError(fmt::format("{}: {}; give the name of rank 0's machine", where, ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  std::string why = "nobody listens there";
  while (true) {
    if (const Socket server(connect_to(*found, limit)); server.get() >= 0) {
      why = "no answer came";
      if (send_text(server.get(), question, limit)) {
        const auto answer = parse_id(receive_text(server.get(), "\nend\n", limit));
        if (answer && answer->run_id == meeting.run_id) return answer->id;
        if (answer)
          throw MachineError(fmt::format("{}: rank 0 of run '{}' answers there, but this process is of run '{}'; give all processes of a run one run id, and each run a port of its own",
                                         where, answer->run_id, meeting.run_id));
      }
    }
    if (Clock::now() >= limit)
      throw MachineError(fmt::format("{}: no communicator id of run '{}' came within {:.3g} s: {}; see whether rank 0 runs and its port is open",
                                     where, meeting.run_id, std::chrono::duration<double>(meeting.timeout).count(), why));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace fsdp::cuda
