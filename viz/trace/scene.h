// What all processes of one trace share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "viz/memory_walk.h"
#include "viz/trace.h"

namespace fsdp {

struct TraceScene {
  const TraceOf& of;
  const Step& step;
  std::optional<TraceCut> cut;
  std::vector<std::int32_t> units;        // by operation: the unit that it belongs to
  std::vector<std::string> phases;        // by operation: "forward, micro-batch 1", "optimizer"
  std::vector<std::string> names;         // describe() of each operation that is drawn
  std::vector<std::string> part_names;    // "memory: activations"
  std::vector<MemoryStack> part_highest;  // by operation: bytes by part at its highest moment
  std::vector<MemoryStack> part_after;    // and when its frees are done
  std::int64_t zero = 0;                  // nanoseconds: what is drawn at 0

  explicit TraceScene(const TraceOf&);
  [[nodiscard]] bool draws(std::size_t operation) const {
    const std::int64_t m = step.ops[operation].micro_batch;
    return !cut || m < cut->first || m >= cut->all - cut->last;
  }
  [[nodiscard]] std::int64_t at(double seconds) const;  // nanoseconds from zero
};

}  // namespace fsdp
