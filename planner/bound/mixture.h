// One way for each of several parts, so that together they take the least time and hold no more than there is room for.
//
//   least_within({{{{3, 10}, {4, 5}}, 8}}, 60)     // 8 blocks, each 3 s and 10 bytes or 4 s and 5 bytes: 28 s
#pragma once

#include <vector>

namespace fsdp {

// One way to treat a block: what it costs in the weighted mean of resources, and what it holds at one moment.
struct Way {
  double seconds = 0, bytes = 0;
};

// Parts that have the same ways.
struct Alike {
  std::vector<Way> ways;
  double count = 1;
};

// The least seconds, if a part may be treated partly in one way and partly in another: no choice of one way each takes
// less. Infinity: even the smallest ways hold more than `room` bytes.
[[nodiscard]] double least_within(const std::vector<Alike>&, double room);

}  // namespace fsdp
