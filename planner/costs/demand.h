// What an operation asks of the machine, and what those of a step do: costs say it (planner/costs.h), the simulator's
// engine makes time of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/units.h"

namespace fsdp {

// Resources of one rank that running operations share.
enum class Resource : std::uint8_t {
  compute,     // SMs or cores
  memory,      // of the device
  intra_link,  // NVLink
  inter_link,  // NIC
  host_link,   // PCIe
};
inline constexpr int kResources = static_cast<int>(Resource::host_link) + 1;

struct Demand {
  Seconds alone;  // how long it takes when it has the machine to itself
  std::array<double, kResources>
      use{};                   // fraction of each resource's capacity that it uses while running at that speed
  bool holds_compute = false;  // a collective: its SMs are taken first, the rest is shared
  double beside = 1;           // of its speed, what a collective keeps beside a kernel that leaves it nothing
  double resident =
      0;  // fraction of the SMs that its CTAs keep from start to end (persistent kernel); 0: they come and go
  double second_round = 1;  // of its time, what it takes longer if CTAs find no place and start after others
  Seconds host;             // CPU time to issue it
  double launches = 0;      // of kernels, in the stream's launch queue; 0: it takes no place there (hosts)
  bool host_waits = false;  // the host reads something first: it waits for what it has issued on the operation's stream
  Seconds host_after;       // of read_loss: until the host goes on once it has read
  // Of streams that are threads (hosts): before it starts on a stream that had nothing to do, while nothing else of the
  // rank runs and while something does; and of a collective: waiting for the slowest rank, this long and this part of
  // the time since ranks last met, at most so long.
  Seconds wake, wake_beside, skew, skew_most;
  double skew_share = 0;
  Flops flops;  // arithmetic done (0 for everything but kernels)
  friend bool operator==(const Demand&, const Demand&) = default;
};

// A demand for each operation of a step. Equal ones are held once: a large model's step has hundreds of thousands of
// operations and some hundred demands.
class Demands {
 public:
  Demands() = default;
  // One for each operation, none known to equal another.
  Demands(std::vector<Demand> each)  // NOLINT(google-explicit-constructor): a list of demands is what it says
      : of_(each.size()), distinct_(std::move(each)) {
    for (std::size_t i = 0; i < of_.size(); ++i) of_[i] = static_cast<std::int32_t>(i);
  }

  void reserve(std::size_t operations) { of_.reserve(operations); }
  // The next operation's, which is a new one; its index, for further operations with the same.
  std::int32_t add(const Demand& demand) {
    distinct_.push_back(demand);
    return add_again(static_cast<std::int32_t>(distinct_.size()) - 1);
  }
  std::int32_t add_again(std::int32_t index) {
    of_.push_back(index);
    return index;
  }

  [[nodiscard]] std::size_t size() const { return of_.size(); }
  [[nodiscard]] bool empty() const { return of_.empty(); }
  [[nodiscard]] const Demand& operator[](std::size_t operation) const { return distinct_[index_of(operation)]; }
  [[nodiscard]] const Demand& at_index(std::int32_t index) const { return distinct_[static_cast<std::size_t>(index)]; }
  // Operations with the same index have the same demand.
  [[nodiscard]] std::size_t index_of(std::size_t operation) const { return static_cast<std::size_t>(of_[operation]); }

 private:
  std::vector<std::int32_t> of_;  // by operation: index into distinct_
  std::vector<Demand> distinct_;
};

// How a collective that holds compute slows a kernel beside it: simulator/engine/engine.h says by which rule and from
// which measurement, planner/bound/load.h what follows from it for every schedule.
inline constexpr double kInterference = 0.65;  // of a collective's share of memory, what a kernel bound by flops feels
inline constexpr double kMostHeld = 0.9;       // of compute and of memory: others never starve for good

}  // namespace fsdp
