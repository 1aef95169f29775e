// Every op, forward and backward: against PyTorch in fp64 (tests/golden/kernels.json), against finite differences, in
// fp32 and bf16 against fp64, and against broken buffers.
#include <doctest/doctest.h>

#include "models/input/error.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

OpKind kind_named(const std::string& text) {
  for (int k = 0; k < kOpKinds; ++k)
    if (name(static_cast<OpKind>(k)) == text) return static_cast<OpKind>(k);
  throw std::runtime_error("no op kind " + text);
}

OpShape shape_of(const nlohmann::json& j) {
  OpShape s;
  s.in = j.value("in", s.in), s.out = j.value("out", s.out), s.width = j.value("width", s.width),
  s.groups = j.value("groups", s.groups);
  s.heads = j.value("heads", s.heads), s.kv_heads = j.value("kv_heads", s.kv_heads),
  s.head_dim = j.value("head_dim", s.head_dim);
  s.window = j.value("window", s.window), s.vocab = j.value("vocab", s.vocab),
  s.positions = j.value("positions", s.positions);
  s.causal = j.value("causal", s.causal), s.alibi = j.value("alibi", s.alibi), s.packed = j.value("packed", s.packed);
  s.transposed = j.value("transposed", s.transposed), s.tanh = j.value("tanh", s.tanh), s.eps = j.value("eps", s.eps);
  s.theta = j.value("theta", s.theta);
  return s;
}

struct Recorded {
  OpCase input;
  OpResult expected;
};

std::vector<Recorded> recorded_cases() {
  std::vector<Recorded> all;
  const nlohmann::json document = golden("kernels.json");
  for (const auto& j : document["cases"]) {
    Recorded r;
    OpCase& c = r.input;
    c.name = j["name"];
    c.op.kind = kind_named(j["kind"]);
    c.op.shape = shape_of(j["shape"]);
    c.work.sequences = j["sequences"], c.work.seq_len = j["seq_len"];
    c.token_weight = j["token_weight"];
    c.inputs = j["inputs"], c.params = j["params"], c.ids = j["ids"].get<std::vector<bool>>(),
    c.grad_output = j["grad_output"].get<Numbers>();
    c.op.inputs.resize(c.inputs.size()), c.op.outputs.resize(1), c.op.params.resize(c.params.size());
    r.expected = {j["output"], j["grad_inputs"], j["grad_params"]};
    // add and (for x) position_embedding pass the gradient on without a kernel
    if (c.op.kind == OpKind::position_embedding) r.expected.grad_inputs[0].clear();
    all.push_back(std::move(r));
  }
  return all;
}

bool has_backward(const OpCase& c) { return c.op.kind != OpKind::add; }

