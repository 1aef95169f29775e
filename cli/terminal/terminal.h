// The terminal that a command talks to: its width, its styles, progress on it.
//
// NO_COLOR (no-color.org) turns styles off. TERM=dumb turns off styles and progress, which need escape sequences. A
// rank that Open MPI's mpirun started has neither: its terminal is the launcher's, which hands on what comes to
// anything.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "viz/chart_style.h"

namespace fsdp::cli {

// Columns that text on this stream may take: COLUMNS if it is set, else the terminal's; nullopt for files and pipes.
[[nodiscard]] std::optional<int> width_of(std::FILE*);

// viz's table for standard output, broken to its width.
[[nodiscard]] std::string fitting_table(const std::vector<std::string>& header,
                                        const std::vector<std::vector<std::string>>& rows);
// Columns for a chart on standard output beside `labels` columns of its own text; 72 where there is room.
[[nodiscard]] int chart_width(int labels);

// What charts on standard output may use: colours on a terminal that shows them, block characters unless it is one
// whose locale is not UTF-8.
[[nodiscard]] ChartStyle chart_style();

// The line that answers, bold, and its verdict ("Fits", "Tight", "Does not fit") in its colour.
[[nodiscard]] std::string verdict_headline(std::FILE*, const std::string& text);
// Wraps text in an ANSI style when the stream is a terminal that shows it.
[[nodiscard]] std::string bold(std::FILE*, const std::string& text);

// Progress on standard error, only if that is a terminal: one line, rewritten, at most 20 times a second, and erased by
// the destructor.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void say(const std::string& text);

 private:
  bool terminal_ = false, shown_ = false;
  double last_ = -1;
};

}  // namespace fsdp::cli
