// A command: its flags and what it does. CLI11 is behind it, known to command.cpp alone, since every file that includes
// it takes many seconds to compile.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/command_text.h"

namespace CLI {
class App;
}

namespace fsdp::cli {

using Work = std::function<int()>;  // returns the exit code

// How an answer is printed: as a report, as one JSON object, or as that object without order and timeline.
enum class JsonForm : std::uint8_t { none, full, brief };

// What a flag's value is. `type`: what the help shows. `words`: what shells complete it with. `alone`: the value of a
// flag that is given without one.
struct ValueText {
  // NOLINTNEXTLINE(google-explicit-constructor): a type alone says what most values are
  ValueText(const char* type_name = "", Words completed_with = nullptr, const char* when_alone = nullptr)
      : type(type_name), words(completed_with), alone(when_alone) {}
  const char* type;
  Words words;
  const char* alone;
};

class Command {
 public:
  Command(CLI::App& app, CommandText& text, Work& chosen, const std::vector<std::string>& words)
      : app_(&app), text_(&text), chosen_(&chosen), words_(&words) {}

  // A command below this one.
  [[nodiscard]] Command add(const char* name, const char* about) const;
  // One of those must be named.
  void needs_one_below() const;
  // What it does. When the user calls it, `work` is what parse_command_line answers with.
  void runs(Work work) const;
  // The words that the program was called with, without its own name. Valid while commands are declared.
  [[nodiscard]] const std::vector<std::string>& called_with() const { return *words_; }

  // The same command; the help shows the flags that are added to it under this title.
  [[nodiscard]] Command group(const char* title) const;
  // Below the flags, the help shows command lines, and the meaning of the words that flags are made of.
  void examples(std::initializer_list<const char*> lines) const;
  void explains_words() const;

  // `names`: "-o,--output", or "file" for a word without a flag. A value that is not given stays as it is. Without a
  // `help`, the help does not list it.
  void option(const char* names, std::optional<std::string>& value, const std::string& help,
              const ValueText& = {}) const;
  void option(const char* names, std::vector<std::string>& values, const std::string& help,
              const ValueText& = {}) const;
  void required(const char* names, std::string& value, const std::string& help, const ValueText& = {}) const;
  void flag(const char* names, bool& value, const std::string& help) const;
  // --json and --json=brief.
  void json(JsonForm& form, const std::string& help) const;

 private:
  OptionText& described(const char* names, const std::string& help, const ValueText&) const;

  CLI::App* app_;
  CommandText* text_;
  Work* chosen_;
  const std::vector<std::string>* words_;
  std::string group_;
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
