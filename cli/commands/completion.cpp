// fsdp-plan completion: the script with which a shell completes command lines.
#include "cli/terminal/completion.h"

#include <memory>

#include "cli/commands.h"
#include "cli/files.h"
#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp::cli {
namespace {

int completion_command(const std::string& shell) {
  const std::string script = completion_script(shell);
  if (script.empty())
    throw InputError("completion", "'" + printable(shell) + "' is not a shell that this program knows",
                     "give one of: " + join(completion_shells()));
  print(stdout, script);
  return kDone;
}

}  // namespace

void add_completion(const Command& app) {
  auto shell = std::make_shared<std::string>();
  const Command command = app.add("completion", "print the completion script of a shell: bash, zsh or fish");
  command.required("shell", *shell, "bash, zsh or fish", {"SHELL", completion_shells});
  command.examples({"eval \"$(fsdp-plan completion bash)\"     # in ~/.bashrc",
                    "eval \"$(fsdp-plan completion zsh)\"      # in ~/.zshrc, after compinit",
                    "fsdp-plan completion fish | source      # in ~/.config/fish/config.fish"});
  command.runs([shell] { return completion_command(*shell); });
}

}  // namespace fsdp::cli
