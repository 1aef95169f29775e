// Ops through a kernel set, compared with the host's: the same fresh random inputs, outputs poisoned with NaN,
// exactly the buffers that each set's implementation declares (what it does not save is absent in backward), odd
// sizes.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include "executor/kernels/kernel_set.h"
#include "tests/support/kernels_support.h"

namespace fsdp::testing {

// Kernels under test and the memory that they work on, which the test touches as well: the host's, or pinned memory
// that a GPU reaches.
struct Subject {
  const KernelSet& kernels;
  const Implementation& implementation;
  std::function<std::shared_ptr<std::byte>(std::int64_t bytes)> allocate;
  std::function<void()> finish;  // until all work is done; throws what it failed with
};

inline Subject host_subject() {
  return {host_kernel_set(), native_implementation(),
          [](std::int64_t bytes) {
            return std::shared_ptr<std::byte>(new std::byte[static_cast<std::size_t>(bytes)],
                                              std::default_delete<std::byte[]>());
          },
          [] {}};
}

// Memory of a subject. `shift`: elements begin so many bytes behind an aligned address, so that nothing can be read in
// packs of 16 bytes.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Subject& s, DType type, const Numbers& values, std::int64_t shift = 0) : type_(type) {
    const auto n = static_cast<std::int64_t>(values.size());
    if (n == 0) return;
    memory_ = s.allocate(n * size_of(type) + shift);
    view_ = {memory_.get() + shift, n * size_of(type)};
    Block encoded = encode(type, values);
    std::memcpy(view_.data, encoded.view().data, static_cast<std::size_t>(view_.bytes));
  }
  // All bits set: not a number in every type, -1 as an integer.
  Tensor(const Subject& s, std::int64_t bytes, std::int64_t shift = 0) : type_(DType::f32) {
    if (bytes == 0) return;
    memory_ = s.allocate(bytes + shift);
    view_ = {memory_.get() + shift, bytes};
    std::memset(view_.data, 0xff, static_cast<std::size_t>(bytes));
  }
  static Tensor poisoned(const Subject& s, DType type, std::size_t n, std::int64_t shift = 0) {
    Tensor t(s, static_cast<std::int64_t>(n) * size_of(type), shift);
    t.type_ = type;
    return t;
  }
  [[nodiscard]] BufferView view() const { return view_; }
  [[nodiscard]] Numbers numbers() const {
    if (view_.bytes == 0) return {};
    if (type_ != DType::i64) return decode(type_, view_);
    Numbers values;
    for (std::int64_t i = 0; i < view_.bytes / 8; ++i) {
      std::int64_t id = 0;
      std::memcpy(&id, view_.data + 8 * i, 8);
      values.push_back(static_cast<double>(id));
    }
    return values;
  }

 private:
  DType type_ = DType::f32;
  std::shared_ptr<std::byte> memory_;
  BufferView view_;
};

struct Made {  // a tensor that an op makes
  std::size_t elements = 0;
  bool ids = false, loss = false;  // ids: int64; loss: one fp64 number that is added to
};

struct CudaOpCase {
  std::string name;
  Op op{};
  Workload work{};
  double token_weight = 0;
  std::vector<Numbers> inputs{}, params{};
  std::vector<bool> ids;  // inputs of int64
  std::vector<Made> outputs;
  std::vector<bool> wanted;  // gradients of inputs that there are; by default of all that are no ids
  bool backward = true;
  double terms = 64;  // the longest sum of roundings on the way to one number (see tolerance)
};

struct CudaOpMode {
  DType type = DType::f32;
  double before = std::nan("");  // set: gradients are added to this
  bool wants_inputs = true, wants_params = true;
  std::int64_t shift = 0;
};

struct CudaOpResult {
  std::vector<Numbers> outputs, grad_inputs, grad_params;
};

