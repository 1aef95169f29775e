// The kernels of executor/cuda/toolkit/kernels/ as a kernel set on host memory: each runs on the processor, emulated.
// Matmuls and attention, which are not among them, are the host's.
#pragma once

// First: it defines what .cuh files take for granted.
#include "tests/fakes/emulated/launch.h"

#include "executor/cuda/toolkit/kernels/cross_entropy.cuh"
#include "executor/cuda/toolkit/kernels/data.cuh"
#include "executor/cuda/toolkit/kernels/elementwise.cuh"
#include "executor/cuda/toolkit/kernels/embedding.cuh"
#include "executor/cuda/toolkit/kernels/launches.h"
#include "executor/cuda/toolkit/kernels/layouts.cuh"
#include "executor/cuda/toolkit/kernels/moe/moe_launch.cuh"
#include "executor/cuda/toolkit/kernels/norms.cuh"
#include "executor/cuda/toolkit/kernels/rotary.cuh"
#include "executor/cuda/toolkit/kernels/update.cuh"
#include "executor/kernels/host_kernel_set.h"
#include "models/implementation.h"

namespace fsdp::testing {

class EmulatedKernels final : public KernelSet {
 public:
  explicit EmulatedKernels(std::uint64_t seed = 1) : launch_{seed} {}

  void forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
               double token_weight) const override {
    run(op, work, type, args, token_weight, false);
  }
  void backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                double token_weight) const override {
    run(op, work, type, args, token_weight, true);
  }
  void loss_statistic(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                      double token_weight) const override {
    with_type(type, [&](auto element) {
      cuda::launch_loss_statistic<decltype(element)>(op, work.tokens(), args, token_weight, launch_);
    });
  }
  void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t n,
               bool accumulate) const override {
    cuda::launch_convert(from_type, from, to_type, to, n, accumulate, launch_);
  }
  void scale(DType type, BufferView values, std::int64_t n, double factor) const override {
    cuda::launch_scale(type, values, n, factor, launch_);
  }
  void scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                       BufferView input) const override {
    cuda::launch_scatter_copy_in(layout, from, full, to, input, launch_);
  }
  void gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered,
                       std::span<const BufferView> full) const override {
    cuda::launch_gather_copy_out(layout, type, gathered, full, launch_);
  }
  void gather_parts_copy_out(const UnitLayout& layout, std::int64_t n, DType type, BufferView gathered,
                             std::span<const BufferView> full) const override {
    cuda::launch_gather_parts_copy_out(layout, n, type, gathered, full, launch_);
  }
  void adamw(const OptimizerUpdate& update) const override { cuda::launch_adamw(update, launch_); }
  void sgd(const OptimizerUpdate& update) const override { cuda::launch_sgd(update, launch_); }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const override { launch_.copy(to, from, bytes); }
  void zero(BufferView view) const override { launch_.zero(view.data, view.bytes); }
  void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
               bool to_rows) const override {
    cuda::launch_reorder(from, to, shards, outer, piece_bytes, to_rows, launch_);
  }
  void local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm) const override {
    std::vector<double> scratch(static_cast<std::size_t>(cuda::kNormBlocks), std::nan(""));
    cuda::launch_local_norm(type, values, p, norm, reinterpret_cast<std::byte*>(scratch.data()), launch_);
  }
  void clip(DType type, std::span<const BufferView> values, double p, double limit, BufferView norm) const override {
    cuda::launch_clip(type, values, p, limit, norm, launch_);
  }
  void batch(const TokenReader& read, std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
             BufferView ids, BufferView targets) const override {
    if (read) host_kernel_set().batch(read, seed, first, work, vocab, ids, targets);
    else cuda::launch_synthetic_tokens(seed, first, work, vocab, ids, targets, launch_);
  }
  void initial_values(std::uint64_t seed, const Parameter& parameter, std::int64_t begin, std::int64_t count,
                      DType type, std::byte* to) const override {
    cuda::launch_initial_values(initial_values_of(seed, parameter), begin, count, type, to, launch_);
  }
  void read_state(const StateReader& read, const Parameter& parameter, StatePart part, const Slab& slab, DType type,
                  std::byte* to) const override {
    host_kernel_set().read_state(read, parameter, part, slab, type, to);
  }

 private:
  void run(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args, double token_weight,
           bool backward) const {
    const Call call(op, work, args, token_weight, backward);
    switch (cuda::theme_of(op.kind)) {
      case cuda::Theme::elementwise: return cuda::launch_elementwise(call, type, backward, launch_);
      case cuda::Theme::norms: return cuda::launch_norms(call, type, backward, launch_);
      case cuda::Theme::embeddings: return cuda::launch_embeddings(call, type, backward, launch_);
      case cuda::Theme::rotary: return cuda::launch_rotary(call, type, backward, launch_);
      case cuda::Theme::cross_entropy: return cuda::launch_cross_entropy(call, type, backward, launch_);
      case cuda::Theme::moe: return cuda::launch_moe(call, type, backward, launch_);
      default: return on_host(op, work, type, args, token_weight, backward);
    }
  }

  // With the scratch that the host's kernel takes instead.
  static void on_host(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                      double token_weight, bool backward) {
    const OpFacts f = facts(native_implementation(), op, work);
    std::vector<std::byte> scratch(
        static_cast<std::size_t>(backward ? f.backward_scratch_bytes : f.forward_scratch_bytes));
    std::vector<KernelArg> with(args.begin(), args.end());
    const std::size_t at = backward ? 2 * op.outputs.size() + op.inputs.size() + op.params.size() + 1
                                    : op.inputs.size() + op.params.size() + op.outputs.size() + 1;
    with.at(at).view = {scratch.data(), static_cast<std::int64_t>(scratch.size())};
    if (backward) host_kernel_set().backward(op, work, type, with, token_weight);
    else host_kernel_set().forward(op, work, type, with, token_weight);
  }

  EmulatedLaunch launch_;
};

}  // namespace fsdp::testing
