// The commands of fsdp-plan: one file each. A command parses its flags, calls one function of the rooms, formats the
// answer.
//
// `add_x(program)` declares the command's flags and its work, which returns the exit code: 0 done (and fits, and within
// tolerance), 1 the answer is no, 4 what a signal ended (a run after a whole step, a search with the best so far). Bad
// input is an InputError (2), a failing machine a MachineError (3), an error of ours an InternalError (3, and says so):
// main.cpp turns each into one sentence.
#pragma once

#include "cli/command.h"

namespace fsdp::cli {

inline constexpr int kDone = 0, kAnswerIsNo = 1, kBadInput = 2, kMachineFailed = 3, kBrokenInvariant = 3,
                     kStoppedEarly = 4;

void add_plan(const Command&);
void add_simulate(const Command&);
void add_run(const Command&);
void add_validate(const Command&);
void add_calibrate(const Command&);
void add_show(const Command&);
void add_lint(const Command&);
void add_accuracy(const Command&);
void add_checkpoint(const Command&);
void add_doctor(const Command&);
void add_completion(const Command&);

}  // namespace fsdp::cli
