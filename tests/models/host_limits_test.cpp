// What the control groups leave to this process, on made-up machines.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "models/host.h"
#include "tests/support/temporary_folder.h"

using namespace fsdp;
using fsdp::testing::TemporaryFolder;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
const std::string kMemory =
    "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   8388608 kB\n";  // 16 and 8 GiB

HostLimits limits_of(const std::map<std::string, std::string>& files) {
  const TemporaryFolder root;
  for (const auto& [path, text] : files) {
    std::filesystem::create_directories((root.path() / path).parent_path());
    (void)root.write(path, text);
  }
  return host_limits(root.path().string());
}

}  // namespace

TEST_CASE("a machine without control groups has all of its memory and processors") {
  const HostLimits limits = limits_of({{"proc/meminfo", kMemory}});
  CHECK(limits.memory.count() == 16 * kGiB);
  CHECK(limits.available.value_or(Bytes()).count() == 8 * kGiB);
  CHECK_FALSE(limits.group_memory);
  CHECK_FALSE(limits.group_cores);
  CHECK(limits.usable() == limits.memory);
}

TEST_CASE("a container with a group of its own sees its limits at the top") {
  const HostLimits limits = limits_of({{"proc/meminfo", kMemory},
                                       {"proc/self/cgroup", "0::/\n"},
                                       {"sys/fs/cgroup/memory.max", "4294967296\n"},
                                       {"sys/fs/cgroup/cpu.max", "250000 100000\n"}});
  CHECK(limits.usable().count() == 4 * kGiB);
  CHECK(limits.group_cores.value_or(0) == doctest::Approx(2.5));
}

TEST_CASE("the narrowest of nested groups counts, be it the outer or the inner one") {
  for (const bool inner : {true, false}) {
    const HostLimits limits =
        limits_of({{"proc/meminfo", kMemory},
                   {"proc/self/cgroup", "0::/system.slice/job.scope\n"},
                   {"sys/fs/cgroup/system.slice/memory.max", inner ? "max\n" : "2147483648\n"},
                   {"sys/fs/cgroup/system.slice/cpu.max", inner ? "max 100000\n" : "100000 100000\n"},
                   {"sys/fs/cgroup/system.slice/job.scope/memory.max", inner ? "2147483648\n" : "3221225472\n"},
                   {"sys/fs/cgroup/system.slice/job.scope/cpu.max", inner ? "100000 100000\n" : "300000 100000\n"}});
    CHECK(limits.group_memory.value_or(Bytes()).count() == 2 * kGiB);
    CHECK(limits.group_cores.value_or(0) == doctest::Approx(1));
  }
}

TEST_CASE("groups of version 1 have a folder per controller, and a number close to 2^63 is no limit") {
  std::map<std::string, std::string> files = {
      {"proc/meminfo", kMemory},
      {"proc/self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "5368709120\n"},
      {"sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "150000\n"},
      {"sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n"}};
  HostLimits limits = limits_of(files);
  CHECK(limits.usable().count() == 5 * kGiB);
  CHECK(limits.group_cores.value_or(0) == doctest::Approx(1.5));
  files["sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes"] = "9223372036854771712\n";
  files["sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us"] = "-1\n";
  limits = limits_of(files);
  CHECK_FALSE(limits.group_memory);
  CHECK_FALSE(limits.group_cores);
}

TEST_CASE("a path that is only outside of the container leads to the container's own group") {
  const HostLimits limits = limits_of({{"proc/meminfo", kMemory},
                                       {"proc/self/cgroup", "4:memory:/docker/abc\n"},
                                       {"sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"}});
  CHECK(limits.usable().count() == kGiB);
}

TEST_CASE("files that say nonsense are no limits") {
  const HostLimits limits = limits_of({{"proc/meminfo", "MemTotal: much\nMemAvailable: -3 kB\n"},
                                       {"proc/self/cgroup", "x\n::\n0::relative\n4:memory\n"},
                                       {"sys/fs/cgroup/memory.max", "lots"},
                                       {"sys/fs/cgroup/cpu.max", "1 0"}});
  CHECK(limits.memory.count() == kGiB);
  CHECK_FALSE(limits.available);
  CHECK_FALSE(limits.group_memory);
  CHECK_FALSE(limits.group_cores);
}