inline CudaOpResult run_op(const Subject& s, const CudaOpCase& c, const CudaOpMode& mode) {
  Workload work = c.work;
  work.element_bytes = size_of(mode.type);
  const OpFacts f = facts(s.implementation, c.op, work);
  std::vector<Tensor> inputs, params, outputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i)
    inputs.emplace_back(s, c.ids[i] ? DType::i64 : mode.type, c.inputs[i], c.ids[i] ? 0 : mode.shift);
  for (const Numbers& p : c.params) params.emplace_back(s, mode.type, p, mode.shift);
  for (const Made& m : c.outputs) {
    if (m.loss) outputs.emplace_back(s, DType::f64, Numbers{0.25});
    else outputs.push_back(Tensor::poisoned(s, m.ids ? DType::i64 : mode.type, m.elements, m.ids ? 0 : mode.shift));
  }
  const Tensor extra(s, f.saved_extra_bytes);
  std::vector<KernelArg> args;
  for (const Tensor& t : inputs) args.push_back({t.view()});
  for (const Tensor& t : params) args.push_back({t.view()});
  for (const Tensor& t : outputs) args.push_back({t.view()});
  {
    const Tensor scratch(s, f.forward_scratch_bytes);
    args.push_back({extra.view()});
    args.push_back({scratch.view()});
    s.kernels.forward(c.op, work, mode.type, args, c.token_weight);
    s.finish();
  }
  CudaOpResult r;
  for (const Tensor& t : outputs) r.outputs.push_back(t.numbers());
  if (!c.backward) return r;
  std::vector<Tensor> grad_outputs, grads;
  const Tensor scratch(s, f.backward_scratch_bytes);
  args.clear();
  for (std::size_t o = 0; o < c.outputs.size(); ++o) {
    grad_outputs.emplace_back();
    if (!c.outputs[o].ids && !c.outputs[o].loss)
      grad_outputs.back() =
          Tensor(s, mode.type, random_numbers(c.outputs[o].elements, static_cast<unsigned>(900 + o)), mode.shift);
  }
  for (const Tensor& t : grad_outputs) args.push_back({t.view()});
  for (std::size_t i = 0; i < inputs.size(); ++i)
    args.push_back({(f.saved_inputs >> i & 1) != 0 ? inputs[i].view() : BufferView{}});
  for (std::size_t i = 0; i < outputs.size(); ++i)
    args.push_back({(f.saved_outputs >> i & 1) != 0 ? outputs[i].view() : BufferView{}});
  for (const Tensor& t : params) args.push_back({t.view()});
  args.push_back({extra.view()});
  args.push_back({scratch.view()});
  const bool adds = !std::isnan(mode.before);
  const auto gradient = [&](bool wanted, std::size_t n) {
    if (!wanted) grads.emplace_back();
    else if (adds) grads.emplace_back(s, mode.type, Numbers(n, mode.before), mode.shift);
    else grads.push_back(Tensor::poisoned(s, mode.type, n, mode.shift));
  };
  for (std::size_t i = 0; i < inputs.size(); ++i)
    gradient(mode.wants_inputs && !c.ids[i] && (c.wanted.empty() || c.wanted[i]), c.inputs[i].size());
  for (const Numbers& p : c.params) gradient(mode.wants_params, p.size());
  for (const Tensor& g : grads) args.push_back({g.view(), adds});
  s.kernels.backward(c.op, work, mode.type, args, c.token_weight);
  s.finish();
  for (std::size_t i = 0; i < grads.size(); ++i)
    (i < inputs.size() ? r.grad_inputs : r.grad_params).push_back(grads[i].numbers());
  return r;
}

// How far two right answers can be apart, relative to the largest number of a tensor. Both sets compute in the
// arithmetic type, with unit roundoff u = 2^-53 (fp64) or 2^-24: sums of n terms in different orders differ by at most
// 2 n u times the sum of magnitudes, which for these random terms of both signs is at most about sqrt(n) <= 32 times
// the largest result; elementwise functions by a few u. So (64 n^(1/2) + 64) u with n = `terms` is safe, and far below
// what a wrong term (1 / n) would cost. 16-bit storage then rounds once, to a neighbour at most: 2^-8 (bf16), 2^-11
// (fp16) of the value; twice where a gradient is added to what is there.
inline double tolerance(DType type, double terms) {
  const double sums = (64 * std::sqrt(terms) + 64) * (type == DType::f64 ? 0x1p-53 : 0x1p-24);
  return sums + (type == DType::bf16 ? 0x1p-7 : type == DType::f16 ? 0x1p-10 : 0);
}

inline void check_same(const Numbers& got, const Numbers& expected, double allowed) {
  CHECK(got.size() == expected.size());
  CHECK(distance(got, expected) <= allowed);
}

