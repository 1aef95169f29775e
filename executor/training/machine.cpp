#include "executor/training/machine.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "executor/ranks/processor.h"
#include "models/host.h"

namespace fsdp {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : 0;
}

std::string utc_date() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                     utc.tm_min);
}

std::string first_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::string turbo() {
  if (const std::string off = first_word("/sys/devices/system/cpu/intel_pstate/no_turbo"); !off.empty())
    return off == "0" ? "on" : "off";
  if (const std::string on = first_word("/sys/devices/system/cpu/cpufreq/boost"); !on.empty())
    return on == "1" ? "on" : "off";
  return "";
}

}  // namespace

std::optional<std::int64_t> address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  std::ifstream statm("/proc/self/statm");  // its first number: mapped pages
  std::int64_t pages = 0;
  statm >> pages;
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max())) -
         pages * ::sysconf(_SC_PAGESIZE);
}

double own_processor_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, in clock ticks. Guests count as
// user.
MachineWatch::Cores MachineWatch::read_cores() {
  std::ifstream file("/proc/stat");
  std::string label;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  file >> label >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (!file || label != "cpu" || ticks <= 0) return {};
  return {(user + nice + system + irq + softirq) / ticks, steal / ticks, true};
}

MachineWatch::MachineWatch()
    : begin_(now()), own_(own_processor_seconds()), load_(load_average()), cores_(read_cores()), date_(utc_date()) {}

MachineState MachineWatch::finish(std::string libraries, std::string instructions, double also_own_seconds) const {
  MachineState m;
  m.processor = host::processor_name();
  m.instructions = std::move(instructions);
  m.libraries = std::move(libraries);
  m.date = date_;
  m.governor = first_word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  m.turbo = turbo();
  m.cores = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  if (const long online = ::sysconf(_SC_NPROCESSORS_ONLN); online > 0) m.cores = online;
  m.usable_cores = usable_cores();
  m.load_at_start = load_;
  m.load_at_end = load_average();
  m.wall_seconds = now() - begin_;
  if (m.wall_seconds <= 0) return m;
  const double own = own_processor_seconds() - own_ + also_own_seconds;
  m.own_cores = own / m.wall_seconds;
  const Cores cores = read_cores();
  if (!cores.known || !cores_.known) return m;
  // The machine's clock ticks are coarse beside the process's own: a short run may come out below zero.
  m.other_cores = std::max(0.0, cores.busy - cores_.busy - own) / m.wall_seconds;
  m.stolen_cores = std::max(0.0, cores.stolen - cores_.stolen) / m.wall_seconds;
  return m;
}

std::int64_t resident_bytes(const std::byte* begin, std::int64_t bytes) {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  if (begin == nullptr || bytes <= 0 || page <= 0 ||
      reinterpret_cast<std::uintptr_t>(begin) % static_cast<std::uintptr_t>(page) != 0)
    return 0;
  constexpr std::int64_t kPages = 1 << 16;  // asked for at a time
  std::vector<unsigned char> in_memory(static_cast<std::size_t>(std::min(kPages, (bytes + page - 1) / page)));
  std::int64_t resident = 0;
  for (std::int64_t at = 0; at < bytes; at += kPages * page) {
    const std::int64_t n = std::min(kPages * page, bytes - at);
    if (::mincore(const_cast<std::byte*>(begin) + at, static_cast<std::size_t>(n), in_memory.data()) != 0)
      return resident;
    const std::int64_t pages = (n + page - 1) / page;
    resident += page * std::count_if(in_memory.begin(), in_memory.begin() + pages,
                                     [](unsigned char c) { return (c & 1) != 0; });
  }
  return resident;
}

ProcessMemory process_memory(std::int64_t arenas) {
  std::ifstream status("/proc/self/status");
  ProcessMemory m;
  std::int64_t anonymous = 0;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kib = 0;
    words >> key >> kib;
    if (key == "VmHWM:") m.high_water_bytes = kib * 1024;
    if (key == "VmRSS:") m.resident_bytes = kib * 1024;
    if (key == "RssAnon:") anonymous = kib * 1024;
  }
  if (m.resident_bytes == 0) {
    rusage usage{};
    if (::getrusage(RUSAGE_SELF, &usage) == 0) m.high_water_bytes = usage.ru_maxrss * 1024;  // Linux: KiB
    m.arenas_bytes = m.resident_bytes = arenas;
    m.high_water_bytes = std::max(m.high_water_bytes, m.resident_bytes);
    return m;
  }
  m.arenas_bytes = std::min(arenas, anonymous);
  const struct mallinfo2 heap = ::mallinfo2();  // taken from the system, in use or not
  m.heap_bytes = std::min(static_cast<std::int64_t>(heap.arena + heap.hblkhd), anonymous - m.arenas_bytes);
  m.rest_bytes = anonymous - m.arenas_bytes - m.heap_bytes;
  m.code_bytes = m.resident_bytes - anonymous;
  m.high_water_bytes =
      std::max(m.high_water_bytes, m.resident_bytes);  // the kernel brings the two up to date at different times
  return m;
}

}  // namespace fsdp
