#include "executor/kernels/host_kernel_set.h"

#include <cstdlib>
#include <string>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr const char* kChoice = "FSDP_PLAN_INSTRUCTIONS";

[[noreturn]] void refuse(std::string_view asked, std::span<const HostKernelSet* const> sets) {
  std::string offered;
  for (const HostKernelSet* s : sets) offered += (offered.empty() ? "" : ", ") + std::string(s->instructions());
  throw InputError(kChoice, "'" + std::string(asked) + "' is not in this program or not in this processor",
                   "use one of " + offered);
}

// Takes no heap: the first call may be inside a metered kernel.
const HostKernelSet& choose() {
  const std::span<const HostKernelSet* const> sets = host_kernel_sets();
  const char* asked = std::getenv(kChoice);
  if (asked == nullptr || *asked == '\0') return *sets.front();
  for (const HostKernelSet* s : sets)
    if (std::string_view(asked) == s->instructions()) return *s;
  refuse(asked, sets);
}

}  // namespace

const HostKernelSet& host_kernel_set() {
  static const HostKernelSet& chosen = choose();
  return chosen;
}

}  // namespace fsdp
