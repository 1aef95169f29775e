// Descriptions of matmuls for cuBLASLt, interpreted on the processor as the library's documentation defines
// them: column-major, d = op(A) op(B) + beta d, a bias along each column. Against a triple loop, and the calls of whole
// operations against the host's kernels.
// First: it defines what .cuh files take for granted.
#include "tests/fakes/emulated/cuda.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "executor/cuda/matmul_shape.h"
#include "executor/cuda/toolkit/kernels/matmul/matmul_bias.cuh"
#include "tests/support/kernels_support.h"

namespace fsdp::testing {
namespace {

using cuda::ColumnMajorMatmul;
using cuda::Matmul;
using cuda::StoredMatrix;

// Element (i, j) of batch member `b`, as the library finds it.
std::size_t place(const StoredMatrix& m, std::int64_t b, std::int64_t i, std::int64_t j) {
  CHECK((i >= 0 && i < m.rows && j >= 0 && j < m.columns && m.rows <= m.ld));
  return static_cast<std::size_t>(b * m.batch_stride + i + j * m.ld);
}

// fp64 only.
void interpret(const cuda::MatmulCall& call) {
  REQUIRE(call.matmul.type == DType::f64);
  const ColumnMajorMatmul p = cuda::column_major(call.matmul);
  const auto *first = static_cast<const double*>(call.b), *second = static_cast<const double*>(call.a);
  const auto* bias = static_cast<const double*>(call.bias);
  auto* d = static_cast<double*>(call.c);
  const std::int64_t depth = p.transpose_first ? p.first.rows : p.first.columns;
  CHECK(depth == (p.transpose_second ? p.second.columns : p.second.rows));
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t j = 0; j < p.d.columns; ++j)
      for (std::int64_t i = 0; i < p.d.rows; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < depth; ++l)
          sum += first[p.transpose_first ? place(p.first, b, l, i) : place(p.first, b, i, l)] *
                 second[p.transpose_second ? place(p.second, b, j, l) : place(p.second, b, l, j)];
        double& to = d[place(p.d, b, i, j)];
        to = sum + (call.matmul.accumulate ? to : 0) + (call.matmul.bias ? bias[i] : 0);
      }
}

void interpret(const cuda::LinearCalls& calls) {
  for (const cuda::MatmulCall& p : calls.matmuls) interpret(p);
  for (const cuda::ColumnSumCall& s : calls.sums) {
    REQUIRE(s.type == DType::f64);
    for (std::int64_t c = 0; c < s.columns; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < s.rows; ++r) sum += static_cast<const double*>(s.from)[r * s.columns + c];
      double& to = static_cast<double*>(s.to)[c];
      to = sum + (s.accumulate ? to : 0);
    }
  }
}

std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

TEST_CASE("column-major descriptions of row-major products, in all their variants") {
  const std::int64_t m = 3, n = 5, k = 7;
  for (const std::int64_t batch : {1, 3})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const int extra : {0, 1, 2}) {  // nothing, what is there, a bias
          const auto transpose = [](bool yes) { return yes ? Transpose::yes : Transpose::no; };
          const Matmul p{.type = DType::f64,
                         .ta = transpose(ta),
                         .tb = transpose(tb),
                         .m = m,
                         .n = n,
                         .k = k,
                         .batch = batch,
                         .accumulate = extra == 1,
                         .bias = extra == 2};
          INFO(cuda::text(p), " ", ta, tb, extra);
          const Numbers a = random_numbers(count(batch * m * k), 1), b = random_numbers(count(batch * k * n), 2);
          const Numbers bias = random_numbers(count(n), 3);
          Numbers c = random_numbers(count(batch * m * n), 4), expected = c;
          for (std::int64_t g = 0; g < batch; ++g)
            for (std::int64_t i = 0; i < m; ++i)
              for (std::int64_t j = 0; j < n; ++j) {
                double sum = extra == 1 ? c[count((g * m + i) * n + j)] : extra == 2 ? bias[count(j)] : 0;
                for (std::int64_t l = 0; l < k; ++l)
                  sum += a[count(g * m * k + (ta ? l * m + i : i * k + l))] *
                         b[count(g * k * n + (tb ? j * k + l : l * n + j))];
                expected[count((g * m + i) * n + j)] = sum;
              }
          if (extra != 1) std::fill(c.begin(), c.end(), std::numeric_limits<double>::quiet_NaN());
          interpret(cuda::MatmulCall{.matmul = p, .a = a.data(), .b = b.data(), .bias = bias.data(), .c = c.data()});
          CHECK(distance(c, expected) < 1e-14);
        }
}