void check_gradients(const OpResult& r, const OpResult& expected, double tolerance) {
  REQUIRE(r.grad_inputs.size() == expected.grad_inputs.size());
  REQUIRE(r.grad_params.size() == expected.grad_params.size());
  for (std::size_t i = 0; i < r.grad_inputs.size(); ++i)
    CHECK(distance(r.grad_inputs[i], expected.grad_inputs[i]) <= tolerance);
  for (std::size_t i = 0; i < r.grad_params.size(); ++i)
    CHECK(distance(r.grad_params[i], expected.grad_params[i]) <= tolerance);
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// d/dh of <dy, f(x + h direction)> by a central difference against <gradient, direction>. With h = 1e-5 the difference
// quotient is off by about h^2 = 1e-10 times third derivatives and by 1e-16 / h = 1e-11; sums of a few hundred of those
// stay below 1e-6.
void check_slope(const OpCase& c, std::vector<Numbers> OpCase::*group, std::size_t i, const Numbers& gradient,
                 unsigned seed) {
  const Numbers direction = random_numbers(gradient.size(), seed);
  const double h = 1e-5;
  double value[2];
  for (int side = 0; side < 2; ++side) {
    OpCase moved = c;
    for (std::size_t e = 0; e < direction.size(); ++e) (moved.*group)[i][e] += (side == 0 ? h : -h) * direction[e];
    const Numbers y = run_case(moved, {.backward = false}).output;
    value[side] = c.op.kind == OpKind::cross_entropy ? y[0] : dot(y, c.grad_output);
  }
  const double numeric = (value[0] - value[1]) / (2 * h), exact = dot(gradient, direction);
  CHECK(std::abs(numeric - exact) <= 1e-6 * (std::abs(exact) + std::sqrt(dot(gradient, gradient))));
}

void check_all_slopes(const OpCase& c) {
  const OpResult r = run_case(c);
  for (std::size_t i = 0; i < r.grad_inputs.size(); ++i)
    if (!r.grad_inputs[i].empty()) check_slope(c, &OpCase::inputs, i, r.grad_inputs[i], 7);
  for (std::size_t i = 0; i < r.grad_params.size(); ++i) check_slope(c, &OpCase::params, i, r.grad_params[i], 8);
}

OpCase attention_case(const OpShape& shape, std::int64_t sequences, std::int64_t seq_len) {
  OpCase c;
  c.op.kind = OpKind::attention;
  c.op.shape = shape;
  c.work.sequences = sequences, c.work.seq_len = seq_len;
  const auto n = [&](std::int64_t heads) {
    return static_cast<std::size_t>(sequences * seq_len * heads * shape.head_dim);
  };
  if (shape.packed) c.inputs = {random_numbers(n(shape.heads + 2 * shape.kv_heads), 1)};
  else
    c.inputs = {random_numbers(n(shape.heads), 1), random_numbers(n(shape.kv_heads), 2),
                random_numbers(n(shape.kv_heads), 3)};
  c.ids.assign(c.inputs.size(), false);
  c.grad_output = random_numbers(n(shape.heads), 4);
  c.op.inputs.resize(c.inputs.size()), c.op.outputs.resize(1);
  return c;
}

// softmax(q k^T / sqrt(d) - slope |i - j|) v, element by element, from the definition.
Numbers naive_attention(const OpCase& c) {
  const OpShape& s = c.op.shape;
  const std::int64_t length = c.work.seq_len, q_width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
  Numbers y(c.grad_output.size());
  const auto q = [&](std::int64_t t, std::int64_t h, std::int64_t e) {
    return c.inputs[0][static_cast<std::size_t>(t * q_width + h * s.head_dim + e)];
  };
  const auto kv = [&](int which, std::int64_t t, std::int64_t h, std::int64_t e) {
    return c.inputs[static_cast<std::size_t>(which)]
                   [static_cast<std::size_t>(t * kv_width + h / (s.heads / s.kv_heads) * s.head_dim + e)];
  };
  for (std::int64_t n = 0; n < c.work.sequences; ++n)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < length; ++i) {
        Numbers p(static_cast<std::size_t>(length), 0.0);
        double total = 0;
        for (std::int64_t j = 0; j < length; ++j) {
          if ((s.causal && j > i) || (s.window > 0 && i - j >= s.window)) continue;
          double score = 0;
          for (std::int64_t e = 0; e < s.head_dim; ++e) score += q(n * length + i, h, e) * kv(1, n * length + j, h, e);
          total += p[static_cast<std::size_t>(j)] = std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
        }
        for (std::int64_t e = 0; e < s.head_dim; ++e) {
          double sum = 0;
          for (std::int64_t j = 0; j < length; ++j)
            sum += p[static_cast<std::size_t>(j)] / total * kv(2, n * length + j, h, e);
          y[static_cast<std::size_t>((n * length + i) * q_width + h * s.head_dim + e)] = sum;
        }
      }
  return y;
}

}  // namespace

TEST_CASE("fp64 equals PyTorch, forward and backward") {
  const auto all = recorded_cases();
  CHECK(all.size() >= 23);
  for (const auto& [c, expected] : all) {
    CAPTURE(c.name);
    const OpResult r = run_case(c, {.backward = has_backward(c)});
    CHECK(distance(r.output, expected.output) <= 1e-12);
    if (has_backward(c)) check_gradients(r, expected, 1e-12);
  }
}

TEST_CASE("gradients are added where that is asked") {
  for (const auto& [c, expected] : recorded_cases()) {
    if (!has_backward(c)) continue;
    CAPTURE(c.name);
    OpResult sum = expected;
    for (auto* group : {&sum.grad_inputs, &sum.grad_params})
      for (Numbers& g : *group)
        for (double& v : g) v += 3.0;
    check_gradients(run_case(c, {.before = 3.0}), sum, 1e-12);
  }
}

TEST_CASE("gradients that nobody wants are left out") {
  for (const auto& [c, expected] : recorded_cases()) {
    if (!has_backward(c)) continue;
    CAPTURE(c.name);
    const OpResult params_only = run_case(c, {.wants_inputs = false}),
                   inputs_only = run_case(c, {.wants_params = false});
    for (std::size_t i = 0; i < c.params.size(); ++i)
      CHECK(distance(params_only.grad_params[i], expected.grad_params[i]) <= 1e-12);
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      CHECK(distance(inputs_only.grad_inputs[i], expected.grad_inputs[i]) <= 1e-12);
  }
}

TEST_CASE("gradients equal finite differences") {
  for (const auto& [c, expected] : recorded_cases()) {
    CAPTURE(c.name);
    if (has_backward(c)) check_all_slopes(c);
  }
}

