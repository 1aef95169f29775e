#include "executor/mpi/signals.h"

#include <atomic>
#include <csignal>

namespace fsdp::mpi {
namespace {

// A handler reaches nothing but what is global.
constinit std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void fsdp_mpi_note_signal(int signal) {
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

}  // namespace

void note_signals() {
  struct sigaction action {};
  action.sa_handler = fsdp_mpi_note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

int noted_signal() { return noted.load(); }

}  // namespace fsdp::mpi
