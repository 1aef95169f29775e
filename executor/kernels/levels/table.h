// One compilation of the host kernels. executor/kernels/*.cpp are compiled once per instruction set that the build
// knows (CMake: the machine's least, and on x86-64 also the levels v3 (AVX2, FMA) and v4 (AVX-512)); each compilation
// fills one table, and kernels.cpp calls through the best one that the processor has.
//
// Code compiled for AVX-512 must never be what runs on a processor without it. Inline functions and templates of the
// standard library (std::sort, std::string ...) are emitted by every object that uses them under one name, and a linker
// keeps any one of them: it could keep the AVX-512 one for the whole program. So the objects of v3 and v4 are each
// linked into one relocatable object, their COMDAT groups dissolved, and every symbol but the table made local:
// whatever they define, nobody else can be bound to. tests/executor/kernels/symbols.sh looks.
#pragma once

#include "executor/kernels/kernels.h"

namespace fsdp {

struct KernelTable {
  const char* instructions;  // "x86-64-v3"; "baseline"
  decltype(&fsdp::run_forward) forward;
  decltype(&fsdp::run_backward) backward;
  decltype(&fsdp::add_into) add_into;
  decltype(&fsdp::convert) convert;
  decltype(&fsdp::scatter_copy_in) scatter_copy_in;
  decltype(&fsdp::gather_copy_out) gather_copy_out;
  decltype(&fsdp::adamw) adamw;
  decltype(&fsdp::sgd) sgd;
  decltype(&fsdp::sum_of_squares) sum_of_squares;
  decltype(&fsdp::scale) scale;
  decltype(&fsdp::host_matmul) host_matmul;
};

// The tables that this program holds and this processor can run, the best first, the baseline last. Which there are is
// a choice of source: tables_x86_64.cpp or tables_baseline.cpp.
[[nodiscard]] std::span<const KernelTable* const> kernel_tables();

// The kernels of the compilation at hand, under the names and types of kernels.h.
namespace kernels {

decltype(fsdp::run_forward) run_forward;
decltype(fsdp::run_backward) run_backward;
decltype(fsdp::add_into) add_into;
decltype(fsdp::convert) convert;
decltype(fsdp::scatter_copy_in) scatter_copy_in;
decltype(fsdp::gather_copy_out) gather_copy_out;
decltype(fsdp::adamw) adamw;
decltype(fsdp::sgd) sgd;
decltype(fsdp::sum_of_squares) sum_of_squares;
decltype(fsdp::scale) scale;
decltype(fsdp::host_matmul) host_matmul;

}  // namespace kernels

[[nodiscard]] constexpr KernelTable table_of_this_compilation(const char* instructions) {
  return {instructions,     kernels::run_forward,     kernels::run_backward,    kernels::add_into,
          kernels::convert, kernels::scatter_copy_in, kernels::gather_copy_out, kernels::adamw,
          kernels::sgd,     kernels::sum_of_squares,  kernels::scale,           kernels::host_matmul};
}

}  // namespace fsdp
