// fsdp-plan: declares the commands, runs the one that was called, turns failures into one sentence and an exit code.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/field_flags.h"
#include "models/host.h"
#include "models/input/error.h"
#include "models/input/shown.h"

namespace fsdp::cli {
namespace {

constexpr const char* kAbout =
    "Picks, predicts and executes sharding plans for FSDP training. "
    "Exit codes: 0 done (and fits, and within tolerance), 1 the answer is no, 2 bad input or usage, 3 machine failure, "
    "4 stopped by a signal: a run after a whole step, a search with the best so far.";

// Names of strangers stand in sentences, and may be megabytes long.
constexpr std::size_t kLongestSentence = 8000;  // bytes

int say(int code, const std::string& sentence) {
  const bool cut = sentence.size() > kLongestSentence;
  std::fprintf(stderr, "fsdp-plan: %s%s\n", shown(sentence.substr(0, kLongestSentence)).c_str(), cut ? " ..." : "");
  return code;
}

// Output that could not be written (a full disk behind a redirection) is a failure, not a success.
int flushed(int code) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return say(kMachineFailed, "standard output: could not be written");
  return code;
}

int call(const Work& work) {
  try {
    return flushed(work());
  } catch (const InputError& e) {
    return say(kBadInput, naming_flags(e).what());
  } catch (const InternalError& e) {
    return say(kBrokenInvariant, e.what());
  } catch (const std::bad_alloc&) {
    return say(kMachineFailed, "out of memory on this machine");
  } catch (const std::length_error&) {
    return say(kMachineFailed, "out of memory on this machine: a container would exceed the address space");
  } catch (const std::exception& e) {
    return say(kMachineFailed, e.what());
  }
}

int main_of(int argc, char** argv) {
  const auto declare = [](const Command& program) {
    add_plan(program);
    add_simulate(program);
    add_run(program);
    add_validate(program);
    add_calibrate(program);
    add_show(program);
    add_lint(program);
    add_accuracy(program);
    add_checkpoint(program);
    add_doctor(program);
    add_completion(program);
    program.examples({"fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8k -o plan.json",
                      "fsdp-plan simulate --plan plan.json --model llama3-8b --cluster dgx-h100",
                      "fsdp-plan help plan     # the same as fsdp-plan plan --help",
                      "fsdp-plan help words    # unit, shard, dialect, ...: what they mean"});
  };
  const Called called = parse_command_line({"fsdp-plan", kAbout, "fsdp-plan " FSDP_PLAN_VERSION}, declare, argc, argv);
  return called.work ? call(called.work) : say(kBadInput, called.complaint);
}

}  // namespace
}  // namespace fsdp::cli

int main(int argc, char** argv) {
  fsdp::keep_freed_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond its limit is a write that fails, like on a full disk
  try {
    return fsdp::cli::main_of(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fsdp-plan: %s\n", e.what());
    return fsdp::cli::kMachineFailed;
  }
}
