// What the help and the shells' completion know of a command: its flags and how they read. Plain values; cli/command.h
// fills them while the commands are declared.
#pragma once

#include <deque>
#include <string>
#include <vector>

namespace fsdp::cli {

using Words = std::vector<std::string> (*)();  // that a shell offers for a value

struct OptionText {
  std::string names;  // "-o,--output"; without dashes: a word without a flag
  std::string help;   // empty: the help does not list it
  std::string type;   // of the value, "FILE"
  std::string group;  // title in the help
  bool takes_value = false, required = false;
  bool may_stand_alone = false;  // its value may be left out
  bool many = false;
  Words words = nullptr;

  [[nodiscard]] bool positional() const { return !names.starts_with('-'); }
};

struct CommandText {
  std::string name, about;
  std::vector<OptionText> options;
  std::vector<std::string> examples;  // command lines
  bool explains_words = false;        // the help ends with what the words in it mean
  std::deque<CommandText> below;      // addresses stay
};

// The command that `words` name, from the first on; `root` itself for none. `used`: how many of them are names.
[[nodiscard]] const CommandText& named(const CommandText& root, const std::vector<std::string>& words,
                                       std::size_t& used);

// "-o,--output" -> {"-o", "--output"}; "--json[=brief]" -> {"--json"}
[[nodiscard]] std::vector<std::string> names_of(const OptionText&);

}  // namespace fsdp::cli
