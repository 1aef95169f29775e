// Runs one op through run_forward and run_backward on plain numbers, with exactly the buffers that the `native`
// implementation declares: what it does not save is absent in backward, extra and scratch have its sizes. So the table
// and the kernels check each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "executor/kernels/host_kernel_set.h"
#include "models/implementation.h"

namespace fsdp::testing {

using Numbers = std::vector<double>;

inline nlohmann::json golden(const std::string& file) {
  std::ifstream in(std::string(FSDP_TESTS_DIR) + "/golden/" + file);
  return nlohmann::json::parse(in);
}

// Memory of its own, of exactly `bytes`, so that the address sanitizer sees any overrun.
class Block {
 public:
  Block() = default;
  explicit Block(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {}
  [[nodiscard]] BufferView view() {
    return {bytes_.empty() ? nullptr : bytes_.data(), static_cast<std::int64_t>(bytes_.size())};
  }

 private:
  std::vector<std::byte> bytes_;
};

inline BufferView view_of(Numbers& x) {
  return {reinterpret_cast<std::byte*>(x.data()), static_cast<std::int64_t>(x.size() * sizeof(double))};
}

inline Block encode(DType type, Numbers values) {
  const auto n = static_cast<std::int64_t>(values.size());
  Block b(n * size_of(type));
  if (type == DType::i64) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto id = static_cast<std::int64_t>(values[i]);
      std::memcpy(b.view().data + 8 * i, &id, 8);
    }
  } else {
    host_kernel_set().convert(DType::f64, view_of(values), type, b.view(), n, false);
  }
  return b;
}

inline Numbers decode(DType type, BufferView view) {
  const std::int64_t n = view.bytes / size_of(type);
  Numbers values(static_cast<std::size_t>(n));
  host_kernel_set().convert(type, view, DType::f64, view_of(values), n, false);
  return values;
}

inline double sum_of_squares(const KernelSet& kernels, DType type, BufferView values) {
  Numbers norm(1);
  kernels.local_norm(type, std::span(&values, 1), 2, view_of(norm));
  return norm[0];
}

// The values as `type` stores them.
inline Numbers rounded(DType type, const Numbers& values) { return decode(type, encode(type, values).view()); }

struct OpCase {
  std::string name;
  Op op;
  Workload work;
  double token_weight = 0;
  std::vector<Numbers> inputs, params;
  std::vector<bool> ids;
  Numbers grad_output;
};

struct OpResult {
  Numbers output;
  std::vector<Numbers> grad_inputs, grad_params;
};

// How the gradients are asked for: `before`, when set, is what every gradient holds already, to be added to.
struct RunMode {
  DType type = DType::f64;
  double before = std::numeric_limits<double>::quiet_NaN();
  bool wants_inputs = true, wants_params = true, backward = true;
  [[nodiscard]] bool accumulate() const { return !std::isnan(before); }
};

class OpRun {
 public:
  OpRun(const OpCase& c, const RunMode& mode) : c_(c), mode_(mode) {
    work_ = c.work;
    work_.element_bytes = size_of(mode.type);
    facts_ = facts(native_implementation(), c.op, work_);
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      inputs_.push_back(encode(c.ids[i] ? DType::i64 : mode.type, c.inputs[i]));
    for (const Numbers& p : c.params) params_.push_back(encode(mode.type, p));
    extra_ = Block(facts_.saved_extra_bytes);
  }

  OpResult run(std::size_t output_elements) {
    const DType output_type = c_.op.kind == OpKind::cross_entropy ? DType::f64 : mode_.type;
    output_ = encode(output_type, Numbers(output_elements, 0.0));  // the loss is added to
    forward();
    OpResult r;
    r.output = decode(output_type, output_.view());
    if (mode_.backward) backward(r);
    return r;
  }

  void forward() {
    Block scratch(facts_.forward_scratch_bytes);
    std::vector<KernelArg> args;
    for (Block& b : inputs_) args.push_back({b.view()});
    for (Block& b : params_) args.push_back({b.view()});
    args.push_back({output_.view()});
    args.push_back({extra_.view()});
    args.push_back({scratch.view()});
    host_kernel_set().forward(c_.op, work_, mode_.type, args, c_.token_weight);
  }

  void backward(OpResult& r) {
    const bool loss = c_.op.kind == OpKind::cross_entropy;
    Block scratch(facts_.backward_scratch_bytes), grad_output = encode(mode_.type, c_.grad_output);
    std::vector<Block> grads;
    std::vector<KernelArg> args{{loss ? BufferView{} : grad_output.view()}};
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      args.push_back({(facts_.saved_inputs >> i & 1) != 0 ? inputs_[i].view() : BufferView{}});
    args.push_back({(facts_.saved_outputs & 1) != 0 ? output_.view() : BufferView{}});
    for (Block& b : params_) args.push_back({b.view()});
    args.push_back({extra_.view()});
    args.push_back({scratch.view()});
    const double garbage = 1e30;  // must be overwritten
    const double before = mode_.accumulate() ? mode_.before : garbage;
    grads.reserve(inputs_.size() + params_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const bool absent = c_.ids[i] || !mode_.wants_inputs || c_.op.kind == OpKind::position_embedding;
      grads.push_back(absent ? Block() : encode(mode_.type, Numbers(c_.inputs[i].size(), before)));
    }
    for (const Numbers& p : c_.params)
      grads.push_back(mode_.wants_params ? encode(mode_.type, Numbers(p.size(), before)) : Block());
    for (Block& g : grads) args.push_back({g.view(), mode_.accumulate()});
    host_kernel_set().backward(c_.op, work_, mode_.type, args, c_.token_weight);
    for (std::size_t i = 0; i < grads.size(); ++i)
      (i < inputs_.size() ? r.grad_inputs : r.grad_params).push_back(decode(mode_.type, grads[i].view()));
  }

 private:
  const OpCase& c_;
  RunMode mode_;
  Workload work_;
  OpFacts facts_;
  std::vector<Block> inputs_, params_;
  Block output_, extra_;
};

inline std::size_t output_elements(const OpCase& c) {
  return c.op.kind == OpKind::cross_entropy ? 1 : c.grad_output.size();
}
inline OpResult run_case(const OpCase& c, const RunMode& mode = {}) { return OpRun(c, mode).run(output_elements(c)); }

// max |a - b| over max |b|; both empty: 0. Different sizes or a NaN: infinity.
inline double distance(const Numbers& a, const Numbers& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return scale == 0 ? most : most / scale;
}

inline Numbers random_numbers(std::size_t n, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Numbers x(n);
  for (double& v : x) v = normal(engine);
  return x;
}

}  // namespace fsdp::testing
