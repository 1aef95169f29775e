// One call of a kernel: the positional arguments of Action::forward and Action::backward by name, each checked against
// the extent that the model gives it. A buffer of another size is a broken lowering, not bad input: MachineError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "executor/arithmetic/element.h"
#include "executor/kernels/kernel_set.h"
#include "models/graph.h"

namespace fsdp {

// Throws MachineError "operation linear: input 0: buffer of 12 bytes where the model needs 16" unless view.bytes ==
// elements * size.
void check_extent(std::string_view operation, std::string_view what, std::size_t index, const BufferView& view,
                  std::int64_t elements, std::int64_t size);
// a * b * c of non-negative extents; throws instead of wrapping.
[[nodiscard]] std::int64_t extent(std::int64_t a, std::int64_t b, std::int64_t c = 1);

class Call {
 public:
  Call(const Op& op, const Workload& work, std::span<const KernelArg> args, double token_weight, bool backward);

  const Op& op;
  const OpShape& shape;
  const Workload& work;
  const double token_weight;
  const std::int64_t tokens;

  // Present and of exactly this many elements.
  template <class T>
  T* input(std::size_t i, std::int64_t n) const {
    return get<T>("input", inputs_, i, n);
  }
  template <class T>
  T* param(std::size_t i, std::int64_t n) const {
    return get<T>("parameter", params_, i, n);
  }
  template <class T>
  T* output(std::size_t i, std::int64_t n) const {
    return get<T>("output", outputs_, i, n);
  }
  template <class T>
  T* extra(std::int64_t n) const {
    return get<T>("extra", extra_, 0, n);
  }
  template <class T>
  T* extra_to_keep(std::int64_t n) const {
    return optional<T>("extra", extra_, 0, n);
  }  // null: recomputed later
  template <class T>
  T* scratch(std::int64_t n) const {
    return get<T>("scratch", scratch_, 0, n);
  }
  template <class T>
  T* grad_output(std::size_t i, std::int64_t n) const {
    return get<T>("gradient of output", grad_outputs_, i, n);
  }
  // Null where it is not wanted.
  template <class T>
  T* grad_input(std::size_t i, std::int64_t n) const {
    return optional<T>("gradient of input", grad_inputs_, i, n);
  }
  template <class T>
  T* grad_param(std::size_t i, std::int64_t n) const {
    return optional<T>("gradient of parameter", grad_params_, i, n);
  }
  [[nodiscard]] bool adds_to_input(std::size_t i) const { return grad_inputs_[i].accumulate; }
  [[nodiscard]] bool adds_to_param(std::size_t i) const { return grad_params_[i].accumulate; }
  [[nodiscard]] BufferView scratch_view() const { return scratch_[0].view; }
  [[nodiscard]] std::size_t params() const { return params_.size(); }
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  template <class T>
  T* get(std::string_view what, std::span<const KernelArg> of, std::size_t i, std::int64_t n) const {
    if (n > 0 && (i >= of.size() || of[i].view.data == nullptr)) missing(what, i);
    return optional<T>(what, of, i, n);
  }
  template <class T>
  T* optional(std::string_view what, std::span<const KernelArg> of, std::size_t i, std::int64_t n) const {
    if (i >= of.size() || of[i].view.data == nullptr) return nullptr;
    check_extent(name_, what, i, of[i].view, n, static_cast<std::int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(of[i].view.data);
  }
  [[noreturn]] void missing(std::string_view what, std::size_t i) const;

  std::string_view name_;
  std::span<const KernelArg> grad_outputs_, inputs_, outputs_, params_, extra_, scratch_, grad_inputs_, grad_params_;
};

}  // namespace fsdp
