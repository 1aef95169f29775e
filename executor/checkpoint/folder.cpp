#include "executor/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "executor/checkpoint/manifest.h"
#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

constexpr std::string_view kSaving = ".saving-", kRemoving = ".removing-", kStep = "step-";

// "step-00000010" -> 10; anything else: none.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const std::string_view digits = name.substr(kStep.size());
  if (digits.size() < 8 || digits.size() > 16 || digits.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  const std::int64_t step = std::stoll(std::string(digits));
  if (step > kMaxSavedStep || step_folder_name(step) != name) return std::nullopt;
  return step;
}

bool is_leftover(std::string_view name) {
  for (const std::string_view prefix : {kSaving, kRemoving})
    if (name.starts_with(prefix) && step_of(name.substr(prefix.size()))) return true;
  return false;
}

void check(const std::string& path, const char* what, int result) {
  if (result < 0) fail_machine(path, what, result);
}

// Only what a save makes is removed; a folder with anything else in it stays, and is named.
void remove_checkpoint(const FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  check(folder, "could not be listed", files.list(folder, names));
  for (const std::string& name : names) {
    const bool ours = name == kManifestName || (name.starts_with("rank-") && name.ends_with(".safetensors"));
    if (!ours)
      throw MachineError(folder + ": holds '" + printable(name) + "', which is not of a checkpoint; move it away");
    check(folder + "/" + name, "could not be removed", files.remove_file(folder + "/" + name));
  }
  check(folder, "could not be removed", files.remove_folder(folder));
}

std::vector<std::string> names_in(const FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  const int result = files.list(directory, names);
  if (result == -ENOENT) return {};
  if (result == -ENOTDIR) throw InputError(directory, "is not a folder", "give the folder of a run's checkpoints");
  if (result < 0)
    throw InputError(directory, fmt::format("cannot be read ({})", std::strerror(-result)), "check the path");
  return names;
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void make_folders(const FileSystem& files, const std::string& path) {
  const std::string parent = parent_of(path);
  int made = files.make_folder(path);
  if (made == -ENOENT && parent != path && !is_kind(files, parent, EntryKind::folder)) {
    make_folders(files, parent);
    made = files.make_folder(path);
  }
  if (made == -EEXIST) return;
  if (made < 0)
    throw InputError(path, fmt::format("cannot be made ({})", std::strerror(-made)),
                     "give a folder that can be written");
  sync_folder(files, parent);
}

}  // namespace

DamagedCheckpoint::DamagedCheckpoint(const std::string& folder)
    : InputError(
          folder,
          fmt::format("has no {}: it is damaged, since a checkpoint gets this name with all its files", kManifestName),
          "move it away, and what is left is used") {}

void check_step_folder(const FileSystem& files, const std::string& path) {
  const std::size_t last = path.find_last_not_of('/');
  const std::string folder = last == std::string::npos ? path : path.substr(0, last + 1);
  if (step_of(folder.substr(folder.find_last_of('/') + 1)) && is_kind(files, folder, EntryKind::folder) &&
      !is_kind(files, folder + "/" + kManifestName, EntryKind::file))
    throw DamagedCheckpoint(folder);
}

std::vector<std::int64_t> saved_steps(const FileSystem& files, const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(files, directory)) {
    const std::optional<std::int64_t> step = step_of(name);
    const std::string folder = directory + "/" + name;
    if (!step || !is_kind(files, folder, EntryKind::folder)) continue;
    check_step_folder(files, folder);
    steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::shared_ptr<void> claim_folder(const FileSystem& files, const std::string& directory, std::int64_t steps_done) {
  std::string path = directory;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty()) throw InputError("the name of the folder", "is empty", "give a folder");
  make_folders(files, path);
  const int folder = files.open_folder(path);
  if (folder < 0)
    throw InputError(directory, fmt::format("is no folder that can be read ({})", std::strerror(-folder)),
                     "give a folder that can be written");
  const std::shared_ptr<void> claim(nullptr, [close = files.close, folder](void*) { close(folder); });
  // File systems without locks let two runs save into one folder: what they commit is whole all the same.
  if (files.lock(folder) == -EWOULDBLOCK)
    throw InputError(directory, "another run is saving into it", "give another folder");
  const std::string probe = path + "/" + std::string(kSaving) + step_folder_name(steps_done);
  for (const std::string& name : names_in(files, path))
    if (is_leftover(name)) remove_checkpoint(files, path + "/" + name);
  if (const int made = files.make_folder(probe); made < 0)
    throw InputError(directory, fmt::format("cannot be written ({})", std::strerror(-made)),
                     "give a folder that can be written");
  files.remove_folder(probe);
  const std::vector<std::int64_t> steps = saved_steps(files, path);
  if (!steps.empty() && steps.back() > steps_done)
    throw InputError(directory,
                     fmt::format("holds a checkpoint of step {}, after the {} steps that this run starts from",
                                 steps.back(), steps_done),
                     "go on from it with --resume, or give another folder");
  return claim;
}

std::string saving_folder(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/{}{}", directory, kSaving, step_folder_name(step));
}

std::string begin_saving(const FileSystem& files, const std::string& directory, std::int64_t step) {
  std::vector<std::string> names;
  check(directory, "could not be listed", files.list(directory, names));
  for (const std::string& name : names)
    if (is_leftover(name)) remove_checkpoint(files, directory + "/" + name);
  std::string folder = saving_folder(directory, step);
  check(folder, "could not be made", files.make_folder(folder));
  return folder;
}

void commit(const FileSystem& files, const std::string& directory, std::int64_t step) {
  const std::string from = saving_folder(directory, step), to = directory + "/" + step_folder_name(step);
  sync_folder(files, from);
  check(to, "could not be put in its place", files.rename(from, to));
  sync_folder(files, directory);
}

void remove_all_but(const FileSystem& files, const std::string& directory, std::int64_t newest) {
  const std::vector<std::int64_t> steps = saved_steps(files, directory);
  for (std::size_t i = 0; i + static_cast<std::size_t>(newest) < steps.size(); ++i) {
    const std::string from = directory + "/" + step_folder_name(steps[i]);
    const std::string to = fmt::format("{}/{}{}", directory, kRemoving, step_folder_name(steps[i]));
    check(from, "could not be renamed", files.rename(from, to));
    sync_folder(files, directory);  // before its files go, it no longer counts
    remove_checkpoint(files, to);
  }
}

void abandon(const FileSystem& files, const std::string& directory, std::int64_t step) noexcept {
  try {
    if (is_kind(files, saving_folder(directory, step), EntryKind::folder))
      remove_checkpoint(files, saving_folder(directory, step));
  } catch (const std::exception&) {  // the next save removes it
  }
}

}  // namespace fsdp