struct LinearCase {
  OpCase op;
  bool accumulate = false;
  std::vector<bool> wanted;  // gradients of the input, then of the parameters
};

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  unsigned seed = 50;
  for (const bool experts : {false, true})
    for (const bool transposed : {false, true})
      for (const bool bias : {false, true})
        for (const bool accumulate : {false, true}) {
          if (experts && (transposed || bias)) continue;
          LinearCase c;
          c.accumulate = accumulate;
          Op& op = c.op.op;
          op.kind = experts ? OpKind::expert_linear : OpKind::linear;
          op.inputs = {0}, op.outputs = {1},
          op.params = bias ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{0};
          op.shape.in = 6, op.shape.out = 9, op.shape.transposed = transposed;
          if (experts) op.shape.experts = {.count = 4, .top_k = 2, .capacity_factor = 1.3};
          c.op.work = {.sequences = 2, .seq_len = 5, .element_bytes = 8, .loss_chunks = 1};
          const std::int64_t slots = experts ? 4 * op.shape.experts.capacity(10) : 10;
          c.op.inputs = {random_numbers(count(slots * 6), ++seed)};
          c.op.params = {random_numbers(count((experts ? 4 : 1) * 54), ++seed)};
          if (bias) c.op.params.push_back(random_numbers(9, ++seed));
          c.op.grad_output = random_numbers(count(slots * 9), ++seed);
          c.wanted.assign(1 + c.op.params.size(), true);
          cases.push_back(c);
          for (std::size_t i = 0; i < c.wanted.size() && !accumulate; ++i) {
            cases.push_back(c);
            cases.back().wanted.assign(c.wanted.size(), false);
            cases.back().wanted[i] = true;
          }
        }
  return cases;
}

TEST_CASE("the products of linear and expert_linear are those of the host's kernels") {
  for (LinearCase& c : linear_cases()) {
    OpCase& o = c.op;
    const bool experts = o.op.kind == OpKind::expert_linear;
    INFO(name(o.op.kind), " transposed ", o.op.shape.transposed, " parameters ", o.params.size(), " accumulate ",
         c.accumulate);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    Numbers y(o.grad_output.size(), nan), host_y(y.size(), nan);
    const auto forward = [&](Numbers& to) {
      std::vector<KernelArg> args{{view_of(o.inputs[0])}};
      for (Numbers& p : o.params) args.push_back({view_of(p)});
      args.insert(args.end(), {{view_of(to)}, {}, {}});
      return args;
    };
    host_kernel_set().forward(o.op, o.work, DType::f64, forward(host_y), 0);
    const auto forward_args = forward(y);
    const Call forward_call(o.op, o.work, forward_args, 0, false);
    interpret((experts ? cuda::expert_linear_forward_calls : cuda::linear_forward_calls)(DType::f64, forward_call));
    CHECK(distance(y, host_y) < 1e-14);

    std::vector<Numbers> grads{Numbers(o.inputs[0].size())}, host_grads;
    for (const Numbers& p : o.params) grads.emplace_back(p.size());
    for (std::size_t i = 0; i < grads.size(); ++i)
      grads[i] = c.accumulate ? random_numbers(grads[i].size(), 900 + static_cast<unsigned>(i))
                              : Numbers(grads[i].size(), nan);
    host_grads = grads;
    const auto backward = [&](std::vector<Numbers>& to) {
      std::vector<KernelArg> args{{view_of(o.grad_output)}, {view_of(o.inputs[0])}, {}};
      for (Numbers& p : o.params) args.push_back({view_of(p)});
      args.insert(args.end(), {{}, {}});
      for (std::size_t i = 0; i < to.size(); ++i)
        args.push_back({c.wanted[i] ? view_of(to[i]) : BufferView{}, c.accumulate});
      return args;
    };
    host_kernel_set().backward(o.op, o.work, DType::f64, backward(host_grads), 0);
    const auto backward_args = backward(grads);
    const Call backward_call(o.op, o.work, backward_args, 0, true);
    interpret((experts ? cuda::expert_linear_backward_calls : cuda::linear_backward_calls)(DType::f64, backward_call));
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (c.wanted[i]) CHECK(distance(grads[i], host_grads[i]) < 1e-14);
  }
}

