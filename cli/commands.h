// The commands of fsdp-plan: one file each. A command parses its flags, calls one function of the rooms, formats the answer.
//
// `add_x(app, chosen)` declares the command's flags; when the user called it, CLI11 leaves the work to do in `chosen`, which
// returns the exit code: 0 done (and fits, and within tolerance), 1 the answer is no. Bad input is an InputError (2), a failing
// machine a MachineError (3): main.cpp turns both into one sentence.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace fsdp::cli {

using Work = std::function<int()>;

inline constexpr int kDone = 0, kAnswerIsNo = 1, kBadInput = 2, kMachineFailed = 3;

void add_plan(CLI::App&, Work& chosen);
void add_simulate(CLI::App&, Work& chosen);
void add_run(CLI::App&, Work& chosen);
void add_validate(CLI::App&, Work& chosen);
void add_calibrate(CLI::App&, Work& chosen);
void add_show(CLI::App&, Work& chosen);
void add_accuracy(CLI::App&, Work& chosen);
void add_checkpoint(CLI::App&, Work& chosen);

}  // namespace fsdp::cli
