#include "cli/checkpoints.h"

#include <fmt/format.h>

#include <cerrno>
#include <functional>
#include <mutex>
#include <vector>

#include "cli/field_flags.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/checkpoint/folder.h"
#include "executor/checkpoint/save.h"
#include "models/input/error.h"

namespace fsdp::cli {
namespace {

// The state reader, with the first damage kept for rethrow_damage.
StateReader keeping_damage(StateReader read, const std::shared_ptr<std::optional<InputError>>& damage) {
  const auto mutex = std::make_shared<std::mutex>();
  return [read = std::move(read), damage, mutex](const Parameter& p, StatePart part, const Slab& slab, DType type,
                                                 std::byte* to) {
    try {
      read(p, part, slab, type, to);
    } catch (const InputError& e) {
      const std::scoped_lock lock(*mutex);
      if (!*damage) *damage = e;
      throw;
    }
  };
}

void resume(const std::shared_ptr<const Checkpoint>& saved, RunOptions& options, RunCheckpoints& result) {
  if (options.training.state)
    throw InputError("--resume", "has weights of its own, and --init-from gives others", "give one of them");
  resume_from(saved, options.training);
  options.training.state = keeping_damage(std::move(options.training.state), result.damage);
  result.resumed = saved->folder();
}

// What every rank says to `mine(rank)`, on the calling thread.
std::vector<std::string> ask_all(Backend& backend, const std::function<std::string(std::int64_t rank)>& mine) {
  std::vector<std::string> all;
  const std::int64_t first = backend.local_ranks().front();
  backend.run([&](Device& device) {
    std::vector<std::string> said = device.exchange(mine(device.rank()));
    if (device.rank() == first) all = std::move(said);
  });
  return all;
}

// Processes that see different files would train different things.
void agree_on_start(Backend& backend, std::int64_t steps_done) {
  for (const std::string& said : ask_all(backend, [&](std::int64_t) { return std::to_string(steps_done); }))
    if (said != std::to_string(steps_done))
      throw InputError("--resume",
                       fmt::format("one rank finds a checkpoint of step {}, another of step {}", steps_done, said),
                       "give a folder that all ranks share");
}

// Rank 0 claims the folder for all.
std::shared_ptr<void> claim(Backend& backend, const SaveOptions& save) {
  std::shared_ptr<void> claimed;
  const std::vector<std::string> said = ask_all(backend, [&](std::int64_t rank) -> std::string {
    if (rank != 0) return "";
    try {
      claimed = claim_folder(save.files, save.directory, save.steps_before);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  });
  if (!said.front().empty()) throw InputError("--save", said.front());
  return claimed;
}

}  // namespace

void add_checkpoint_flags(const Command& app, CheckpointFlags& f) {
  app.option("--save", f.save, "save checkpoints into this folder: after the last step, and with --save-every", "DIR");
  app.option("--save-every", f.every, "steps between checkpoints", "N");
  app.option("--keep", f.keep, "keep only the N newest; default: all", "N");
  app.option("--resume", f.resume, "go on from the newest checkpoint in this folder, or from one of its steps", "DIR");
  app.flag("--fresh-if-none", f.fresh_if_none, "start anew if --resume finds no checkpoint");
}

std::shared_ptr<const Checkpoint> checkpoint_to_resume(const CheckpointFlags& f, const ModelGraph& model,
                                                       const ShardingPlan& plan) {
  if (!f.resume) return nullptr;
  Entry entry;
  const FileSystem files = machine_file_system();
  if (f.fresh_if_none) check_step_folder(files, *f.resume);
  if (f.fresh_if_none &&
      (files.inspect(*f.resume, entry) == -ENOENT ||
       (files.inspect(*f.resume + "/" + kManifestName, entry) < 0 && saved_steps(files, *f.resume).empty())))
    return nullptr;
  std::shared_ptr<const Checkpoint> saved;
  try {
    saved = std::make_shared<const Checkpoint>(*f.resume);
  } catch (const InputError& e) {
    throw said_of("--resume", e);
  }
  check_resumable(*saved, model, plan);
  return saved;
}

RunCheckpoints apply_checkpoint_flags(const CheckpointFlags& f, const std::shared_ptr<const Checkpoint>& resumes,
                                      const ModelGraph& model, const ModelSource& source, const ShardingPlan& plan,
                                      Backend& backend, RunOptions& options) {
  RunCheckpoints result;
  result.damage = std::make_shared<std::optional<InputError>>();
  for (const auto& [flag, given] : {std::pair{"--save-every", f.every}, std::pair{"--keep", f.keep}})
    if (given && !f.save) throw InputError(flag, "needs a folder to save into", "give --save DIR");
  if (f.fresh_if_none && !f.resume)
    throw InputError("--fresh-if-none", "is about --resume, which is not given", "give --resume DIR");
  if (f.resume) {
    if (resumes) resume(resumes, options, result);
    agree_on_start(backend, options.training.steps_done);
  }
  if (!f.save) return result;
  SaveOptions save;
  save.directory = *f.save;
  if (f.every) save.every = parse_count(*f.every, "--save-every", 1, kMostSteps);
  if (f.keep) save.keep = parse_count(*f.keep, "--keep", 1, kMostSteps);
  save.source = source;
  save.steps_before = options.training.steps_done;
  save.sequences_before = options.training.sequences_done.value_or(0);
  options.after_step = checkpoint_saver(model, plan, save);
  result.claim = claim(backend, save);
  return result;
}

void rethrow_damage(const RunCheckpoints& c) {
  if (c.damage && *c.damage) throw said_of("--resume", **c.damage);
}

}  // namespace fsdp::cli