inline void check_op(const Subject& subject, const CudaOpCase& c, const CudaOpMode& mode) {
  CAPTURE(c.name);
  CAPTURE(name(mode.type));
  CAPTURE(mode.shift);
  CAPTURE(mode.before);
  const CudaOpResult got = run_op(subject, c, mode), expected = run_op(host_subject(), c, mode);
  const double allowed = tolerance(mode.type, c.terms);
  for (std::size_t i = 0; i < c.outputs.size(); ++i)
    check_same(got.outputs[i], expected.outputs[i],
               c.outputs[i].ids    ? 0
               : c.outputs[i].loss ? tolerance(mode.type == DType::f64 ? DType::f64 : DType::f32, c.terms)
                                   : allowed);
  for (std::size_t i = 0; i < got.grad_inputs.size(); ++i)
    check_same(got.grad_inputs[i], expected.grad_inputs[i], allowed);
  for (std::size_t i = 0; i < got.grad_params.size(); ++i)
    check_same(got.grad_params[i], expected.grad_params[i], allowed);
}

inline void check_op(const Subject& subject, const CudaOpCase& c) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    check_op(subject, c, {.type = type});
    if (!c.backward) continue;
    check_op(subject, c, {.type = type, .before = 3.0});
    check_op(subject, c, {.type = type, .shift = 8});
  }
  if (c.backward) {
    check_op(subject, c, {.wants_inputs = false});
    check_op(subject, c, {.wants_params = false});
  }
}

inline Numbers random_ids(std::size_t n, std::int64_t below, unsigned seed) {
  std::mt19937_64 engine(seed);
  Numbers ids(n);
  for (double& v : ids) v = static_cast<double>(engine() % static_cast<std::uint64_t>(below));
  return ids;
}

// ---- the cases. Widths with and without whole packs of 16 bytes; one of each kind longer than a block's threads.
inline CudaOpCase elementwise_case(OpKind kind, OpShape shape, std::int64_t tokens) {
  const std::size_t n = static_cast<std::size_t>(tokens * shape.width), read = shape.packed ? 2 * n : n;
  CudaOpCase c;
  c.name = std::string(name(kind)) + " " + std::to_string(tokens) + " x " + std::to_string(shape.width);
  c.op.kind = kind, c.op.shape = shape, c.op.outputs = {9};
  c.work.sequences = 1, c.work.seq_len = tokens;
  const std::size_t inputs = kind == OpKind::gelu || kind == OpKind::scale || shape.packed ? 1 : 2;
  for (std::size_t i = 0; i < inputs; ++i) c.inputs.push_back(random_numbers(read, static_cast<unsigned>(20 + i), 2.0));
  c.ids.assign(inputs, false);
  c.op.inputs.resize(inputs);
  c.outputs = {{n}};
  c.backward = kind != OpKind::add;
  c.terms = 1;
  return c;
}

inline std::vector<CudaOpCase> elementwise_cases() {
  std::vector<CudaOpCase> all;
  for (const std::int64_t width : {24, 37, 1}) {
    for (const bool packed : {false, true})
      all.push_back(elementwise_case(OpKind::swiglu, {.width = width, .packed = packed}, 29));
    for (const bool tanh : {false, true})
      all.push_back(elementwise_case(OpKind::gelu, {.width = width, .tanh = tanh}, 29));
    all.push_back(elementwise_case(OpKind::add, {.width = width}, 29));
    all.push_back(elementwise_case(OpKind::scale, {.width = width, .factor = 0.37}, 29));
  }
  return all;
}

inline CudaOpCase norm_case(OpKind kind, std::int64_t width, std::int64_t groups, std::int64_t tokens, bool bias) {
  CudaOpCase c;
  c.name = std::string(name(kind)) + " " + std::to_string(tokens) + " x " + std::to_string(groups) + " x " +
           std::to_string(width);
  c.op.kind = kind,
  c.op.shape = {.width = width, .groups = groups, .eps = width == 1 ? 0.5 : 1e-5};  // of one element, dx cancels to eps
  c.op.inputs = {0}, c.op.outputs = {1}, c.op.params.resize(bias ? 2 : 1);
  c.work.sequences = 1, c.work.seq_len = tokens;
  c.inputs = {random_numbers(static_cast<std::size_t>(tokens * groups * width), 31, 3.0)};
  for (double& x : c.inputs[0]) x += 0.5;
  for (std::size_t i = 0; i < c.op.params.size(); ++i)
    c.params.push_back(random_numbers(static_cast<std::size_t>(width), static_cast<unsigned>(32 + i)));
  c.ids = {false};
  c.outputs = {{c.inputs[0].size()}};
  c.terms = static_cast<double>(std::max(width, tokens * groups));
  return c;
}

