#include "executor/cuda/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace fsdp::cuda {
namespace fs = std::filesystem;

std::string text(Version v) { return fmt::format("{}.{}.{}", v.major, v.minor, v.patch); }

namespace {
Version decimal(int code, int major_unit, int minor_unit) {
  return {code / major_unit, code % major_unit / minor_unit, code % minor_unit};
}
}  // namespace

Version nccl_version(int code) { return code < 10000 ? decimal(code, 1000, 100) : decimal(code, 10000, 100); }
Version cublas_version(std::size_t code) { return decimal(static_cast<int>(code), 10000, 100); }
Version cudnn_version(std::size_t code) {
  return code < 10000 ? decimal(static_cast<int>(code), 1000, 100) : decimal(static_cast<int>(code), 10000, 100);
}
Version cuda_version(int code) { return {code / 1000, code % 1000 / 10, 0}; }

Surroundings this_machine() {
  return {[](const char* variable) -> std::optional<std::string> {
            const char* value = std::getenv(variable);
            return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
          },
          [](const std::string& folder) {
            std::vector<std::string> names;
            std::error_code error;
            for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
              names.push_back(i->path().filename().string());
            std::sort(names.begin(), names.end());
            return names;
          }};
}

namespace {

bool has(const Surroundings& s, const std::string& folder, const std::string& name) {
  const std::vector<std::string> names = s.entries(folder);
  return std::binary_search(names.begin(), names.end(), name);
}

std::vector<std::string> toolkit_folders(const Surroundings& s) {
  std::vector<std::string> roots;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const auto value = s.environment(variable)) roots.push_back(*value);
  roots.emplace_back("/usr/local/cuda");
  std::vector<std::string> folders;
  for (const std::string& root : roots)
    for (const char* lib : {"/lib64", "/lib", "/targets/x86_64-linux/lib"}) folders.push_back(root + lib);
  return folders;
}

// Folders of Python packages below the prefixes of interpreters.
std::vector<std::string> package_folders(const Surroundings& s) {
  std::vector<std::string> prefixes;
  if (const auto python = s.environment("FSDP_PLAN_PYTHON"); python && python->find('/') != std::string::npos)
    prefixes.push_back(fs::path(*python).parent_path().parent_path().string());
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const auto value = s.environment(variable)) prefixes.push_back(*value);
  if (const auto home = s.environment("HOME")) prefixes.push_back(*home + "/.local");
  prefixes.emplace_back("/usr/local");
  prefixes.emplace_back("/usr");
  std::vector<std::string> folders;
  for (const std::string& prefix : prefixes)
    for (const std::string& version : s.entries(prefix + "/lib"))
      if (version.starts_with("python"))
        for (const char* packages : {"/site-packages", "/dist-packages"})
          folders.push_back(prefix + "/lib/" + version + packages);
  return folders;
}

}  // namespace

std::vector<std::string> candidates(const std::vector<std::string>& files, const Surroundings& s) {
  std::vector<std::string> found;
  const auto look = [&](const std::string& folder) {
    for (const std::string& file : files)
      if (has(s, folder, file))
        if (const std::string path = folder + "/" + file; std::find(found.begin(), found.end(), path) == found.end())
          found.push_back(path);
  };
  for (const std::string& folder : toolkit_folders(s)) look(folder);
  found.insert(found.end(), files.begin(), files.end());
  for (const std::string& packages : package_folders(s))
    for (const std::string& package : s.entries(packages + "/nvidia")) look(packages + "/nvidia/" + package + "/lib");
  return found;
}

Library Library::open(const std::vector<std::string>& candidates) {
  Library result;
  for (const std::string& name : candidates) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); handle != nullptr) {
      result.handle_ = std::shared_ptr<void>(handle, [](void* h) { ::dlclose(h); });
      result.path_ = name;
      result.why_.clear();
      return result;
    }
    const char* error = ::dlerror();
    result.why_ += (result.why_.empty() ? "" : "; ") + std::string(error != nullptr ? error : name + " does not load");
  }
  if (candidates.empty()) result.why_ = "there is no such file";
  return result;
}

void* Library::find(const char* symbol) const { return handle_ ? ::dlsym(handle_.get(), symbol) : nullptr; }

}  // namespace fsdp::cuda