// Narrow types get the inputs that they can hold; fp64 on those same inputs is the truth. fp32: sums of at most ~100
// rounded products, each within 2^-24 of the largest term: 100 * 2^-24 = 6e-6, and a few terms per output. bf16
// computes in fp32 and rounds once on storing, 2^-9 of the value (fp16 keeps three bits more, and these values are well
// inside its range); attention's backward reads the rounded output, which costs as much again, twice.
TEST_CASE("fp32, bf16 and fp16 are as close to fp64 as their digits allow") {
  for (auto& [c, expected] : recorded_cases()) {
    for (const auto& [type, tolerance] :
         {std::pair{DType::f32, 1e-5}, {DType::bf16, 1.0 / 128}, {DType::f16, 1.0 / 512}}) {
      OpCase narrow = c;
      CAPTURE(c.name);
      CAPTURE(name(type));
      for (std::size_t i = 0; i < c.inputs.size(); ++i)
        if (!c.ids[i]) narrow.inputs[i] = rounded(type, c.inputs[i]);
      for (Numbers& p : narrow.params) p = rounded(type, p);
      narrow.grad_output = rounded(type, narrow.grad_output);
      const OpResult truth = run_case(narrow, {.backward = has_backward(c)});
      const OpResult r = run_case(narrow, {.type = type, .backward = has_backward(c)});
      CHECK(distance(r.output, truth.output) <= tolerance);
      if (has_backward(c)) check_gradients(r, truth, tolerance);
    }
  }
}

TEST_CASE("attention over several blocks of rows") {
  const OpShape plain{.heads = 2, .kv_heads = 2, .head_dim = 3};
  for (const OpShape& shape : {plain, OpShape{.heads = 4, .kv_heads = 2, .head_dim = 5},
                               OpShape{.heads = 2, .kv_heads = 1, .head_dim = 3, .window = 70},
                               OpShape{.heads = 2, .kv_heads = 2, .head_dim = 3, .window = 5},
                               OpShape{.heads = 1, .kv_heads = 1, .head_dim = 4, .causal = false}}) {
    for (const std::int64_t length : {63, 64, 65, 150}) {
      CAPTURE(length);
      const OpCase c = attention_case(shape, 2, length);
      CHECK(distance(run_case(c, {.backward = false}).output, naive_attention(c)) <= 1e-12);
      check_all_slopes(c);
    }
  }
  OpShape packed{.heads = 4, .kv_heads = 2, .head_dim = 3};
  packed.packed = packed.alibi = true;
  check_all_slopes(attention_case(packed, 2, 130));
}

TEST_CASE("scores far apart neither overflow nor vanish") {
  OpCase c = attention_case(OpShape{.heads = 1, .kv_heads = 1, .head_dim = 1}, 1, 3);
  c.inputs = {{400.0, 400.0, 400.0},
              {1.0, 2.0, -3.0},
              {5.0, 6.0, 7.0}};  // scores 400, 800, -1200: query 0 sees key 0, the others pick key 1
  for (const DType type : {DType::f64, DType::f32}) {
    const OpResult r = run_case(c, {.type = type});
    CHECK(r.output == Numbers{5.0, 6.0, 6.0});
    for (const Numbers& g : r.grad_inputs)
      for (const double v : g) CHECK(std::isfinite(v));
  }
}

TEST_CASE("a token outside of the vocabulary is refused") {
  for (auto& [c, expected] : recorded_cases()) {
    const bool loss = c.op.kind == OpKind::cross_entropy;
    if (!loss && c.op.kind != OpKind::embedding) continue;
    for (const double bad : {-1.0, static_cast<double>(c.op.shape.vocab), 1e15}) {
      OpCase broken = c;
      broken.inputs[loss ? 1 : 0][2] = bad;
      CHECK_THROWS_AS(run_case(broken), MachineError);
    }
  }
}

TEST_CASE("a buffer of another size, or one that is missing, is refused by name") {
  Op op;
  op.kind = OpKind::gelu, op.shape.width = 3, op.inputs = {0}, op.outputs = {1};
  const Workload work{.sequences = 2, .seq_len = 1, .element_bytes = 4};
  Block good(24), bad(20);
  const auto message = [&](std::vector<KernelArg> args) {
    try {
      host_kernel_set().forward(op, work, DType::f32, args, 0);
    } catch (const MachineError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Block out(24);
  CHECK(message({{good.view()}, {out.view()}, {}, {}}).empty());
  CHECK(message({{bad.view()}, {out.view()}, {}, {}}) ==
        "operation gelu: input 0: buffer of 20 bytes where the model needs 24");
  CHECK(message({{good.view()}, {bad.view()}, {}, {}}) ==
        "operation gelu: output 0: buffer of 20 bytes where the model needs 24");
  CHECK(message({{}, {out.view()}, {}, {}}) == "operation gelu: input 0 is absent, but this kernel needs it");
  CHECK(message({{good.view()}, {out.view()}}) == "operation gelu: 2 arguments where its positions are 4");
  op.shape.width = std::numeric_limits<std::int64_t>::max() / 2;
  CHECK(message({{good.view()}, {out.view()}, {}, {}}).find("is not possible") != std::string::npos);
}