inline std::vector<CudaOpCase> norm_cases() {
  return {norm_case(OpKind::rms_norm, 64, 1, 9, false),   norm_case(OpKind::rms_norm, 37, 3, 11, false),
          norm_case(OpKind::rms_norm, 1, 1, 5, false),    norm_case(OpKind::rms_norm, 8, 2, 300, false),
          norm_case(OpKind::rms_norm, 1240, 1, 2, false), norm_case(OpKind::layer_norm, 64, 1, 9, true),
          norm_case(OpKind::layer_norm, 37, 1, 11, true), norm_case(OpKind::layer_norm, 40, 1, 7, false),
          norm_case(OpKind::layer_norm, 5, 1, 530, true)};
}

inline std::vector<CudaOpCase> embedding_cases() {
  std::vector<CudaOpCase> all;
  for (const std::int64_t width : {24, 13, 130}) {
    CudaOpCase c;
    c.name = "embedding " + std::to_string(width);
    c.op.kind = OpKind::embedding, c.op.shape = {.width = width, .vocab = 19};
    c.op.inputs = {0}, c.op.outputs = {1}, c.op.params = {0};
    c.work.sequences = 2, c.work.seq_len = 71;
    c.inputs = {random_ids(142, 11, 41)};  // some ids often, the upper ones never
    c.inputs[0][17] = 18;                  // the last one once
    c.ids = {true};
    c.params = {random_numbers(static_cast<std::size_t>(19 * width), 42)};
    c.outputs = {{static_cast<std::size_t>(142 * width)}};
    all.push_back(c);
    c.name = "position_embedding " + std::to_string(width);
    c.op.kind = OpKind::position_embedding, c.op.shape = {.width = width, .positions = 9};
    c.work.sequences = 3, c.work.seq_len = 7;
    c.inputs = {random_numbers(static_cast<std::size_t>(21 * width), 43)};
    c.ids = {false}, c.wanted = {false};  // the gradient of x is that of the output: an alias
    c.params = {random_numbers(static_cast<std::size_t>(9 * width), 44)};
    c.outputs = {{c.inputs[0].size()}};
    all.push_back(c);
  }
  return all;
}

// `different` ids, and the table's last row for the first token.
inline CudaOpCase table_case(std::int64_t vocab, std::int64_t width, std::int64_t tokens, std::int64_t different) {
  CudaOpCase c;
  c.name = "embedding of " + std::to_string(tokens) + " tokens, " + std::to_string(different) + " different";
  c.op.kind = OpKind::embedding, c.op.shape = {.width = width, .vocab = vocab};
  c.op.inputs = {0}, c.op.outputs = {1}, c.op.params = {0};
  c.work.sequences = 1, c.work.seq_len = tokens;
  c.inputs = {random_ids(static_cast<std::size_t>(tokens), different, 45)};
  c.inputs[0].front() = static_cast<double>(vocab - 1);
  c.ids = {true};
  c.params = {random_numbers(static_cast<std::size_t>(vocab * width), 46)};
  c.outputs = {{static_cast<std::size_t>(tokens * width)}};
  c.terms = static_cast<double>(tokens);
  return c;
}

inline std::vector<CudaOpCase> rotary_cases() {
  std::vector<CudaOpCase> all;
  for (const std::int64_t dim : {6, 16, 130}) {
    CudaOpCase c;
    c.name = "rotary " + std::to_string(dim);
    c.op.kind = OpKind::rotary, c.op.shape = {.heads = 3, .head_dim = dim, .theta = 10000.0};
    c.op.inputs = {0}, c.op.outputs = {1};
    c.work.sequences = 2, c.work.seq_len = 133;
    c.inputs = {random_numbers(static_cast<std::size_t>(2 * 133 * 3 * dim), 51)};
    c.ids = {false};
    c.outputs = {{c.inputs[0].size()}};
    c.terms = 2;
    all.push_back(c);
  }
  return all;
}

