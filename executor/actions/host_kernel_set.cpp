// The host as a machine: work is done by the functions of kernels.h, at once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/actions/kernel_set.h"
#include "executor/arithmetic/element.h"
#include "executor/data/synthetic.h"

namespace fsdp {
namespace {

double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }  // not a number wins

double largest(DType type, BufferView values, std::int64_t n) {
  return with_type(type, [&](auto element) {
    const auto* x = reinterpret_cast<const decltype(element)*>(values.data);
    double result = 0;
    for (std::int64_t i = 0; i < n; ++i) result = larger(result, std::abs(static_cast<double>(load(x[i]))));
    return result;
  });
}

double sum_of_powers(DType type, BufferView values, std::int64_t n, double p) {
  return with_type(type, [&](auto element) {
    const auto* x = reinterpret_cast<const decltype(element)*>(values.data);
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::pow(std::abs(static_cast<double>(load(x[i]))), p);
    return sum;
  });
}

class HostKernels final : public KernelSet {
 public:
  void forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
               double token_weight) const override {
    run_forward(op, work, type, args, token_weight);
  }
  void backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                double token_weight) const override {
    run_backward(op, work, type, args, token_weight);
  }
  void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t n,
               bool accumulate) const override {
    fsdp::convert(from_type, from, to_type, to, n, accumulate);
  }
  void scale(DType type, BufferView values, std::int64_t n, double factor) const override {
    fsdp::scale(type, values, n, factor);
  }
  void scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                       BufferView input) const override {
    fsdp::scatter_copy_in(layout, from, full, to, input);
  }
  void gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered,
                       std::span<const BufferView> full) const override {
    fsdp::gather_copy_out(layout, type, gathered, full);
  }
  void gather_parts_copy_out(const UnitLayout& layout, std::int64_t n, DType type, BufferView gathered,
                             std::span<const BufferView> full) const override {
    fsdp::gather_parts_copy_out(layout, n, type, gathered, full);
  }
  void adamw(const UnitLayout& layout, std::int64_t rank, const Optimizer& optimizer, std::int64_t step, DType master,
             BufferView gradient, BufferView shard, BufferView state1, BufferView state2,
             GradientPlaces places) const override {
    fsdp::adamw(layout, rank, optimizer, step, master, gradient, shard, state1, state2, places);
  }
  void sgd(const UnitLayout& layout, std::int64_t rank, const Optimizer& optimizer, DType master, BufferView gradient,
           BufferView shard, GradientPlaces places) const override {
    fsdp::sgd(layout, rank, optimizer, master, gradient, shard, {}, places);
  }

  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void zero(BufferView view) const override {
    if (view.bytes > 0) std::memset(view.data, 0, static_cast<std::size_t>(view.bytes));
  }
  void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
               bool to_rows) const override {
    for (std::int64_t s = 0; s < shards; ++s)
      for (std::int64_t o = 0; o < outer; ++o) {
        const std::int64_t in_slabs = (s * outer + o) * piece_bytes, in_rows = (o * shards + s) * piece_bytes;
        copy(to.data + (to_rows ? in_rows : in_slabs), from.data + (to_rows ? in_slabs : in_rows), piece_bytes);
      }
  }

  void local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm) const override {
    double sum = 0;
    for (const BufferView v : values) {
      const std::int64_t n = v.bytes / size_of(type);
      if (std::isinf(p)) sum = larger(sum, largest(type, v, n));
      else sum += p == 2 ? sum_of_squares(type, v, n) : sum_of_powers(type, v, n, p);
    }
    std::memcpy(norm.data, &sum, sizeof sum);
  }
  void clip(DType type, std::span<const BufferView> values, double p, double limit, BufferView norm) const override {
    double sum = 0;
    std::memcpy(&sum, norm.data, sizeof sum);
    const double root = std::isinf(p) ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
    const double factor = std::min(1.0, limit / (root + 1e-6));
    for (const BufferView v : values) fsdp::scale(type, v, v.bytes / size_of(type), factor);
  }

  void batch(const TokenReader& read, std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
             BufferView ids_view, BufferView targets_view) const override {
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
  void initial_values(std::uint64_t seed, const Parameter& parameter, std::int64_t begin, std::int64_t count,
                      DType type, std::byte* to) const override {
    fill_initial_values(seed, parameter, begin, count, type, to);
  }
  void read_state(const StateReader& read, const Parameter& parameter, StatePart part, const Slab& slab, DType type,
                  std::int64_t, std::byte* to) const override {
    read(parameter, part, slab, type, to);
  }
};

}  // namespace

const KernelSet& host_kernel_set() {
  static const HostKernels host;
  return host;
}

}  // namespace fsdp
