#include "planner/lowering/step/over_tensor.h"

#include "models/input/error.h"

namespace fsdp {

void OverTensor::end_micro_batch() {
  if (!running_.empty()) throw InternalError("lowering: nobody waits for a collective over tensor ranks");
}

}  // namespace fsdp
