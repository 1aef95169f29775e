// The run that things happen to: two ranks; a checkpoint of step 2 is there, steps 3 and 4 are to be saved, two are
// kept. And what must hold afterwards, whatever happened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/checkpoint_support.h"

namespace fsdp::testing {

namespace fs = std::filesystem;

inline ModelGraph small_model() { return chain({3, 4, 6}); }
inline ShardingPlan small_plan() {
  PlanWords w;
  w.shard = 2;
  w.micro_batches = {2};
  w.seq_len = 3;
  return make_plan(small_model(), w);
}

inline constexpr int kBefore = 2, kAfter = 4;

inline void make_base(const std::string& directory) {
  const ModelGraph model = small_model();
  static_cast<void>(train(model, small_plan(), kBefore, saving(model, small_plan(), directory)));
  fs::create_directories(fs::path(directory) / "step-3");  // not names of ours, and nothing of ours
  write_bytes(directory + "/notes.txt", "mine");
  write_bytes(directory + "/step-3/a", "b");
}

inline RunResult go_on(const std::string& directory, const FileSystem& files,
                       const std::function<void(std::int64_t)>& saved = {},
                       const std::function<void(const Operation&, std::int64_t)>& in_kernel = {}) {
  const ModelGraph model = small_model();
  const ShardingPlan plan = small_plan();
  const auto from = std::make_shared<const Checkpoint>(directory, files);
  check_resumable(*from, model, plan);
  RunOptions options;
  resume_from(from, options.training);
  SaveOptions save;
  save.directory = directory;
  save.every = 1;
  save.keep = 2;
  save.steps_before = options.training.steps_done;
  save.sequences_before = *options.training.sequences_done;
  save.block_bytes = 16;
  save.files = files;
  const auto claim = claim_folder(files, directory, save.steps_before);
  options.after_step = [&, write = checkpoint_saver(model, plan, save)](const RankState& s) {
    write(s);
    if (saved && s.device.rank() == 0) saved(s.steps_done);
  };
  options.in_kernel = in_kernel;
  options.warmup_steps = 1;
  options.steps = kAfter - kBefore - 1;
  return execute(model, plan, options);
}

// What the steps must hold, from a run to which nothing happens; by step. Made once per test case.
inline std::map<std::int64_t, State> undisturbed() {
  const Folder folder;
  make_base(folder / "ckpt");
  std::map<std::int64_t, State> states;
  states[kBefore] = state_in(Checkpoint(folder / "ckpt"));
  static_cast<void>(go_on(folder / "ckpt", machine_file_system(),
                          [&](std::int64_t step) { states[step] = state_in(Checkpoint(folder / "ckpt")); }));
  REQUIRE(states.size() == 3);
  return states;
}

// Everything with the name of a checkpoint is one, equal to the undisturbed one's; the newest is of step `at_least` or
// later; what is not ours is as it was; and the next run that saves clears up.
inline void check_recovered(const std::string& directory, const std::map<std::int64_t, State>& states,
                            std::int64_t at_least) {
  const FileSystem files = machine_file_system();
  const std::vector<std::int64_t> steps = saved_steps(files, directory);
  REQUIRE(!steps.empty());
  CHECK(steps.back() >= at_least);
  for (const std::int64_t step : steps) {
    const Checkpoint saved(directory + "/" + step_folder_name(step), files);
    saved.verify();
    CHECK((state_in(saved) == states.at(step)));
  }
  static_cast<void>(claim_folder(files, directory, steps.back()));
  for (const auto& entry : fs::directory_iterator(directory)) CHECK(entry.path().filename().string()[0] != '.');
  CHECK(saved_steps(files, directory) == steps);
  CHECK(read_bytes(directory + "/notes.txt") == "mine");
  CHECK(read_bytes(directory + "/step-3/a") == "b");
}

// What the run says, or "".
inline std::string failure(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace fsdp::testing
