#include "cli/report/train_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>

#include "models/input/error.h"

namespace fsdp::cli {
namespace {

constexpr std::string_view kHeader = "step,loss,lr,tokens_per_s,step_time_s";

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string json_number(double x) { return std::isfinite(x) ? fmt::format("{}", x) : "null"; }

// Whether a file's first bytes are those of a log of this kind.
bool is_log(std::string_view start, bool json) {
  return json ? start.starts_with("{\"step\":") : start.starts_with(kHeader);
}

// The step of a line, which a header and what is cut off have none of.
std::optional<std::int64_t> step_of(std::string_view line, bool json) {
  if (json) line.remove_prefix(std::min(line.size(), std::string_view("{\"step\":").size()));
  std::int64_t step = 0;
  const auto [end, problem] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (problem != std::errc() || end == line.data() + line.size() || *end != ',') return std::nullopt;
  return step;
}

struct Tail {
  std::int64_t begins = 0, lines = 0;
};
// What stands behind the last line of `step` or of a step before it.
Tail lines_after(std::int64_t step, const std::string& path, bool json) {
  std::ifstream file(path, std::ios::binary);
  Tail tail;
  std::int64_t at = 0;
  for (std::string line; std::getline(file, line);) {
    const bool whole = !file.eof();
    at += static_cast<std::int64_t>(line.size()) + (whole ? 1 : 0);
    const auto of = step_of(line, json);
    const bool header = at == static_cast<std::int64_t>(line.size()) + 1 && !of;
    if (whole && (header || (of && *of <= step))) tail = {at, 0};
    else ++tail.lines;
  }
  return tail;
}

}  // namespace

std::string csv_line(const TrainLine& l) {
  return fmt::format("{},{},{},{},{}", l.step, l.loss, l.lr, l.tokens_per_s, l.step_time_s);
}

std::string json_line(const TrainLine& l) {
  return fmt::format(R"({{"step":{},"loss":{},"lr":{},"tokens_per_s":{},"step_time_s":{}}})", l.step,
                     json_number(l.loss), json_number(l.lr), json_number(l.tokens_per_s), json_number(l.step_time_s));
}

TrainLog::TrainLog(const std::string& path, const std::string& where, std::optional<std::int64_t> going_on_after)
    : path_(path), json_(path.ends_with(".jsonl")) {
  if (!json_ && !path.ends_with(".csv"))
    throw InputError(where, "'" + path + "' is neither a .csv nor a .jsonl file", "give one of these names");
  descriptor_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  if (descriptor_ < 0)
    throw InputError(where, "'" + path + "' cannot be written (" + std::strerror(errno) + ")",
                     "give a file in a folder that exists and can be written");
  struct stat info {};
  std::array<char, kHeader.size()> start{};
  const bool regular = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t got = regular ? ::pread(descriptor_, start.data(), start.size(), 0) : 0;
  if (!regular || (got > 0 && !is_log({start.data(), static_cast<std::size_t>(got)}, json_))) {
    ::close(descriptor_);
    throw InputError(where,
                     "'" + path + (regular ? "' holds something else than such a log" : "' is not a regular file"),
                     "give another name");
  }
  if (going_on_after && info.st_size > 0) {
    const Tail tail = lines_after(*going_on_after, path, json_);
    replaced_ = tail.lines;
    if (tail.lines > 0) kept_bytes_ = tail.begins;
    if (tail.lines > 0) return;
  }
  char last = '\n';
  if (info.st_size > 0 && ::pread(descriptor_, &last, 1, info.st_size - 1) == 1 && last != '\n')
    write("");  // a line cut off by a crash
  if (info.st_size == 0 && !json_) write(std::string(kHeader));
}

TrainLog::~TrainLog() {
  ::fdatasync(descriptor_);
  ::close(descriptor_);
}

void TrainLog::write(const std::string& line) {
  const std::string text = line + "\n";
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t wrote = ::write(descriptor_, rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw MachineError(path_ + ": could not be written (" + std::strerror(errno) + ")");
    rest.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

void TrainLog::add(const TrainLine& line) {
  if (kept_bytes_ && ::ftruncate(descriptor_, *kept_bytes_) != 0)
    throw MachineError(path_ + ": could not be written (" + std::strerror(errno) + ")");
  kept_bytes_.reset();
  write(json_ ? json_line(line) : csv_line(line));
  if (now() - synced_ < 1) return;
  if (::fdatasync(descriptor_) != 0)
    throw MachineError(path_ + ": could not be written (" + std::strerror(errno) + ")");
  synced_ = now();
}

}  // namespace fsdp::cli
