// The kinds of failure, so that every caller can tell them apart and `cli` can pick the exit code.
//
//   throw InputError({"plan.json", "units[3].modules"}, "no module is named 'layer.3'",
//                    "run `fsdp-plan show model NAME` for the names");
//   throw InputError(setting("seq_len"), "0 is out of range", "use 1 or more");   // cli says "--seq-len: 0 is ..."
//   throw InternalError("a steady step does not end with the buffers that it began with");
//
// "Does not fit" is none of them: it is an answer, and lives in the result.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace fsdp {

// Where a value came from, in the words of whoever reads it.
struct Origin {
  std::string file;   // a document, or what the caller calls the value; empty: a setting of the call
  std::string field;  // inside the file, "units[3].modules", or the setting's name; empty: the whole file

  // NOLINTBEGIN(google-explicit-constructor): a name alone is an origin
  Origin(std::string file_name, std::string field_name = "")
      : file(std::move(file_name)), field(std::move(field_name)) {}
  Origin(std::string_view file_name) : file(file_name) {}
  Origin(const char* file_name) : file(file_name) {}
  // NOLINTEND(google-explicit-constructor)

  [[nodiscard]] std::string text() const { return file + (file.empty() || field.empty() ? "" : ": ") + field; }
};

// A value that the caller of a function chose. Rooms know its name; the command line alone knows its flag.
[[nodiscard]] inline Origin setting(std::string name) { return {std::string(), std::move(name)}; }

// Bad input or usage: exit code 2. `remedy` says what to do instead and may be empty. Nobody needs to take what()
// apart: its parts are here.
class InputError : public std::runtime_error {
 public:
  InputError(const Origin& origin, const std::string& problem, const std::string& remedy = "")
      : std::runtime_error(origin.text() + ": " + problem + (remedy.empty() ? "" : "; " + remedy)),
        parts_(std::make_shared<const Parts>(origin, problem, remedy)) {}

  [[nodiscard]] const Origin& origin() const noexcept { return parts_->origin; }
  [[nodiscard]] const std::string& file() const noexcept { return parts_->origin.file; }
  [[nodiscard]] const std::string& field() const noexcept { return parts_->origin.field; }
  [[nodiscard]] const std::string& problem() const noexcept { return parts_->problem; }
  [[nodiscard]] const std::string& remedy() const noexcept { return parts_->remedy; }

  // The same error about another origin.
  [[nodiscard]] InputError at(const Origin& origin) const { return {origin, problem(), remedy()}; }

 private:
  struct Parts {
    Parts(Origin o, std::string p, std::string r) : origin(std::move(o)), problem(std::move(p)), remedy(std::move(r)) {}
    Origin origin;
    std::string problem, remedy;
  };
  std::shared_ptr<const Parts> parts_;  // shared: copying an exception must not throw
};

// The machine failed us (a rank died, a disk is full, a device is missing): exit code 3.
class MachineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An invariant of ours is broken (a program that frees what is not live): neither bad input nor a failing machine.
class InternalError : public std::logic_error {
 public:
  explicit InternalError(const std::string& problem)
      : std::logic_error(problem + "; this is an error of fsdp-plan itself, please report it with the command") {}
};

}  // namespace fsdp
