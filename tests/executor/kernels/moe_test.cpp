// Mixtures of experts: routing by hand, every kernel against finite differences and against sums written out here,
// fp32, bf16 and fp16 against fp64, and what comes in from other ops checked before it is used as an address.
#include <doctest/doctest.h>

#include <set>

#include "models/input/error.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Ids = std::vector<std::int64_t>;

Numbers as_numbers(const Ids& ids) { return {ids.begin(), ids.end()}; }

struct Routed {
  Numbers weights;
  Ids slots;
  Numbers grad_logits;  // for `grad_weights`, where given
};

Op route_op(const Experts& e, bool renormalised) {
  return {OpKind::moe_route, 0, {0}, {1, 2}, {}, {.experts = e, .renormalised = renormalised}};
}

// Exactly the buffers that `native` declares.
Routed route(const Experts& e, bool renormalised, std::int64_t tokens, const Numbers& logits,
             const Numbers& grad_weights = {}, DType type = DType::f64, double before = 0) {
  const Op op = route_op(e, renormalised);
  const Workload w{1, tokens, size_of(type)};
  const OpFacts f = facts(native_implementation(), op, w);
  const auto choices = static_cast<std::size_t>(tokens * e.top_k);
  Block in = encode(type, logits), weights = encode(type, Numbers(choices, 7.0)),
        slots(static_cast<std::int64_t>(8 * choices)), scratch(f.forward_scratch_bytes), extra(f.saved_extra_bytes);
  host_kernel_set().forward(
      op, w, type,
      std::vector<KernelArg>{{in.view()}, {weights.view()}, {slots.view()}, {extra.view()}, {scratch.view()}}, 0);
  Routed r;
  r.weights = decode(type, weights.view());
  r.slots.resize(choices);
  std::memcpy(r.slots.data(), slots.view().data, 8 * choices);
  if (grad_weights.empty()) return r;
  const auto saved = [](std::uint8_t mask, unsigned bit, Block& m) {
    return (mask >> bit & 1) != 0 ? m.view() : BufferView{};
  };
  Block dw = encode(type, grad_weights), dl = encode(type, Numbers(logits.size(), before));
  host_kernel_set().backward(op, w, type,
                             std::vector<KernelArg>{{dw.view()},
                                                    {},
                                                    {saved(f.saved_inputs, 0, in)},
                                                    {saved(f.saved_outputs, 0, weights)},
                                                    {saved(f.saved_outputs, 1, slots)},
                                                    {extra.view()},
                                                    {},
                                                    {dl.view(), before != 0}},
                             0);
  r.grad_logits = decode(type, dl.view());
  return r;
}

double softmax_part(const Numbers& logits, std::size_t row, std::size_t experts, std::size_t which,
                    const std::set<std::size_t>& among) {
  double sum = 0;
  for (std::size_t e = 0; e < experts; ++e)
    if (among.empty() || among.contains(e)) sum += std::exp(logits[row * experts + e]);
  return std::exp(logits[row * experts + which]) / sum;
}

OpCase op_on_slots(OpKind kind, const Experts& e, std::int64_t tokens, std::int64_t width, const Ids& slots) {
  OpCase c;
  c.name = std::string(name(kind));
  c.op.kind = kind;
  c.op.shape.width = width;
  c.op.shape.experts = e;
  c.work = {1, tokens, 8};
  c.op.outputs.resize(1);
  const auto rows_of_slots = static_cast<std::size_t>(rows(e, c.work) * width),
             of_tokens = static_cast<std::size_t>(tokens * width);
  if (kind == OpKind::moe_dispatch) {
    c.inputs = {random_numbers(of_tokens, 3), as_numbers(slots)};
    c.ids = {false, true};
    c.grad_output = random_numbers(rows_of_slots, 4);
  } else {
    c.inputs = {random_numbers(rows_of_slots, 5), random_numbers(slots.size(), 6), as_numbers(slots)};
    c.ids = {false, false, true};
    c.grad_output = random_numbers(of_tokens, 7);
  }
  c.op.inputs.resize(c.inputs.size());
  return c;
}

