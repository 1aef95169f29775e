// Batches, initial values and loaded state.
#include "executor/data/synthetic.h"
#include "executor/kernels/levels/host_kernels.h"
#include "models/input/error.h"

namespace fsdp {

void HostKernels::batch(const TokenReader& read, std::uint64_t seed, std::int64_t first, const Workload& work,
                        std::int64_t vocab, BufferView ids_view, BufferView targets_view) const {
  auto* ids = reinterpret_cast<std::int64_t*>(ids_view.data);
  auto* targets = reinterpret_cast<std::int64_t*>(targets_view.data);
  for (std::int64_t s = 0; s < work.sequences; ++s) {
    if (read) {
      read(first + s, work.seq_len, ids + s * work.seq_len, targets + s * work.seq_len);
      continue;
    }
    std::int64_t token = synthetic_token(seed, first + s, 0, vocab);
    for (std::int64_t p = 0; p < work.seq_len; ++p) {
      *ids++ = token;
      *targets++ = token = synthetic_token(seed, first + s, p + 1, vocab);
    }
  }
}

void HostKernels::initial_values(std::uint64_t seed, const Parameter& parameter, std::int64_t begin, std::int64_t count,
                                 DType type, std::byte* to) const {
  fill_initial_values(seed, parameter, begin, count, type, to);
}

void HostKernels::read_state(const StateReader& read, const Parameter& parameter, StatePart part, const Slab& slab,
                             DType type, std::byte* to) const {
  read(parameter, part, slab, type, to);
}

}  // namespace fsdp
