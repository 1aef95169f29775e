#include "viz/drawn_as.h"

namespace fsdp {

DrawnAs drawn_as(Action action, bool host_only) {
  switch (action) {
    case Action::forward:
    case Action::update_metrics: return DrawnAs::forward;
    case Action::backward:
    case Action::add_gradient: return DrawnAs::backward;
    case Action::recompute: return DrawnAs::recompute;
    case Action::all_gather: return DrawnAs::all_gather;
    case Action::reduce_scatter: return DrawnAs::reduce_scatter;
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::reduce_largest:
    case Action::reduce_loss: return DrawnAs::all_reduce;
    case Action::clip_local_norm:
    case Action::clip_scale:
    case Action::init_optimizer:
    case Action::optimizer: return DrawnAs::optimizer;
    case Action::zero_gradients:
    case Action::read_loss:
    case Action::host_wait: return DrawnAs::host;
    default: return host_only ? DrawnAs::host : DrawnAs::copy;
  }
}

}  // namespace fsdp