OpCase expert_linear_case(const Experts& e, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  OpCase c;
  c.name = "expert_linear";
  c.op = {OpKind::expert_linear, 0, {0}, {0}, {0}, {.in = in, .out = out, .experts = e}};
  c.work = {1, tokens, 8};
  const std::int64_t slots = rows(e, c.work);
  c.inputs = {random_numbers(static_cast<std::size_t>(slots * in), 8)};
  c.params = {random_numbers(static_cast<std::size_t>(e.count * in * out), 9)};
  c.ids = {false};
  c.grad_output = random_numbers(static_cast<std::size_t>(slots * out), 10);
  return c;
}

OpCase packed_swiglu_case(const Experts& e, std::int64_t tokens, std::int64_t width) {
  OpCase c;
  c.name = "swiglu";
  c.op = {OpKind::swiglu, 0, {0}, {0}, {}, {.width = width, .experts = e, .packed = true}};
  c.work = {1, tokens, 8};
  const std::int64_t slots = rows(e, c.work);
  c.inputs = {random_numbers(static_cast<std::size_t>(2 * slots * width), 11)};
  c.ids = {false};
  c.grad_output = random_numbers(static_cast<std::size_t>(slots * width), 12);
  return c;
}

// 7 tokens, 3 of 5 experts, 3 slots each where 5 would be needed: some choices are dropped.
constexpr Experts kTight{.count = 5, .top_k = 3, .capacity_factor = 0.7};
Ids tight_slots() { return route(kTight, true, 7, random_numbers(35, 2)).slots; }

std::vector<OpCase> cases() {
  return {op_on_slots(OpKind::moe_dispatch, kTight, 7, 4, tight_slots()),
          op_on_slots(OpKind::moe_combine, kTight, 7, 4, tight_slots()), expert_linear_case(kTight, 7, 6, 5),
          packed_swiglu_case(kTight, 7, 3)};
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// <dy, f(x + h d)> differenced against <gradient, d>: h^2 = 1e-10 of third derivatives and 1e-16 / h of rounding, some
// hundred of each.
double slope_error(const OpCase& c, std::vector<Numbers> OpCase::*group, std::size_t i, const Numbers& gradient) {
  const Numbers direction = random_numbers(gradient.size(), 99 + static_cast<unsigned>(i));
  const double h = 1e-5;
  double value[2];
  for (int side = 0; side < 2; ++side) {
    OpCase moved = c;
    for (std::size_t k = 0; k < direction.size(); ++k) (moved.*group)[i][k] += (side == 0 ? -h : h) * direction[k];
    value[side] = dot(c.grad_output, run_case(moved, {.backward = false}).output);
  }
  const double measured = (value[1] - value[0]) / (2 * h), told = dot(gradient, direction);
  return std::abs(measured - told) / std::max(1.0, std::abs(told));
}

}  // namespace

TEST_CASE("capacity: rounded up, never more than the tokens, a whole number where it is one") {
  const auto capacity = [](std::int64_t tokens, std::int64_t count, std::int64_t k, double factor) {
    return Experts{.count = count, .top_k = k, .capacity_factor = factor}.capacity(tokens);
  };
  CHECK(capacity(16, 8, 2, 1.0) == 4);
  CHECK(capacity(17, 8, 2, 1.0) == 5);  // 4.25
  CHECK(capacity(16, 8, 2, 1.25) == 5);
  CHECK(capacity(80, 8, 1, 1.1) == 11);  // 10 * 1.1 is 11.000000000000002 in double
  CHECK(capacity(1, 64, 1, 0.01) == 1);
  CHECK(capacity(10, 4, 2, 100.0) == 10);
  for (const auto& [count, k] : {std::pair{64, 6}, {60, 4}, {7, 3}, {128, 8}, {8, 8}})  // nothing can be dropped
    for (const std::int64_t tokens : {1, 7, 4096, 1'000'003})
      CHECK(capacity(tokens, count, k, static_cast<double>(count) / k) == tokens);
  CHECK(rows({}, {3, 5, 8}) == 15);
  CHECK(rows({.count = 8, .top_k = 2}, {1, 17, 8}) == 40);
  CHECK(elements({TensorKind::activation, 10, true, {.count = 8, .top_k = 2}}, {1, 17, 8}) == 400);
  CHECK_THROWS_AS(static_cast<void>(
                      elements({TensorKind::activation, std::int64_t{1} << 24, true, {.count = 65536, .top_k = 65536}},
                               {1, std::int64_t{1} << 36, 8})),
                  InputError);
}

