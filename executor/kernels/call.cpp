#include "executor/kernels/call.h"

#include "models/input/error.h"

namespace fsdp {

void check_extent(std::string_view operation, std::string_view what, std::size_t index, const BufferView& view,
                  std::int64_t elements, std::int64_t size) {
  const std::int64_t needed = extent(elements, size);
  if (view.bytes == needed && (view.data != nullptr || needed == 0)) return;
  throw MachineError("operation " + std::string(operation) + ": " + std::string(what) + " " + std::to_string(index) +
                     ": buffer of " + std::to_string(view.bytes) + " bytes where the model needs " +
                     std::to_string(needed));
}

std::int64_t extent(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t ab = 0, abc = 0;
  if (a < 0 || b < 0 || c < 0 || __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc))
    throw MachineError("an extent of " + std::to_string(a) + " x " + std::to_string(b) + " x " + std::to_string(c) +
                       " elements is not possible");
  return abc;
}

Call::Call(const Op& o, const Workload& w, std::span<const KernelArg> args, double weight, bool backward)
    : op(o),
      shape(o.shape),
      work(w),
      token_weight(weight),
      tokens(extent(w.sequences, w.seq_len)),
      name_(name(o.kind)) {
  std::size_t at = 0;
  const auto take = [&](std::size_t count) {
    const std::span<const KernelArg> part =
        at + count <= args.size() ? args.subspan(at, count) : std::span<const KernelArg>{};
    at += count;
    return part;
  };
  if (backward) {
    grad_outputs_ = take(o.outputs.size());
    inputs_ = take(o.inputs.size());
    outputs_ = take(o.outputs.size());
    params_ = take(o.params.size());
    extra_ = take(1);
    scratch_ = take(1);
    grad_inputs_ = take(o.inputs.size());
    grad_params_ = take(o.params.size());
  } else {
    inputs_ = take(o.inputs.size());
    params_ = take(o.params.size());
    outputs_ = take(o.outputs.size());
    extra_ = take(1);
    scratch_ = take(1);
  }
  if (at != args.size()) fail(std::to_string(args.size()) + " arguments where its positions are " + std::to_string(at));
}

void Call::fail(const std::string& problem) const {
  throw MachineError("operation " + std::string(name_) + ": " + problem);
}

void Call::missing(std::string_view what, std::size_t i) const {
  fail(std::string(what) + " " + std::to_string(i) + " is absent, but this kernel needs it");
}

}  // namespace fsdp
