// Which value holds the gradient of each tensor while backward is written down.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/graph.h"
#include "models/index.h"

namespace fsdp {

class GradientValues {
 public:
  GradientValues() = default;
  explicit GradientValues(std::size_t tensors) : of_(tensors, kNone) {}

  [[nodiscard]] std::int32_t of(std::int32_t tensor) const { return of_[at(tensor)]; }
  void set(std::int32_t tensor, std::int32_t value) {
    read(of_[at(tensor)]);
    of_[at(tensor)] = value;
    if (unread_.size() <= at(value)) unread_.resize(at(value) + 1, 0);
    ++unread_[at(value)];
  }
  void forget(std::int32_t tensor) { of_[at(tensor)] = kNone; }  // its value has been read for the last time
  // Somebody else holds it, until it is read once more.
  void hold(std::int32_t value) { ++unread_[at(value)]; }
  // One of the tensors whose gradient the value is has been read.
  void read(std::int32_t value) {
    if (value >= 0) --unread_[at(value)];
  }
  // May `value` be overwritten on behalf of one tensor? Yes when no other tensor whose gradient it also is still has to
  // be read: a pass-through op gives one value to several tensors, each of which is read when its producer runs
  // backward.
  [[nodiscard]] bool exclusive(std::int32_t value) const { return unread_[at(value)] == 1; }

  // PyTorch's gradient of a linear layer's input, which has three dimensions, is a view. Its engine cannot add to one
  // in place: it makes a third tensor, which is no view (docs/fsdp-order.md, B5).
  void set_view(std::int32_t value) {
    if (view_.size() <= at(value)) view_.resize(at(value) + 1, 0);
    view_[at(value)] = 1;
  }
  [[nodiscard]] bool take_view(std::int32_t value) {
    return at(value) < view_.size() && std::exchange(view_[at(value)], 0) != 0;
  }

 private:
  std::vector<std::int32_t> of_;      // by tensor
  std::vector<std::int32_t> unread_;  // by value: tensors whose gradient it is and that are still to be read
  std::vector<char> view_;            // by value
};

}  // namespace fsdp
