// fsdp-plan checkpoint show | verify | export: looks into what `run --save` wrote.
#include "executor/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/brief_json.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "executor/checkpoint/export.h"
#include "executor/checkpoint/folder.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

struct CheckpointCommand {
  std::string folder;
  Text output, dtype, max_file_size;
  bool json = false;
};

constexpr const char* kVerified = "fsdp-plan/checkpoint-verify/1";

std::string mesh_text(const Manifest& m) {
  std::string text;
  for (const MeshDim& d : m.mesh) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", d.name, d.size);
  return text;
}

std::int64_t boxes_of(const Manifest& m) {
  std::int64_t n = 0;
  for (const SavedTensor& t : m.tensors) n += static_cast<std::int64_t>(t.boxes.size());
  return n;
}

int show(const CheckpointCommand& c) {
  const Checkpoint saved(c.folder);
  const Manifest& m = saved.manifest();
  if (c.json) {
    print(stdout, to_json_text(m));
    return kDone;
  }
  print(stdout, bold(stdout, fmt::format("{}: {} after {} step{} and {} sequence{} of {} tokens\n", saved.folder(),
                                         m.model, with_commas(m.step), m.step == 1 ? "" : "s", with_commas(m.sequences),
                                         m.sequences == 1 ? "" : "s", m.seq_len)));
  std::map<std::string_view, std::int64_t> by_type;
  for (const SavedTensor& t : m.tensors) ++by_type[name(t.dtype)];
  for (const auto& [type, count] : by_type) print(stdout, fmt::format("{} of {}; ", counted(count, "tensor"), type));
  print(stdout, fmt::format("{} in {} boxes and {}; optimizer {}, seed {}\n", human(Bytes(m.tensor_bytes())),
                            boxes_of(m), counted(m.files.size(), "file"), name(m.optimizer), m.seed));
  print(stdout, fmt::format("saved by {} ({}); model digest {}, plan digest {}\n", counted(m.files.size(), "rank"),
                            mesh_text(m), m.model_digest, m.plan_digest));
  return kDone;
}

int not_whole(const CheckpointCommand& c, const InputError& problem) {
  if (c.json) print(stdout, json_lines({{"schema", kVerified}, {"problem", problem.what()}, {"whole", false}}));
  else print(stdout, fmt::format("not whole: {}\n", problem.what()));
  return kAnswerIsNo;
}

// The answer to "is it whole?" may be no.
int verify(const CheckpointCommand& c) {
  std::string folder;
  try {
    folder = checkpoint_folder(c.folder);
  } catch (const DamagedCheckpoint& e) {
    return not_whole(c, e);
  }
  try {
    const Checkpoint saved(folder);
    Progress progress;
    saved.verify([&](std::int64_t done, std::int64_t all) {
      progress.say(fmt::format("verify: {} of {}", human(Bytes(done)), human(Bytes(all))));
    });
    if (c.json) {
      print(stdout, json_lines({{"schema", kVerified},
                                {"folder", saved.folder()},
                                {"step", saved.manifest().step},
                                {"verified_bytes", saved.manifest().tensor_bytes()},
                                {"whole", true}}));
      return kDone;
    }
    print(stdout, fmt::format("{}: whole; {} of tensors match their checksums\n", saved.folder(),
                              human(Bytes(saved.manifest().tensor_bytes()))));
    return kDone;
  } catch (const InputError& e) {
    return not_whole(c, e);
  }
}

int export_to(const CheckpointCommand& c) {
  if (!c.output) throw InputError("-o", "is missing", "give the name of a new folder");
  ExportOptions options;
  options.output = *c.output;
  if (c.dtype) options.dtype = parse_number_type(*c.dtype, "--dtype");
  if (c.max_file_size) {
    options.max_file_bytes = parse_bytes(*c.max_file_size, "--max-file-size").count();
    if (options.max_file_bytes < 1) throw InputError("--max-file-size", "is not positive", "give a size such as 5GB");
  }
  const Checkpoint saved(c.folder);
  Progress progress;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    progress.say(fmt::format("export: {} of {}", human(Bytes(done)), human(Bytes(all))));
  };
  const Exported result = export_checkpoint(saved, options);
  print(stdout,
        fmt::format("{}: {}, {} in {}{}\n", *c.output, counted(result.tensors, "tensor"), human(Bytes(result.bytes)),
                    counted(result.files, "file"), result.config.empty() ? "" : ", and " + result.config));
  if (!result.note.empty()) print(stderr, "note: " + result.note + "\n");
  return kDone;
}

Command add(const Command& parent, const std::shared_ptr<CheckpointCommand>& flags, const char* name, const char* about,
            int (*work)(const CheckpointCommand&)) {
  const Command command = parent.add(name, about);
  command.required("folder", flags->folder, "what --save named (its newest checkpoint), or one of its steps", "DIR");
  command.runs([flags, work] { return work(*flags); });
  return command;
}

}  // namespace

void add_checkpoint(const Command& app) {
  const Command command = app.add("checkpoint", "look into checkpoints that `run --save` wrote, verify or export them");
  command.needs_one_below();
  const auto flags = std::make_shared<CheckpointCommand>();
  const Command showing = add(command, flags, "show", "what a checkpoint holds", show);
  showing.flag("--json", flags->json, "its manifest");
  showing.examples({"fsdp-plan checkpoint show checkpoints"});
  const Command verifying =
      add(command, flags, "verify", "read all of it and compare checksums; exit 1 if it is not whole", verify);
  verifying.flag("--json", flags->json, "one JSON object");
  verifying.examples({"fsdp-plan checkpoint verify checkpoints"});
  const Command exporting =
      add(command, flags, "export", "a folder that transformers loads (weights and config.json), or peft (adapters)",
          export_to);
  exporting.option("-o,--output", flags->output, "a folder, not there yet", "DIR");
  exporting.option("--dtype", flags->dtype, "fp64, fp32, bf16 or fp16; default: as saved", "DTYPE");
  exporting.option("--max-file-size", flags->max_file_size,
                   "split into files of at most this, such as 5GB, with an index", "SIZE");
  exporting.examples({"fsdp-plan checkpoint export checkpoints -o weights --dtype bf16"});
}

}  // namespace fsdp::cli
