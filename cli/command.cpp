#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "models/input/suggest.h"

namespace fsdp::cli {
namespace {

template <class Value>
CLI::Option* add_option(CLI::App& app, const char* names, Value& value, const char* help, const char* type) {
  CLI::Option* option = app.add_option(names, value, help)->type_name(type);
  if (*help == '\0') option->group("");
  return option;
}

// "fsdp-plan flly": which word is no command, and which one was meant.
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); }))
    names.push_back(command->get_name());
  if (words.empty()) return "a subcommand is missing; use one of: " + join(names);
  return "'" + printable(words.front()) + "' is not a command; " + suggestion(words.front(), names);
}

std::string complaint(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const CLI::App* called = &app;
  std::string command = app.get_name();
  std::size_t depth = 0;
  for (auto next = called->get_subcommands(); !next.empty(); next = called->get_subcommands(), ++depth) {
    called = next.front();
    command += " " + called->get_name();
  }
  const bool leaf = called->get_subcommands([](const CLI::App*) { return true; }).empty();
  if (leaf || (depth < words.size() && words[depth].starts_with("-")))
    return std::string(error.what()) + "; `" + command + " --help` lists what it takes";
  const auto rest = words.begin() + static_cast<std::ptrdiff_t>(std::min(depth, words.size()));
  return (depth > 0 ? called->get_name() + ": " : "") + unknown_command(*called, {rest, words.end()});
}

}  // namespace

Command Command::add(const char* name, const char* about) const {
  return {*app_->add_subcommand(name, about), *chosen_};
}
void Command::needs_one_below() const { app_->require_subcommand(1); }
void Command::runs(Work work) const {
  app_->callback([work = std::move(work), chosen = chosen_] { *chosen = work; });
}

void Command::option(const char* names, std::optional<std::string>& value, const char* help, const char* type) const {
  add_option(*app_, names, value, help, type)->allow_extra_args(false);
}
void Command::option(const char* names, std::vector<std::string>& values, const char* help, const char* type) const {
  add_option(*app_, names, values, help, type);
}
void Command::required(const char* names, std::string& value, const char* help, const char* type) const {
  add_option(*app_, names, value, help, type)->required();
}
void Command::flag(const char* names, bool& value, const char* help) const { app_->add_flag(names, value, help); }

Called parse_command_line(const CommandLine& program, const std::function<void(const Command&)>& declare, int argc,
                          char** argv) {
  const auto app = std::make_shared<CLI::App>(program.about, program.name);
  app->require_subcommand(1);
  app->set_version_flag("--version", program.version);
  app->get_formatter()->column_width(34);
  Called called;
  declare({*app, called.work});
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return {{}, complaint(*app, e, {argv + 1, argv + argc})};
    return {[app, help = std::make_shared<CLI::ParseError>(e)] { return app->exit(*help); }, {}};
  }
  return called;
}

}  // namespace fsdp::cli
