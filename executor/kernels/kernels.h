// Host kernels: one function per op kind and direction, on plain spans. Storage type T is double, float, bf16 or fp16
// (structs BFloat16, Float16); arithmetic is double for double and float otherwise. Reference quality first, then
// speed: loops that a compiler vectorises, matmuls through the BLAS that `host_matmul` found. None of them
// allocates; scratch comes in.
//
// Extents come from the model (Op, Workload), never from a buffer: a buffer of another size makes `check_extent` throw.
// Gradients of parameters and of inputs are written or added to, as `accumulate` says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/backend.h"
#include "models/dtype.h"
#include "models/graph.h"
#include "planner/layout/gradients.h"

namespace fsdp {

struct KernelArg {
  BufferView view;  // data null: absent
  bool accumulate = false;
};

// Arguments in the positional order of Action::forward / Action::backward (planner/program.h). `token_weight`: 1 /
// tokens of the whole step of one rank, so that micro-batch losses and their gradients sum to the mean (cross_entropy
// only; it ADDS its share to the loss accumulator, one fp64 element, given as its output).
void run_forward(const Op&, const Workload&, DType type, std::span<const KernelArg> args, double token_weight);
void run_backward(const Op&, const Workload&, DType type, std::span<const KernelArg> args, double token_weight);

void add_into(DType type, BufferView from, BufferView into, std::int64_t elements);  // into += from
void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements, bool accumulate);

// Copy-in / copy-out of a unit (layout.h). `full[i]` is the i-th parameter (or its gradient; null data: zeros),
// contiguous. Copy-in leaves out what is not trained. The second copy-out: gathered from the parts that groups of n
// ranks kept after forward.
void scatter_copy_in(const UnitLayout&, DType from, std::span<const BufferView> full, DType to,
                     BufferView input);  // -> [W, S_g]
void gather_copy_out(const UnitLayout&, DType type, BufferView gathered,
                     std::span<const BufferView> full);  // [W, S_g] ->
void gather_parts_copy_out(const UnitLayout&, std::int64_t n, DType type, BufferView gathered,
                           std::span<const BufferView> full);

// One unit's optimizer step on its unpadded, trained local elements: state buffers hold those densely, in parameter
// order, the shard is in the padded layout and the gradient as `places` says. `step` counts from 1.
void adamw(const UnitLayout&, std::int64_t shard_rank, const Optimizer&, std::int64_t step, DType master,
           BufferView gradient, BufferView shard, BufferView state1, BufferView state2,
           GradientPlaces places = GradientPlaces::as_shard);
void sgd(const UnitLayout&, std::int64_t shard_rank, const Optimizer&, DType master, BufferView gradient,
         BufferView shard, BufferView state1, GradientPlaces places = GradientPlaces::as_shard);
[[nodiscard]] double sum_of_squares(DType type, BufferView values, std::int64_t elements);
void scale(DType type, BufferView values, std::int64_t elements, double factor);

// c[m, n] (+)= a[m, k] * b[k, n], row-major, with either operand transposed in storage. One thread.
enum class Transpose : std::uint8_t { no, yes };
void host_matmul(DType type, Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
                 const void* b, void* c, bool accumulate, BufferView scratch);
// bf16 and fp16 are multiplied in fp32 tiles: what `scratch` must hold (0 for fp64 and fp32). The same for any order of
// m, n, k.
[[nodiscard]] std::int64_t host_matmul_scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k);
[[nodiscard]] std::string_view
host_matmul_library();  // "OpenBLAS 0.3.21 (Cooperlake)": the processor it works for; "Eigen 3.4.0"
// The instruction set that the kernels of this process use: the best of those they were compiled for that the processor
// has
// ("x86-64-v4", "x86-64-v3", "baseline"), or the one named by the environment variable FSDP_PLAN_INSTRUCTIONS
// (InputError if that cannot be had). Results differ in last bits between instruction sets: some multiply and add in
// one rounding.
[[nodiscard]] std::string_view kernel_instructions();
// Heap that the library itself may take inside a matmul whose longest extent is `longest`; nobody declares it as a
// buffer.
[[nodiscard]] std::int64_t host_matmul_library_workspace(std::int64_t longest);

}  // namespace fsdp
