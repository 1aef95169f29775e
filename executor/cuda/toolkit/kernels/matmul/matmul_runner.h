// Matmuls on the GPU by cuBLASLt. The algorithm for a matmul is what the library's heuristics name first,
// asked once (MatmulKey). Partial sums of one matmul are kept in the arithmetic type, never in a 16-bit one; nothing
// is added in an order that depends on timing. fp32 is fp32: no TF32 unless asked for.
#pragma once

#include <cstdint>
#include <memory>

#include "executor/cuda/library.h"
#include "executor/cuda/matmul_shape.h"

struct CUstream_st;

namespace fsdp::cuda {

// What matmuls may use besides their operands, given with each.
struct MatmulRoom {
  void* workspace = nullptr;         // of the arena
  std::int64_t workspace_bytes = 0;  // the same for all matmuls of one MatmulRunner: algorithms are chosen for it
  int multiprocessors = 0;           // that matmuls should count on while collectives have the others; 0: all
};

// Of one rank on the GPU that is current when it is made; used by that rank's host thread.
class MatmulRunner {
 public:
  // MachineError if the library is absent, too old, or refuses this GPU.
  explicit MatmulRunner(const Library& cublas_lt, bool tf32 = false);
  ~MatmulRunner();
  MatmulRunner(MatmulRunner&&) noexcept;
  MatmulRunner& operator=(MatmulRunner&&) noexcept;

  // Enqueues. MachineError for what the library refuses.
  void multiply(const MatmulCall&, const MatmulRoom&, CUstream_st*);

  [[nodiscard]] std::int64_t algorithms() const;  // chosen so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::cuda