TEST_CASE("routing by hand: order, ties, slots, drops") {
  // Tokens x experts. Token 0: 2 then 0. Token 1: 1 and 2 are equal: the lower first. Token 2: all equal: 0, 1. Token
  // 3: 2, then 0.
  const Numbers logits = {1, 0, 3, /**/ 0, 5, 5, /**/ 2, 2, 2, /**/ 1, -9, 4};
  const Experts one_each{.count = 3, .top_k = 2, .capacity_factor = 0.75};  // 4 * 2 / 3 * 0.75 = 2 slots
  const Routed r = route(one_each, true, 4, logits);
  CHECK(r.slots == Ids{4, 0, /**/ 2, 5, /**/ 1, 3, /**/ -3, -1});  // experts 2 and 0 are full: -1 - 2, -1 - 0
  CHECK(r.weights[0] == doctest::Approx(std::exp(3) / (std::exp(3) + std::exp(1))));
  CHECK(r.weights[2] == 0.5);
  CHECK(r.weights[6] ==
        doctest::Approx(std::exp(4) / (std::exp(4) + std::exp(1))));  // a dropped choice keeps its weight
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(route(one_each, true, 1, {nan, 1, nan}).slots == Ids{0, 2});  // counts as largest; slots stay valid
}

TEST_CASE("weights and their gradients: softmax over the chosen, or over all") {
  const Experts e{.count = 6, .top_k = 3, .capacity_factor = 0.5};
  const Numbers logits = random_numbers(8 * 6, 21, 2.0), dw = random_numbers(8 * 3, 22);
  for (const bool renormalised : {true, false}) {
    CAPTURE(renormalised);
    const Routed r = route(e, renormalised, 8, logits, dw);
    const std::int64_t capacity = e.capacity(8);
    std::set<std::int64_t> used;
    for (std::size_t t = 0; t < 8; ++t) {
      std::set<std::size_t> chosen;
      const auto expert = [&](std::size_t j) {
        const std::int64_t s = r.slots[t * 3 + j];
        return static_cast<std::size_t>(s >= 0 ? s / capacity : -1 - s);
      };
      for (std::size_t j = 0; j < 3; ++j) chosen.insert(expert(j));
      REQUIRE(chosen.size() == 3);
      for (std::size_t x = 0; x < 6; ++x)
        for (const std::size_t y : chosen)
          if (!chosen.contains(x)) CHECK(logits[t * 6 + x] <= logits[t * 6 + y]);
      for (std::size_t j = 0; j < 3; ++j) {
        const double w = softmax_part(logits, t, 6, expert(j), renormalised ? chosen : std::set<std::size_t>{});
        CHECK(r.weights[t * 3 + j] == doctest::Approx(w).epsilon(1e-13));
        if (r.slots[t * 3 + j] >= 0) CHECK(used.insert(r.slots[t * 3 + j]).second);
      }
    }
    CHECK(used.size() < 24);  // some were dropped
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double h = 1e-6;
      Numbers up = logits, down = logits;
      up[i] += h, down[i] -= h;
      const double slope =
          (dot(dw, route(e, renormalised, 8, up).weights) - dot(dw, route(e, renormalised, 8, down).weights)) / (2 * h);
      CHECK(r.grad_logits[i] == doctest::Approx(slope).epsilon(1e-6).scale(1.0));
    }
    const Routed added = route(e, renormalised, 8, logits, dw, DType::f64, 2.5);
    for (std::size_t i = 0; i < logits.size(); ++i)
      CHECK(added.grad_logits[i] == doctest::Approx(r.grad_logits[i] + 2.5).epsilon(1e-13));
    for (const auto& [type, tolerance] : {std::pair{DType::f32, 1e-5}, {DType::bf16, 2e-2}, {DType::f16, 3e-3}}) {
      const Routed exact = route(e, renormalised, 8, rounded(type, logits), rounded(type, dw)),
                   narrow = route(e, renormalised, 8, logits, dw, type);
      CHECK(narrow.slots == exact.slots);
      CHECK(distance(narrow.weights, exact.weights) <= tolerance);
      CHECK(distance(narrow.grad_logits, exact.grad_logits) <= tolerance);
    }
  }
}

