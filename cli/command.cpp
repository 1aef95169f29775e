#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "cli/terminal/completion.h"
#include "cli/terminal/help.h"
#include "cli/terminal/terminal.h"
#include "models/input/suggest.h"

namespace fsdp::cli {
namespace {

using Line = std::vector<std::string>;

constexpr const char* kBrief = "brief";
constexpr int kHelpWidth = 100;  // at most; lines that are longer are hard to read

int help_width() { return std::min(width_of(stdout).value_or(kHelpWidth), kHelpWidth); }

// "fsdp-plan flly": which word is no command, and which one was meant.
std::string unknown_command(const CommandText& command, const Line& words) {
  Line names;
  for (const CommandText& below : command.below) names.push_back(below.name);
  if (words.empty()) return "a subcommand is missing; use one of: " + join(names);
  return "'" + printable(words.front()) + "' is not a command; " + suggestion(words.front(), names);
}

std::string path_of(const CommandText& program, const Line& words, std::size_t used) {
  std::string path = program.name;
  for (std::size_t i = 0; i < used; ++i) path += " " + words[i];
  return path;
}

// The first word that is like a flag and is none of the command's; what it could have been. Empty: there is none.
std::string unknown_flag(const CommandText& command, const Line& words, const std::string& path) {
  Line names;
  for (const OptionText& o : command.options)
    if (!o.positional())
      for (const std::string& name : names_of(o)) names.push_back(name);
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.size() < 2 || name[0] != '-' || std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (name[1] != '-' && !std::isalpha(static_cast<unsigned char>(name[1]))) continue;  // "-3" is a value
    const Line near = nearest(name, names, 1);
    return "'" + printable(name) + "' is not a flag of `" + path + "`; " +
           (near.empty() ? "" : "did you mean " + near.front() + "? ");
  }
  return "";
}

// The parser's words for a flag that is given several times or without a value, and for a missing argument, in ours.
std::string in_our_words(const std::string& said) {
  constexpr std::string_view kMany = ": At Most 1 required but received ", kValue = ": 1 required ";
  if (const std::size_t at = said.find(kMany); at != std::string::npos)
    return said.substr(0, at) + ": is given " + said.substr(at + kMany.size()) + " times; give it once: ";
  if (const std::size_t at = said.find(kValue); at != std::string::npos && said.ends_with(" missing"))
    return said.substr(0, at) + ": has no value; give one: ";
  if (constexpr std::string_view kAlone = " was given a disallowed flag override"; said.ends_with(kAlone))
    return "--" + said.substr(0, said.size() - kAlone.size()) + ": takes no value; give it alone; ";
  if (constexpr std::string_view kNeeded = " is required"; said.ends_with(kNeeded))
    return said.substr(0, said.size() - kNeeded.size()) + ": is missing; ";
  return said + "; ";
}

std::string complaint(const CommandText& program, const CLI::ParseError& error, const Line& words) {
  std::size_t used = 0;
  const CommandText& called = named(program, words, used);
  if (called.below.empty() || (used < words.size() && words[used].starts_with("-"))) {
    const std::string path = path_of(program, words, used);
    std::string what;
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
      what = unknown_flag(called, words, path);
    if (what.empty()) what = in_our_words(error.what());
    return what + "`" + path + " --help` lists what it takes";
  }
  const Line rest(words.begin() + static_cast<std::ptrdiff_t>(used), words.end());
  return (used > 0 ? called.name + ": " : "") + unknown_command(called, rest);
}

// What prints `text`: 0, or 3 where it could not.
Work printing(std::string text) {
  return [text = std::move(text)] { return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 3; };
}

Called help_of(const CommandText& program, const Line& words) {
  std::size_t used = 0;
  const CommandText& command = named(program, words, used);
  return {printing(help_text(command, path_of(program, words, used), help_width())), {}};
}

// "fsdp-plan help [COMMAND]"
Called asked_for_help(const CommandText& program, const Line& words) {
  if (words.size() == 1 && words.front() == "words") return {printing(words_text(help_width())), {}};
  std::size_t used = 0;
  const CommandText& command = named(program, words, used);
  if (used < words.size() && !words[used].starts_with("-")) {
    if (!command.below.empty())
      return {{}, unknown_command(command, {words.begin() + static_cast<std::ptrdiff_t>(used), words.end()})};
    return {{}, "'" + printable(words[used]) + "' is not a command below `" + path_of(program, words, used) + "`"};
  }
  return help_of(program, words);
}

Called completed(const CommandText& program, const Line& words) {
  std::string text;
  for (const std::string& word : completions(program, words)) text += word + "\n";
  return {printing(text), {}};
}

void declare_help(CommandText& text) {
  OptionText& help = text.options.emplace_back();
  help.names = "-h,--help";
  help.help = "this text";
}

}  // namespace

