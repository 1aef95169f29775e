// The log of a training run: a line per step, appended to what is there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::cli {

struct TrainLine {
  std::int64_t step = 0;  // of training, from 1
  double loss = 0, lr = 0, tokens_per_s = 0, step_time_s = 0;
};

// One line: CSV, or one JSON object, without its line break. A number that is none is written as nan (CSV) or null
// (JSON).
[[nodiscard]] std::string csv_line(const TrainLine&);
[[nodiscard]] std::string json_line(const TrainLine&);

// Each line is handed to the system as its step ends, so that it survives this process, and to the disk at least once a
// second and at the end, so that it survives the machine.
class TrainLog {
 public:
  // `path`: .csv (with a header line where the file is new) or .jsonl. `going_on_after`: the step of the checkpoint
  // that the run goes on from; the first line that is added then replaces the file's last lines, of steps after it.
  // Throws InputError(`where`, ...): another name, a folder or pipe, not writable, a file that holds something else.
  TrainLog(const std::string& path, const std::string& where, std::optional<std::int64_t> going_on_after = {});
  ~TrainLog();
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;
  void add(const TrainLine&);                                              // throws MachineError when the disk fails
  [[nodiscard]] std::int64_t replaced_lines() const { return replaced_; }  // by the first that is added

 private:
  void write(const std::string& line);
  std::string path_;
  bool json_ = false;
  int descriptor_ = -1;
  double synced_ = 0;
  std::int64_t replaced_ = 0;
  std::optional<std::int64_t> kept_bytes_;  // of the file as it was found, until the first line is added
};

}  // namespace fsdp::cli
