#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <thread>

#include "executor/cuda/id_text.h"
#include "models/error.h"

namespace fsdp::cuda {

void check(const Meeting& m) {
  const bool printable = std::all_of(m.run_id.begin(), m.run_id.end(), [](unsigned char c) { return c > ' ' && c < 127; });
  if (m.run_id.empty() || m.run_id.size() > 200 || !printable)
    throw InputError("run id", "must be 1 to 200 printable characters without blanks", "give every run another one, such as its job number");
  if (m.timeout.count() <= 0) throw InputError("timeout", "must be positive");
}

namespace {

constexpr std::string_view kFirstLine = "fsdp-plan/communicator-id/1\n";

std::string take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  std::string line(rest.substr(0, end));
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return line;
}

int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

}  // namespace

std::string format_id(const IdText& t) {
  std::string text = fmt::format("{}{}\n", kFirstLine, t.run_id);
  for (const std::byte b : t.id) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text + "\nend\n";
}

std::optional<IdText> parse_id(std::string_view text) {
  if (!text.starts_with(kFirstLine) || !text.ends_with("\nend\n")) return std::nullopt;
  text.remove_prefix(kFirstLine.size());
  IdText result;
  result.run_id = take_line(text);
  const std::string hex = take_line(text);
  if (text != "end\n" || hex.size() % 2 != 0 || hex.size() > 4096) return std::nullopt;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]), low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    result.id.push_back(static_cast<std::byte>(16 * high + low));
  }
  return result;
}

IdFile::IdFile(std::string path, const Meeting& meeting, const Id& id) : path_(std::move(path)) {
  check(meeting);
  const std::string text = format_id({meeting.run_id, id}), beside = fmt::format("{}.{}", path_, ::getpid());
  const auto refuse = [&](const std::string& file) {
    const std::string why = std::generic_category().message(errno);
    ::unlink(beside.c_str());
    throw MachineError(fmt::format("{}: cannot be written ({}); give a file in a folder that all processes of the run see", file, why));
  };
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) refuse(beside);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  if (::close(fd) != 0 || !written) refuse(beside);
  if (std::rename(beside.c_str(), path_.c_str()) != 0) refuse(path_);
}

IdFile::~IdFile() { ::unlink(path_.c_str()); }

Id read_id_file(const std::string& path, const Meeting& meeting) {
  check(meeting);
  const auto limit = std::chrono::steady_clock::now() + meeting.timeout;
  std::string other = "no such file appeared";
  while (true) {
    if (std::ifstream in(path, std::ios::binary); in) {
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      const auto found = parse_id(text);
      if (found && found->run_id == meeting.run_id) return found->id;
      other = found ? fmt::format("the file there is of run '{}'", found->run_id) : std::string("the file there is damaged, or not of this program");
    }
    if (std::chrono::steady_clock::now() >= limit)
      throw MachineError(fmt::format("{}: no communicator id of run '{}' came within {:.3g} s: {}; see whether rank 0 runs and names the same file and run id",
                                     path, meeting.run_id, std::chrono::duration<double>(meeting.timeout).count(), other));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace fsdp::cuda
