// What the operations of a step are called, where they run and on what: distinct labels, and which of them each
// operation has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/program.h"
#include "viz/drawn_as.h"

namespace fsdp {

class JsonColumns;

struct LabelRow {
  std::string text, shape;  // shape: empty where it is not known
  std::int64_t lane = 0;
  DrawnAs kind{};
  std::int64_t unit = -1;
  Communicator communicator = Communicator::none;
};

struct Labels {
  std::vector<LabelRow> rows;
  std::vector<std::int64_t> of, micro_batches;    // of each operation

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(rows.size()); }
  // With lanes for so many streams, and below them the host's.
  void write(JsonColumns& out, std::int64_t streams) const;
};

}  // namespace fsdp