OptionText& Command::described(const char* names, const std::string& help, const ValueText& value) const {
  OptionText& o = text_->options.emplace_back();
  o.names = names;
  o.help = help;
  o.type = value.type;
  o.group = group_;
  o.words = value.words;
  o.takes_value = true;
  o.may_stand_alone = value.alone != nullptr;
  return o;
}

Command Command::add(const char* name, const char* about) const {
  CommandText& text = text_->below.emplace_back();
  text.name = name;
  text.about = about;
  declare_help(text);
  return {*app_->add_subcommand(name, about), text, *chosen_, *words_};
}
void Command::needs_one_below() const { app_->require_subcommand(1); }
void Command::runs(Work work) const {
  app_->callback([work = std::move(work), chosen = chosen_] { *chosen = work; });
}

Command Command::group(const char* title) const {
  Command same = *this;
  same.group_ = title;
  return same;
}
void Command::examples(std::initializer_list<const char*> lines) const {
  text_->examples.insert(text_->examples.end(), lines.begin(), lines.end());
}
void Command::explains_words() const { text_->explains_words = true; }

namespace {

// A flag that lacks its value would take the flag behind it.
std::string is_flag(const std::string& value) {
  return value.starts_with("--") ? "has no value: '" + printable(value) + "' follows it; give one" : "";
}

}  // namespace

void Command::option(const char* names, std::optional<std::string>& value, const std::string& help,
                     const ValueText& text) const {
  (void)described(names, help, text);
  CLI::Option* option = app_->add_option(names, value, help);
  option->allow_extra_args(false)->check(is_flag, "");
  if (text.alone != nullptr) option->expected(0, 1)->default_str(text.alone);
}
void Command::option(const char* names, std::vector<std::string>& values, const std::string& help,
                     const ValueText& text) const {
  described(names, help, text).many = true;
  app_->add_option(names, values, help)->check(is_flag, "");
}
void Command::required(const char* names, std::string& value, const std::string& help, const ValueText& text) const {
  described(names, help, text).required = true;
  app_->add_option(names, value, help)->required()->check(is_flag, "");
}
void Command::flag(const char* names, bool& value, const std::string& help) const {
  described(names, help, {}).takes_value = false;
  app_->add_flag(names, value, help)->disable_flag_override();
}
void Command::json(JsonForm& form, const std::string& help) const {
  OptionText& text = described("--json[=brief]", help + "; brief: without order and timelines", {});
  text.takes_value = false;
  text.words = [] { return std::vector<std::string>{kBrief}; };
  const auto set = [&form](const CLI::results_t& given) {
    if (given.back() != "true" && given.back() != kBrief)
      throw CLI::ValidationError("--json", "'" + printable(given.back()) + "' is not a form of it: give --json=brief");
    form = given.back() == kBrief ? JsonForm::brief : JsonForm::full;
    return true;
  };
  app_->add_option("--json", set, help)->expected(0)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Called parse_command_line(const CommandLine& program, const std::function<void(const Command&)>& declare, int argc,
                          char** argv) {
  const Line words(argv + 1, argv + argc);
  CLI::App app(program.about, program.name);
  app.require_subcommand(1);
  app.set_version_flag("-V,--version", program.version);
  CommandText text;
  text.name = program.name;
  text.about = program.about;
  declare_help(text);
  OptionText& version = text.options.emplace_back();
  version.names = "-V,--version";
  version.help = "the program's version";
  Called called;
  declare({app, text, called.work, words});
  if (!words.empty() && words.front() == kCompleteWord) return completed(text, {words.begin() + 1, words.end()});
  if (!words.empty() && words.front() == "help") return asked_for_help(text, {words.begin() + 1, words.end()});
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return help_of(text, words);
  } catch (const CLI::CallForVersion& e) {
    return {printing(std::string(e.what()) + "\n"), {}};
  } catch (const CLI::ParseError& e) {
    return {{}, complaint(text, e, words)};
  }
  return called;
}

}  // namespace fsdp::cli
