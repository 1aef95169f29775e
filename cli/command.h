// A command: its flags and what it does. CLI11 is behind it, known to command.cpp alone, since every file that includes
// it takes many seconds to compile.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fsdp::cli {

using Work = std::function<int()>;  // returns the exit code

class Command {
 public:
  Command(CLI::App& app, Work& chosen) : app_(&app), chosen_(&chosen) {}

  // A command below this one.
  [[nodiscard]] Command add(const char* name, const char* about) const;
  // One of those must be named.
  void needs_one_below() const;
  // What it does. When the user calls it, `work` is what parse_command_line answers with.
  void runs(Work work) const;

  // `names`: "-o,--output", or "file" for a word without a flag. `type`: what the help shows behind it. A value that is
  // not given stays as it is. Without a `help`, the help does not list it.
  void option(const char* names, std::optional<std::string>& value, const char* help, const char* type = "") const;
  void option(const char* names, std::vector<std::string>& values, const char* help, const char* type = "") const;
  void required(const char* names, std::string& value, const char* help, const char* type = "") const;
  void flag(const char* names, bool& value, const char* help) const;

 private:
  CLI::App* app_;
  Work* chosen_;
};

struct CommandLine {
  const char* name = "";
  const char* about = "";
  const char* version = "";
};
// What the user asks for, help and version included; or a complaint, one sentence, about how it was asked for.
struct Called {
  Work work;
  std::string complaint;
};
[[nodiscard]] Called parse_command_line(const CommandLine&, const std::function<void(const Command&)>& declare,
                                        int argc, char** argv);

}  // namespace fsdp::cli
