// The conformance suite (executor_conformance*.cpp) on the host backend.
#include "tests/executor/conformance/conformance.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const Subject host{"host", 0, make_host_backend};
  return host;
}

}  // namespace fsdp::conformance
