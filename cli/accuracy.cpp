// fsdp-plan accuracy: not built yet. It is known by name, so that whoever asks is told so, and hidden from --help.
#include <memory>

#include "cli/commands.h"
#include "models/error.h"

namespace fsdp::cli {

void add_accuracy(CLI::App& app, Work& chosen) {
  CLI::App* command = app.add_subcommand("accuracy", "predict published runs (not built yet)");
  command->group("");
  command->allow_extras();
  command->callback([&chosen] {
    chosen = []() -> int {
      throw InputError("accuracy", "predicting published runs is not built yet", "use simulate for one plan at a time");
    };
  });
}

}  // namespace fsdp::cli
