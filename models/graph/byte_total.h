// What the operations of one micro-batch make, in bytes: more than kMostMicroBatchBytes is refused, so that no sum over
// live buffers overflows.
#pragma once

#include <cstdint>
#include <string>

#include "models/graph.h"
#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/units.h"

namespace fsdp {

class ByteTotal {
 public:
  explicit ByteTotal(const Workload& work) : work_(work) {}

  void add(std::int64_t bytes) {
    if (bytes > kMostMicroBatchBytes - bytes_) refuse();
    bytes_ += bytes;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  [[noreturn]] void refuse() const {
    throw InputError({"plan", "seq_len"},
                     std::to_string(work_.sequences) + " sequences of " + std::to_string(work_.seq_len) +
                         " tokens make tensors of more than " + human(Bytes(kMostMicroBatchBytes)) + " at once",
                     "use fewer or shorter sequences");
  }

  Workload work_;
  std::int64_t bytes_ = 0;
};

}  // namespace fsdp
