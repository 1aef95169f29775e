// What the operating system and the control groups leave to this process.
#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/host.h"

namespace fsdp {
namespace {

// A control group's folder below the mount of its controller, and those around it: "/a/b", "/a", "". Inside a container
// the path may be that outside of it, which is not there: then what is mounted is the container's own group.
std::vector<std::string> group_and_parents(std::string path) {
  std::vector<std::string> folders;
  for (; path.size() > 1; path.erase(path.rfind('/'))) folders.push_back(path);
  folders.emplace_back();
  return folders;
}

// Of this process: one line each of /proc/self/cgroup, "4:memory:/a/b" (version 1) and "0::/a/b" (version 2).
struct Groups {
  std::string unified = "/", memory = "/", cpu = "/";
};
Groups groups_of_process(const std::string& root) {
  Groups groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    if (line.starts_with("0::")) groups.unified = path;
    for (std::string controller; std::getline(controllers, controller, ',');) {
      if (controller == "memory") groups.memory = path;
      if (controller == "cpu") groups.cpu = path;
    }
  }
  return groups;
}

void lower(std::optional<double>& least, double value) {
  if (value > 0 && (!least || value < *least)) least = value;
}

std::optional<double> first_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;  // "max" is none
  return file >> value ? std::optional(value) : std::nullopt;
}

std::optional<double> group_bytes(const std::string& root, const Groups& groups) {
  std::optional<double> least;
  const std::string mount = root + "/sys/fs/cgroup";
  for (const std::string& folder : group_and_parents(groups.unified))
    lower(least, first_number(mount + folder + "/memory.max").value_or(0));
  for (const std::string& folder : group_and_parents(groups.memory))
    lower(least, first_number(mount + "/memory" + folder + "/memory.limit_in_bytes").value_or(0));
  return least;
}

std::optional<double> group_quota(const std::string& root, const Groups& groups) {
  std::optional<double> least;
  const std::string mount = root + "/sys/fs/cgroup";
  for (const std::string& folder : group_and_parents(groups.unified)) {
    std::ifstream file(mount + folder + "/cpu.max");  // "200000 100000", "max 100000"
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0) lower(least, quota / period);
  }
  for (const std::string& folder : group_and_parents(groups.cpu)) {
    const std::string group = mount + "/cpu" + folder + "/cpu.cfs_";
    const double period = first_number(group + "period_us").value_or(0);
    if (period > 0) lower(least, first_number(group + "quota_us").value_or(0) / period);  // -1: no limit
  }
  return least;
}

// "MemTotal:       24665156 kB"
std::optional<Bytes> memory_line(const std::string& root, const std::string& key) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == key && kib > 0 && kib < std::numeric_limits<std::int64_t>::max() / 1024)
      return Bytes(kib * 1024);
  }
  return std::nullopt;
}

}  // namespace

Bytes HostLimits::usable() const { return group_memory ? std::min(memory, *group_memory) : memory; }

HostLimits host_limits(const std::string& root) {
  HostLimits limits;
  limits.memory = memory_line(root, "MemTotal:").value_or(Bytes(std::int64_t{1} << 30));
  limits.available = memory_line(root, "MemAvailable:");
  const Groups groups = groups_of_process(root);
  // Version 1 states "no limit" as a number close to 2^63: above any memory.
  if (const auto bytes = group_bytes(root, groups); bytes && *bytes < static_cast<double>(limits.memory.count()))
    limits.group_memory = Bytes(static_cast<std::int64_t>(*bytes));
  limits.group_cores = group_quota(root, groups);
  return limits;
}

}  // namespace fsdp
