// The implementation of HostKernelSet, compiled once per instruction set that the build knows (CMake: the machine's
// least, and on x86-64 also the levels v3 (AVX2, FMA) and v4 (AVX-512)). Each compilation is one object of this class;
// host_kernel_set() takes the best one that the processor can run.
//
// Code compiled for AVX-512 must never run on a processor without it. Inline functions and templates of the standard
// library (std::sort, std::string ...) are emitted by every object that uses them under one name, and a linker keeps
// any one of them: it could keep the AVX-512 one for the whole program. So the objects of v3 and v4 are each linked
// into one relocatable object, their COMDAT groups are dissolved, and every symbol but the pointer to the set is made
// local. No other object can be bound to a local symbol. tests/executor/kernels/symbols.sh checks this.
//
// Nothing here may need code before main() or at exit: that code would be compiled for the level, too. So the objects
// are constexpr.
#pragma once

#include "executor/kernels/host_kernel_set.h"

namespace fsdp {

class HostKernels final : public HostKernelSet {
 public:
  explicit constexpr HostKernels(std::string_view instructions) : HostKernelSet(instructions) {}

  void forward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const override;
  void backward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const override;
  void loss_statistic(const Op&, const Workload&, DType, std::span<const KernelArg>,
                      double token_weight) const override;
  void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
               bool accumulate) const override;
  void scale(DType, BufferView values, std::int64_t elements, double factor) const override;
  void scatter_copy_in(const UnitLayout&, DType from, std::span<const BufferView> full, DType to,
                       BufferView input) const override;
  void gather_copy_out(const UnitLayout&, DType, BufferView gathered, std::span<const BufferView> full) const override;
  void gather_parts_copy_out(const UnitLayout&, std::int64_t n, DType, BufferView gathered,
                             std::span<const BufferView> full) const override;
  void adamw(const OptimizerUpdate&) const override;
  void sgd(const OptimizerUpdate&) const override;
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const override;
  void zero(BufferView) const override;
  void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
               bool to_rows) const override;
  void local_norm(DType, std::span<const BufferView> values, double p, BufferView norm) const override;
  void clip(DType, std::span<const BufferView> values, double p, double limit, BufferView norm) const override;
  void batch(const TokenReader&, std::uint64_t seed, std::int64_t first, const Workload&, std::int64_t vocab,
             BufferView ids, BufferView targets) const override;
  void initial_values(std::uint64_t seed, const Parameter&, std::int64_t begin, std::int64_t count, DType,
                      std::byte* to) const override;
  void read_state(const StateReader&, const Parameter&, StatePart, const Slab&, DType, std::byte* to) const override;
  void matmul(DType, Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
              const void* b, void* c, bool accumulate, BufferView scratch) const override;
};

}  // namespace fsdp