inline std::vector<CudaOpCase> cross_entropy_cases() {
  std::vector<CudaOpCase> all;
  for (const std::int64_t vocab : {37, 64, 1, 9001})
    for (const double scale : {1.0, 40.0}) {
      CudaOpCase c;
      c.name = "cross_entropy " + std::to_string(vocab);
      c.op.kind = OpKind::cross_entropy, c.op.shape = {.vocab = vocab};
      c.op.inputs = {0, 1}, c.op.outputs = {2};
      c.work.sequences = 1, c.work.seq_len = vocab > 1000 ? 3 : 21;
      c.token_weight = 1.0 / 42;
      const auto tokens = static_cast<std::size_t>(c.work.seq_len);
      c.inputs = {random_numbers(tokens * static_cast<std::size_t>(vocab), 61, scale), random_ids(tokens, vocab, 62)};
      c.ids = {false, true};
      c.outputs = {{.elements = 1, .loss = true}};
      c.terms = static_cast<double>(vocab) * scale;  // exponents as large as `scale` multiply their roundings
      all.push_back(c);
    }
  return all;
}

// Slots as routing gives them: every expert's first `capacity` choices, then drops.
inline Numbers given_slots(const Numbers& experts, std::int64_t count, std::int64_t capacity) {
  std::vector<std::int64_t> taken(static_cast<std::size_t>(count));
  Numbers slots;
  for (const double e : experts) {
    std::int64_t& n = taken[static_cast<std::size_t>(e)];
    slots.push_back(n < capacity ? e * static_cast<double>(capacity) + static_cast<double>(n) : -1 - e);
    ++n;
  }
  return slots;
}

inline std::vector<CudaOpCase> moe_cases() {
  std::vector<CudaOpCase> all;
  const auto tokens = std::size_t{67};
  for (const Experts& experts : {Experts{.count = 5, .top_k = 2, .capacity_factor = 1.0},
                                 Experts{.count = 40, .top_k = 3, .capacity_factor = 0.75}}) {
    const auto choices = tokens * static_cast<std::size_t>(experts.top_k),
               count = static_cast<std::size_t>(experts.count);
    CudaOpCase c;
    c.work.sequences = 1, c.work.seq_len = static_cast<std::int64_t>(tokens);
    for (const bool renormalised : {false, true}) {
      c.name = "moe_route";
      c.op = {OpKind::moe_route, 0, {0}, {1, 2}, {}, {.experts = experts, .renormalised = renormalised}};
      c.inputs = {random_numbers(tokens * count, 71)};
      for (std::size_t i = 0; i < count; ++i) c.inputs[0][3 * count + i] = static_cast<double>(i % 2);  // ties
      c.ids = {false};
      c.outputs = {{choices}, {.elements = choices, .ids = true}};
      all.push_back(c);
    }
    Numbers chosen;  // different experts for one token
    std::mt19937_64 engine(72);
    for (std::size_t t = 0; t < tokens; ++t) {
      const std::uint64_t first = engine();
      for (std::size_t j = 0; j < static_cast<std::size_t>(experts.top_k); ++j)
        chosen.push_back(static_cast<double>((first + j * (1 + t % 3)) % count));
    }
    const std::int64_t capacity = experts.capacity(static_cast<std::int64_t>(tokens));
    const Numbers slots = given_slots(chosen, experts.count, capacity);
    for (const std::int64_t width : {24, 13}) {
      const auto of_slots = static_cast<std::size_t>(experts.count * capacity * width),
                 of_tokens = tokens * static_cast<std::size_t>(width);
      c.name = "moe_dispatch " + std::to_string(width);
      c.op = {OpKind::moe_dispatch, 0, {0, 1}, {2}, {}, {.width = width, .experts = experts}};
      c.inputs = {random_numbers(of_tokens, 73), slots};
      c.ids = {false, true};
      c.outputs = {{of_slots}};
      all.push_back(c);
      c.name = "moe_combine " + std::to_string(width);
      c.op = {OpKind::moe_combine, 0, {0, 1, 2}, {3}, {}, {.width = width, .experts = experts}};
      c.inputs = {random_numbers(of_slots, 74), random_numbers(choices, 75), slots};
      c.ids = {false, false, true};
      c.outputs = {{of_tokens}};
      all.push_back(c);
    }
  }
  return all;
}

}  // namespace fsdp::testing
