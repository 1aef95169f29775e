#include "executor/ranks/signals.h"

#include <atomic>
#include <csignal>

namespace fsdp {
namespace {

// A handler reaches nothing but what is global.
constinit std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void fsdp_note_signal(int signal) {
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

}  // namespace

void note_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action {};
    action.sa_handler = fsdp_note_signal;
    action.sa_flags = signal == SIGINT ? SA_RESTART | static_cast<int>(SA_RESETHAND) : SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

int noted_signal() { return noted.load(); }

std::string signal_name(int signal) {
  switch (signal) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    default: return "signal " + std::to_string(signal);
  }
}

}  // namespace fsdp
