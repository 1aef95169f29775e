// Ctrl-C during a search: the first asks it to end with the best so far, the second ends the program, as ever.
#pragma once

#include <csignal>

namespace fsdp::cli {

// SIGINT asks while one of these lives. A program that was started with SIGINT ignored goes on ignoring it.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  [[nodiscard]] bool asked() const;

 private:
  struct sigaction before_ {};
};

}  // namespace fsdp::cli
