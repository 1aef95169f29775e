#include "cli/output_target.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdlib>

#include "models/input/error.h"

namespace fsdp::cli {
namespace {

constexpr int kMostLinks = 40;  // as the kernel follows

std::string name_in_folder(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Without links and dots; empty for a folder that does not exist.
std::string real_folder(const std::string& folder) {
  char real[PATH_MAX];
  return ::realpath(folder.c_str(), real) != nullptr ? real : "";
}

// "/dev/fd/1" and "/proc/self/fd/1" are descriptors of this process.
std::optional<int> descriptor_of(const std::string& folder, const std::string& name) {
  if (folder != fmt::format("/proc/{}/fd", ::getpid())) return std::nullopt;
  int number = 0;
  const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (problem != std::errc() || end != name.data() + name.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

OutputTarget output_target(const std::string& path) {
  std::string at = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    const std::string folder = real_folder(folder_of(at)), name = name_in_folder(at);
    if (const auto descriptor = descriptor_of(folder, name)) return {at, descriptor};
    char leads_to[PATH_MAX];
    const ssize_t length = ::readlink(at.c_str(), leads_to, sizeof leads_to);
    if (length < 0) {  // no link
      if (folder.empty() || name.empty()) return {at, std::nullopt};
      return {(folder == "/" ? "" : folder) + "/" + name, std::nullopt};
    }
    const std::string next(leads_to, static_cast<std::size_t>(length));
    at = next.starts_with('/') ? next : folder_of(at) + next;
  }
  throw InputError(path, fmt::format("leads through more than {} symbolic links, or in a ring of them", kMostLinks),
                   "give the name of a file to write");
}

}  // namespace fsdp::cli
