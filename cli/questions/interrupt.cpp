#include "cli/questions/interrupt.h"

#include <atomic>

namespace fsdp::cli {
namespace {

constinit std::atomic<bool> interrupted{false};  // a handler reaches nothing but what is global
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void fsdp_note_interrupt(int) { interrupted = true; }

}  // namespace

Interrupt::Interrupt() {
  interrupted = false;
  ::sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = fsdp_note_interrupt;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { ::sigaction(SIGINT, &before_, nullptr); }

bool Interrupt::asked() const { return interrupted; }  // NOLINT(readability-convert-member-functions-to-static)

}  // namespace fsdp::cli
