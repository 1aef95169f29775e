// A program that is tried: started with a time limit, and ended with all that it started.
//
//   Child child({"/usr/bin/mpirun", "-n", "2", "true"});
//   const ChildEnd end = child.finish(30);   // at the latest 30 s after its start, and the seconds that ending takes
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/descriptor.h"

namespace fsdp::cli {

struct ChildEnd {
  bool in_time = true;        // false: it was ended at its limit
  int exit = -1, signal = 0;  // exit: -1 where a signal ended it, or somebody else waited for it; 127: no start
  std::string out, err;       // at most the first MiB of each
  double seconds = 0;         // it ran
  [[nodiscard]] bool succeeded() const { return in_time && exit == 0; }
  // "did not end within 30 s", "was ended by signal 11 (Segmentation fault)", "ended with exit code 3".
  [[nodiscard]] std::string how() const;
};

// While it lives, SIGINT, SIGTERM and SIGHUP wait: Child::finish then throws, children end with all that they started,
// and the signal takes effect when this object goes. Signals that this process ignores stay ignored.
//
// Only the thread that makes it waits, so no other thread may be there that a signal could end the process through.
// `doctor` starts none, and OpenBLAS, which does when it is loaded, ends its own before a fork (pthread_atfork).
class SignalsWait {
 public:
  SignalsWait();
  ~SignalsWait();
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_;
};

class Child {
 public:
  // The first word is a path. Its standard input is empty.
  explicit Child(const std::vector<std::string>& words);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // Call it once. Throws MachineError where a signal waits (SignalsWait). Never blocks for longer than the limit and a
  // few seconds, whatever the program does.
  [[nodiscard]] ChildEnd finish(double seconds);

 private:
  enum class State { runs, ended, gone };  // gone: somebody else waited for it
  [[nodiscard]] State state() const;
  void signal_group(int signal) const;
  void read_some(int milliseconds);
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] bool ends_within(double seconds, bool interruptible);
  void end();

  pid_t pid_ = -1;
  Descriptor pipes_[2];  // its standard output and error
  std::string texts_[2];
  std::chrono::steady_clock::time_point begin_;
};

// The file that a shell would run for this word; empty optional: none.
[[nodiscard]] std::optional<std::string> find_program(const std::string& name);
[[nodiscard]] bool path_is_empty();  // PATH names no folder, or is not set

}  // namespace fsdp::cli
