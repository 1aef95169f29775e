// Which piece of a file a training sequence is: a shuffle that is a pure function of (seed, sequence), so that every
// rank of every mesh, and a run that goes on where another stopped, finds the same data without keeping anything.
//
// A file of n windows is read in epochs: sequences e n .. (e + 1) n - 1 are its windows, each once, in an order of
// epoch e's own. A step may hold the end of one epoch and the start of the next. The order is a Feistel network (four
// rounds keyed by the hash) over the smallest power of four that holds n; what it maps beyond n is mapped again ("cycle
// walking", Black and Rogaway 2002). In Python, `mix` as in synthetic.cpp:
//
//   epoch, place = divmod(sequence, n);  half = 1
//   while 4**half < n: half += 1
//   key = mix(mix(seed ^ 0x73687566666C65) ^ epoch)
//   while True:
//       left, right = place >> half, place & 2**half - 1
//       for turn in range(4): left, right = right, left ^ mix(mix(key ^ turn) ^ right) & 2**half - 1
//       place = left << half | right
//       if place < n: return place
#pragma once

#include <cstdint>

namespace fsdp {

// The window, from 0, of sequence `sequence` >= 0; windows >= 1. Takes no heap.
[[nodiscard]] std::int64_t window_of_sequence(std::uint64_t seed, std::int64_t sequence, std::int64_t windows);

}  // namespace fsdp
