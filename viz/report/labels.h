// What the operations of a step are called and where they run: distinct labels, and which of them each operation has.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "viz/drawn_as.h"

namespace fsdp {

class JsonColumns;

struct Labels {
  std::vector<std::string> texts;
  std::vector<std::int64_t> lanes, kinds, units;  // of each label
  std::vector<std::int64_t> of, micro_batches;    // of each operation

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(lanes.size()); }
  void add(std::string text, std::int64_t lane, DrawnAs kind, std::int64_t unit) {
    texts.push_back(std::move(text));
    lanes.push_back(lane);
    kinds.push_back(static_cast<std::int64_t>(kind));
    units.push_back(unit);
  }
  // With lanes for so many streams, and below them the host's.
  void write(JsonColumns& out, std::int64_t streams) const;
};

}  // namespace fsdp
