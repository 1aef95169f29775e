// The three kinds of failure, so that every caller can tell them apart and `cli` can pick the exit code.
//
//   throw InputError("plan.json: units[3].modules", "no module is named 'layer.3'", "run `fsdp-plan show model NAME`
//     for the names");
//
// "Does not fit" is none of them: it is an answer, and lives in the result.
#pragma once

#include <stdexcept>
#include <string>

namespace fsdp {

// Bad input or usage: exit code 2. `where` is "file: field" or a flag, `remedy` says what to do instead (may be empty).
class InputError : public std::runtime_error {
 public:
  InputError(const std::string& where, const std::string& problem, const std::string& remedy = "")
      : std::runtime_error(where + ": " + problem + (remedy.empty() ? "" : "; " + remedy)) {}
};

// The machine failed us (a rank died, a disk is full, a device is missing): exit code 3.
class MachineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fsdp
