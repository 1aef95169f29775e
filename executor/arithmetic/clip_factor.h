// The factor of gradient clipping, as torch.nn.utils.clip_grad_norm_ computes it.
#pragma once

#include "executor/arithmetic/device.h"

namespace fsdp {

// min(1, limit / (norm + 1e-6)). NaN propagates: with a norm of NaN every gradient becomes NaN. An infinite norm gives
// 0: finite gradients become 0, infinite ones NaN.
FSDP_DEVICE inline double clip_factor(double norm, double limit) {
  const double wanted = limit / (norm + 1e-6);
  return wanted > 1 ? 1.0 : wanted;
}

}  // namespace fsdp
