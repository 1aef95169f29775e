// Matrix products on the GPU by cuBLASLt. The algorithm for a product is what the library's heuristics name first,
// asked once (ProductKey). Partial sums of one product are kept in the arithmetic type, never in a 16-bit one; nothing
// is added in an order that depends on timing. fp32 is fp32: no TF32 unless asked for.
#pragma once

#include <cstdint>
#include <memory>

#include "executor/cuda/library.h"
#include "executor/cuda/product_shape.h"

struct CUstream_st;

namespace fsdp::cuda {

// What products may use besides their operands, given with each.
struct ProductRoom {
  void* workspace = nullptr;         // of the arena
  std::int64_t workspace_bytes = 0;  // the same for all products of one Products: algorithms are chosen for it
  int multiprocessors = 0;           // that products should count on while collectives have the others; 0: all
};

// Of one rank on the GPU that is current when it is made; used by that rank's host thread.
class Products {
 public:
  // MachineError if the library is absent, too old, or refuses this GPU.
  explicit Products(const Library& cublas_lt, bool tf32 = false);
  ~Products();
  Products(Products&&) noexcept;
  Products& operator=(Products&&) noexcept;

  // Enqueues. MachineError for what the library refuses.
  void multiply(const ProductCall&, const ProductRoom&, CUstream_st*);

  [[nodiscard]] std::int64_t algorithms() const;  // chosen so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::cuda
