// fsdp-plan: declares the commands, runs the one that was called, turns failures into one sentence and an exit code.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "models/error.h"
#include "models/suggest.h"

namespace fsdp::cli {
namespace {

constexpr const char* kAbout =
    "Picks, predicts and executes sharding plans for FSDP training.\n"
    "Exit codes: 0 done (and fits, and within tolerance), 1 the answer is no, 2 bad input or usage, 3 machine failure.";

int say(int code, const std::string& sentence) {
  std::fprintf(stderr, "fsdp-plan: %s\n", sentence.c_str());
  return code;
}

// Output that could not be written (a full disk behind a redirection) is a failure, not a success.
int flushed(int code) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return say(kMachineFailed, "standard output: could not be written");
  return code;
}

// "fsdp-plan flly": which word is no command, and which one was meant.
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); }))
    names.push_back(command->get_name());
  if (words.empty()) return "a subcommand is missing; use one of: " + join(names);
  return "'" + printable(words.front()) + "' is not a command; " + suggestion(words.front(), names);
}

int usage(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  if (error.get_exit_code() == 0) return flushed(app.exit(error));  // --help, --version
  const CLI::App* called = &app;
  std::string command = "fsdp-plan";
  std::size_t depth = 0;
  for (auto next = called->get_subcommands(); !next.empty(); next = called->get_subcommands(), ++depth) {
    called = next.front();
    command += " " + called->get_name();
  }
  const bool leaf = called->get_subcommands([](const CLI::App*) { return true; }).empty();
  if (leaf || (depth < words.size() && words[depth].starts_with("-")))
    return say(kBadInput, std::string(error.what()) + "; `" + command + " --help` lists what it takes");
  const auto rest = words.begin() + static_cast<std::ptrdiff_t>(std::min(depth, words.size()));
  return say(kBadInput, (depth > 0 ? called->get_name() + ": " : "") + unknown_command(*called, {rest, words.end()}));
}

int call(const Work& work) {
  try {
    return flushed(work());
  } catch (const InputError& e) {
    return say(kBadInput, e.what());
  } catch (const std::bad_alloc&) {
    return say(kMachineFailed, "out of memory on this machine");
  } catch (const std::length_error&) {
    return say(kMachineFailed, "out of memory on this machine: a container would exceed the address space");
  } catch (const std::exception& e) {
    return say(kMachineFailed, e.what());
  }
}

int main_of(int argc, char** argv) {
  CLI::App app(kAbout, "fsdp-plan");
  app.require_subcommand(1);
  app.set_version_flag("--version", "fsdp-plan " FSDP_PLAN_VERSION);
  app.get_formatter()->column_width(34);
  Work chosen;
  add_plan(app, chosen);
  add_simulate(app, chosen);
  add_run(app, chosen);
  add_validate(app, chosen);
  add_calibrate(app, chosen);
  add_show(app, chosen);
  add_accuracy(app, chosen);
  add_checkpoint(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return usage(app, e, {argv + 1, argv + argc});
  }
  return call(chosen);
}

}  // namespace
}  // namespace fsdp::cli

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond its limit is a write that fails, like on a full disk
  try {
    return fsdp::cli::main_of(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fsdp-plan: %s\n", e.what());
    return fsdp::cli::kMachineFailed;
  }
}