TEST_CASE("dispatching and combining, written out; dropped choices have no part and no gradient") {
  const Ids slots = tight_slots();
  REQUIRE(std::count_if(slots.begin(), slots.end(), [](std::int64_t s) { return s < 0; }) > 3);
  const OpCase dispatch = op_on_slots(OpKind::moe_dispatch, kTight, 7, 4, slots),
               combine = op_on_slots(OpKind::moe_combine, kTight, 7, 4, slots);
  Numbers spread(dispatch.grad_output.size(), 0.0), sum(28, 0.0), weight_gradient(slots.size(), 0.0);
  for (std::size_t c = 0; c < slots.size(); ++c)
    for (std::size_t i = 0; i < 4 && slots[c] >= 0; ++i) {
      const std::size_t row = static_cast<std::size_t>(slots[c]) * 4 + i, token = c / 3 * 4 + i;
      spread[row] = dispatch.inputs[0][token];
      sum[token] += combine.inputs[1][c] * combine.inputs[0][row];
      weight_gradient[c] += combine.grad_output[token] * combine.inputs[0][row];
    }
  CHECK(run_case(dispatch).output == spread);
  const OpResult r = run_case(combine);
  CHECK(distance(r.output, sum) <= 1e-14);
  CHECK(distance(r.grad_inputs[1], weight_gradient) <= 1e-14);
  for (std::size_t c = 0; c < slots.size(); ++c)
    if (slots[c] < 0) CHECK(r.grad_inputs[1][c] == 0.0);
}

TEST_CASE("gradients are the slopes, whether written or added to") {
  for (const OpCase& c : cases()) {
    CAPTURE(c.name);
    const OpResult r = run_case(c), added = run_case(c, {.before = 1.5});
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      if (c.ids[i]) continue;
      CHECK(slope_error(c, &OpCase::inputs, i, r.grad_inputs[i]) < 1e-6);
      for (std::size_t k = 0; k < r.grad_inputs[i].size(); ++k)
        CHECK(added.grad_inputs[i][k] == doctest::Approx(r.grad_inputs[i][k] + 1.5).epsilon(1e-12));
    }
    for (std::size_t i = 0; i < c.params.size(); ++i) {
      CHECK(slope_error(c, &OpCase::params, i, r.grad_params[i]) < 1e-6);
      for (std::size_t k = 0; k < r.grad_params[i].size(); ++k)
        CHECK(added.grad_params[i][k] == doctest::Approx(r.grad_params[i][k] + 1.5).epsilon(1e-12));
    }
  }
}

TEST_CASE("narrow types stay near fp64") {
  for (const OpCase& exact : cases())
    for (const auto& [type, tolerance] : {std::pair{DType::f32, 2e-6}, {DType::bf16, 2e-2}, {DType::f16, 3e-3}}) {
      CAPTURE(exact.name);
      CAPTURE(name(type));
      OpCase c = exact;
      for (std::size_t i = 0; i < c.inputs.size(); ++i)
        if (!c.ids[i]) c.inputs[i] = rounded(type, c.inputs[i]);
      for (Numbers& p : c.params) p = rounded(type, p);
      c.grad_output = rounded(type, c.grad_output);
      const OpResult wide = run_case(c), narrow = run_case(c, {.type = type});
      CHECK(distance(narrow.output, wide.output) <= tolerance);
      for (std::size_t i = 0; i < c.inputs.size(); ++i)
        CHECK(distance(narrow.grad_inputs[i], wide.grad_inputs[i]) <= tolerance);
      for (std::size_t i = 0; i < c.params.size(); ++i)
        CHECK(distance(narrow.grad_params[i], wide.grad_params[i]) <= tolerance);
    }
}

TEST_CASE("a slot that cannot be, and buffers of other sizes") {
  for (const std::int64_t wrong : {std::int64_t{15}, std::int64_t{-6}, std::int64_t{1} << 60})
    for (const OpKind kind : {OpKind::moe_dispatch, OpKind::moe_combine}) {
      Ids slots = tight_slots();
      slots[5] = wrong;
      CHECK_THROWS_AS(static_cast<void>(run_case(op_on_slots(kind, kTight, 7, 4, slots))), MachineError);
    }
  OpCase c = expert_linear_case(kTight, 7, 6, 5);
  c.inputs[0].pop_back();
  CHECK_THROWS_AS(static_cast<void>(run_case(c)), MachineError);
  c = packed_swiglu_case(kTight, 7, 3);
  c.work.seq_len = 9;
  CHECK_THROWS_AS(static_cast<void>(run_case(c)), MachineError);
}
