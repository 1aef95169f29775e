#include "cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "viz/viz.h"

namespace fsdp::cli {
namespace {

constexpr int kLeastColumns = 20, kMostColumns = 10'000, kChart = 72;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing sets the environment
  return value == nullptr ? "" : value;
}

std::optional<int> columns_said() {
  const std::string_view text = variable("COLUMNS");
  int columns = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), columns);
  if (problem != std::errc() || end != text.data() + text.size() || columns < 1) return std::nullopt;
  return columns;
}

// Open MPI's launcher reads what its ranks print through terminals of its own, and hands it on to anything.
bool behind_launcher() { return !variable("OMPI_COMM_WORLD_RANK").empty(); }

bool is_terminal(std::FILE* out) { return ::isatty(::fileno(out)) == 1 && !behind_launcher(); }

bool understands_escapes(std::FILE* out) { return is_terminal(out) && variable("TERM") != "dumb"; }

bool shows_styles(std::FILE* out) { return understands_escapes(out) && variable("NO_COLOR").empty(); }

// The first of these that is set decides, as in setlocale.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const std::string_view value = variable(name); !value.empty()) {
      std::string text(value);
      std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
      return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
    }
  return false;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// As much of the text as one line of the terminal holds; text of ours is ASCII here.
std::string_view one_line(std::string_view text) {
  const auto width = width_of(stderr);
  return width ? text.substr(0, static_cast<std::size_t>(*width) - 1) : text;
}

}  // namespace

std::optional<int> width_of(std::FILE* out) {
  std::optional<int> columns = columns_said();
  if (winsize size{}; !columns && is_terminal(out) && ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    columns = size.ws_col;
  if (!columns) return std::nullopt;
  return std::clamp(*columns, kLeastColumns, kMostColumns);
}

std::string fitting_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  return table(header, rows, width_of(stdout));
}

int chart_width(int labels) { return std::clamp(width_of(stdout).value_or(kChart + labels) - labels, 8, kChart); }

ChartStyle chart_style() {
  return {.colours = shows_styles(stdout), .ascii = is_terminal(stdout) && !locale_is_utf8()};
}

std::string bold(std::FILE* out, const std::string& text) {
  return shows_styles(out) ? "\033[1m" + text + "\033[0m" : text;
}

std::string verdict_headline(std::FILE* out, const std::string& text) {
  if (!shows_styles(out)) return text;
  constexpr std::pair<std::string_view, Ink> kVerdicts[] = {
      {"Fits", Ink::green}, {"Tight", Ink::yellow}, {"Does not fit", Ink::red}};
  for (const auto& [verdict, ink] : kVerdicts)
    if (text.starts_with(verdict))
      return "\033[1m" + inked(verdict, ink, {.colours = true}) + bold(out, text.substr(verdict.size()));
  return bold(out, text);
}

Progress::Progress() : terminal_(understands_escapes(stderr)) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::say(const std::string& text) {
  if (!terminal_ || now() - last_ < 0.05) return;
  last_ = now();
  shown_ = true;
  const std::string_view line = one_line(text);
  std::fprintf(stderr, "\r\033[K%.*s", static_cast<int>(line.size()), line.data());
  std::fflush(stderr);
}

}  // namespace fsdp::cli