TEST_CASE("a buffer of another size than the model's is refused") {
  OpCase o = linear_cases().front().op;
  Numbers y(o.grad_output.size() - 1);
  const std::vector<KernelArg> args{{view_of(o.inputs[0])}, {view_of(o.params[0])}, {view_of(y)}, {}, {}};
  CHECK_THROWS_AS((void)cuda::linear_forward_calls(DType::f64, Call(o.op, o.work, args, 0, false)), MachineError);
}

TEST_CASE("rows of a bias, for a product that adds to them") {
  for (const std::int64_t rows : {1, 7, 40}) {
    const Numbers bias = random_numbers(19, 8);
    Numbers to(count(rows * 19), std::numeric_limits<double>::quiet_NaN());
    emulation::emulate({2}, {64}, 0, [&] { cuda::bias_rows_kernel(bias.data(), rows, std::int64_t{19}, to.data()); });
    for (std::size_t i = 0; i < to.size(); ++i) CHECK(to[i] == bias[i % 19]);
  }
}

TEST_CASE("an algorithm is chosen again for another shape, alignment, share of the GPU or precision, and only then") {
  alignas(512) static std::byte memory[1024];
  const Matmul p{.type = DType::f32, .m = 4, .n = 5, .k = 6};
  CHECK(cuda::alignment(memory) == 256);
  CHECK(cuda::alignment(memory + 48) == 16);
  CHECK(cuda::alignment(memory + 2) == 2);
  CHECK(cuda::alignment(memory + 1) == 1);
  const auto key = [](const Matmul& of, std::size_t a = 0, std::size_t b = 0, std::size_t c = 0, int share = 0,
                      bool tf32 = false) {
    return cuda::key_of({.matmul = of, .a = memory + a, .b = memory + b, .bias = memory + 128, .c = memory + c}, share,
                        tf32);
  };
  CHECK(key(p) == key(p, 256, 512));
  std::set<cuda::MatmulKey> keys{key(p),           key(p, 16),           key(p, 0, 16),
                                 key(p, 0, 0, 16), key(p, 0, 0, 0, 100), key(p, 0, 0, 0, 0, true)};
  for (const Matmul& other : {Matmul{DType::bf16, {}, {}, 4, 5, 6}, Matmul{DType::f32, Transpose::yes, {}, 4, 5, 6},
                              Matmul{DType::f32, {}, Transpose::yes, 4, 5, 6}, Matmul{DType::f32, {}, {}, 5, 5, 6},
                              Matmul{DType::f32, {}, {}, 4, 6, 6}, Matmul{DType::f32, {}, {}, 4, 5, 7},
                              Matmul{DType::f32, {}, {}, 4, 5, 6, 2}, Matmul{DType::f32, {}, {}, 4, 5, 6, 1, true},
                              Matmul{DType::f32, {}, {}, 4, 5, 6, 1, false, true}})
    keys.insert(key(other));
  CHECK(keys.size() == 15);
  const Matmul biased{DType::f32, {}, {}, 4, 5, 6, 1, false, true};
  CHECK(key(biased).align_c == 128);  // of the bias
  CHECK(key(biased).bias_in_epilogue);
  const cuda::MatmulKey apart =
      cuda::key_of({.matmul = biased, .a = memory, .b = memory, .bias = memory + 8, .c = memory}, 0, false);
  CHECK(!apart.bias_in_epilogue);
  CHECK(apart.align_c == 256);
  for (const std::size_t at : {0, 1, 64, 255}) {
    const cuda::AlignedRoom room = cuda::aligned_room(memory + at, 512);
    CHECK(cuda::alignment(room.data) == 256);
    CHECK(room.bytes == 256);
    CHECK((static_cast<std::byte*>(room.data) >= memory + at &&
           static_cast<std::byte*>(room.data) + room.bytes <= memory + at + 512));
  }
  CHECK(cuda::aligned_room(memory, 100).bytes == 0);
  // Only fp32 has TF32.
  const Matmul half{DType::bf16, {}, {}, 4, 5, 6};
  CHECK(key(half, 0, 0, 0, 0, true) == key(half));
}

}  // namespace
}  // namespace fsdp::testing
