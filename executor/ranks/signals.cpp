#include "executor/ranks/signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace fsdp {
namespace {

// A handler reaches nothing but what is global.
constinit std::atomic<int> asked{0}, noted{0};
constinit std::atomic<std::int64_t> asked_at{0};  // nanoseconds
constinit std::atomic<bool> int_asks{false}, term_asks{false};
constinit std::atomic<const char*> notice{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::int64_t kSame = 200'000'000;  // nanoseconds

std::int64_t now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

bool asks(int signal) {
  return signal == SIGUSR1 || (signal == SIGINT && int_asks.load()) || (signal == SIGTERM && term_asks.load());
}

// False: asked already, a while ago.
bool ask(int signal) {
  const std::int64_t at = now();
  std::int64_t first = 0;
  if (!asked_at.compare_exchange_strong(first, at)) return at - first < kSame;
  asked = signal;
  if (const char* text = notice.load(); text != nullptr) {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    errno = error;
  }
  return true;
}

extern "C" void fsdp_note_signal(int signal) {
  if (asks(signal) && ask(signal)) return;
  int none = 0;
  noted.compare_exchange_strong(none, signal);
  if (signal == SIGINT) ::signal(SIGINT, SIG_DFL);
}

}  // namespace

void note_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    action.sa_handler = fsdp_note_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

void ask_before_ending(const AskedSignals& signals) {
  notice = signals.notice;
  term_asks = signals.sigterm;
  int_asks = true;
}

int asked_signal() { return asked.load(); }
int noted_signal() { return noted.load(); }

std::string signal_name(int signal) {
  switch (signal) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    case SIGUSR1: return "SIGUSR1";
    default: return "signal " + std::to_string(signal);
  }
}

}  // namespace fsdp
