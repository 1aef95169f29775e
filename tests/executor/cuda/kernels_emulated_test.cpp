// The CUDA kernels, emulated on the processor, against the host's kernels; the same cases run on a GPU in
// executor_cuda_kernels_test.
#include <doctest/doctest.h>

#include "tests/executor/cuda/cuda_op_cases.h"
#include "tests/executor/cuda/kernel_set_cases.h"
#include "tests/fakes/emulated/kernels.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const EmulatedKernels& emulated() {
  static const EmulatedKernels kernels;
  return kernels;
}

Subject subject() {
  Subject s = host_subject();
  return {emulated(), native_cuda_implementation(), s.allocate, s.finish};
}

}  // namespace

TEST_CASE("emulated swiglu, gelu, sums and products with a number equal the host's") {
  for (const CudaOpCase& c : elementwise_cases()) check_op(subject(), c);
}

TEST_CASE("emulated norms equal the host's") {
  for (const CudaOpCase& c : norm_cases()) check_op(subject(), c);
}

TEST_CASE("emulated embeddings equal the host's") {
  for (const CudaOpCase& c : embedding_cases()) check_op(subject(), c);
}

TEST_CASE("the emulated rotary embedding equals the host's") {
  for (const CudaOpCase& c : rotary_cases()) check_op(subject(), c);
}

TEST_CASE("the emulated cross-entropy equals the host's") {
  for (const CudaOpCase& c : cross_entropy_cases()) check_op(subject(), c);
}

TEST_CASE("emulated mixtures of experts equal the host's") {
  for (const CudaOpCase& c : moe_cases()) check_op(subject(), c);
}

TEST_CASE("emulated conversions and scaling equal the host's") { check_conversions(subject()); }

TEST_CASE("emulated layout copies of collectives equal the host's") { check_layouts(subject()); }

TEST_CASE("emulated optimizers equal the host's") { check_updates(subject()); }

TEST_CASE("emulated gradient norms and clipping equal the host's") { check_clipping(subject()); }

TEST_CASE("emulated tokens, initial values and states equal the host's") { check_data(subject()); }

TEST_CASE("the gradient may be written where the logits are") {
  const std::int64_t vocab = 1003, tokens = 4;
  Op op;
  op.kind = OpKind::cross_entropy, op.shape.vocab = vocab, op.inputs = {0, 1}, op.outputs = {2};
  const Workload work{1, tokens, 4};
  Block logits = encode(DType::f32, random_numbers(static_cast<std::size_t>(vocab * tokens), 5, 3.0)),
        targets = encode(DType::i64, {0, 1002, 7, 8}), loss = encode(DType::f64, {0.0}), lse(4 * tokens),
        scratch(8 * tokens), apart(4 * vocab * tokens);
  emulated().forward(
      op, work, DType::f32,
      std::vector<KernelArg>{{logits.view()}, {targets.view()}, {loss.view()}, {lse.view()}, {scratch.view()}}, 0.25);
  const auto backward = [&](BufferView into) {
    const std::vector<KernelArg> args{{}, {logits.view()}, {targets.view()}, {}, {lse.view()}, {}, {into}, {}};
    emulated().backward(op, work, DType::f32, args, 0.25);
  };
  backward(apart.view());
  backward(logits.view());
  CHECK(decode(DType::f32, logits.view()) == decode(DType::f32, apart.view()));
}

// Rising logits make a new largest one again and again; where most are minus infinity, some threads see nothing else.
TEST_CASE("cross-entropy of rising logits, and of rows of mostly minus infinity") {
  for (CudaOpCase c : cross_entropy_cases()) {
    const auto vocab = static_cast<std::size_t>(c.op.shape.vocab);
    for (std::size_t i = 0; i < c.inputs[0].size(); ++i) {
      const std::size_t token = i / vocab, column = i % vocab;
      const bool kept = column % 11 == 0 || static_cast<double>(column) == c.inputs[1][token];
      c.inputs[0][i] = token % 2 == 0 ? 40.0 * static_cast<double>(column) / static_cast<double>(vocab)
                       : kept         ? c.inputs[0][i]
                                      : -std::numeric_limits<double>::infinity();
    }
    for (const DType type : {DType::f64, DType::f32, DType::bf16}) check_op(subject(), c, {.type = type});
  }
}

TEST_CASE("a token outside of the vocabulary, a target too, and a slot that there is not end the kernel") {
  for (CudaOpCase c : embedding_cases()) {
    if (c.op.kind != OpKind::embedding) continue;
    c.inputs[0][3] = 19;
    CHECK_THROWS_AS(run_op(subject(), c, {}), emulation::EmulationError);
  }
  CudaOpCase loss = cross_entropy_cases()[0];
  loss.inputs[1][0] = -1;
  CHECK_THROWS_AS(run_op(subject(), loss, {}), emulation::EmulationError);
  for (CudaOpCase c : moe_cases()) {
    if (c.op.kind == OpKind::moe_route) continue;
    c.inputs.back()[5] = 1e6;
    CHECK_THROWS_AS(run_op(subject(), c, {}), emulation::EmulationError);
  }
}

// Tokens of one, two, three and five tiles; rows that lie in many pieces, in two, in one.
TEST_CASE("gradients of tables whose tokens fill several tiles and pieces") {
  for (const std::int64_t tokens : {63, 64, 65, 2048, 2049, 4097, 9001})
    for (const std::int64_t different : {1, 3, 97}) {
      const CudaOpCase c = table_case(97, 5, tokens, different);
      check_op(subject(), c, {.type = DType::f32});
      check_op(subject(), c, {.type = DType::f64, .before = 3.0});
    }
}

TEST_CASE("results do not depend on which thread goes first") {
  const EmulatedKernels other(12345);
  const Subject first = subject(), second{other, native_cuda_implementation(), first.allocate, first.finish};
  for (const auto& cases :
       {norm_cases(), embedding_cases(), std::vector{table_case(97, 24, 4097, 3)}, moe_cases(), cross_entropy_cases()})
    for (const CudaOpCase& c : cases) {
      CAPTURE(c.name);
      const CudaOpResult a = run_op(first, c, {}), b = run_op(second, c, {});
      CHECK(a.outputs == b.outputs);
      CHECK(a.grad_inputs == b.grad_inputs);
      CHECK(a.grad_params == b.grad_params);
    }
}

// In one part, in many, and in as many as fit; by packs, one by one, and from where packs would not be aligned. u =
// 2^-24 and at most 700 terms of both signs.
TEST_CASE("the gradient of a bias") {
  for (const std::int64_t rows : {1, 255, 700})
    for (const std::int64_t room : {1, 2, 64})
      for (const auto& [columns, shift] : {std::pair{std::int64_t{37}, 0}, {40, 0}, {300, 0}, {40, 4}}) {
        const Numbers x = random_numbers(static_cast<std::size_t>(rows * columns), 3),
                      before = random_numbers(static_cast<std::size_t>(columns), 4);
        const testing::Tensor from(host_subject(), DType::f32, x, shift);
        Block to = encode(DType::f32, before), scratch(room * columns * 4 + 3);
        cuda::launch_bias_gradient(DType::f32, from.view().data, rows, columns, to.view().data, true, scratch.view(),
                                   EmulatedLaunch{});
        Numbers sums = rounded(DType::f32, before), held = rounded(DType::f32, x);
        for (std::size_t i = 0; i < held.size(); ++i) sums[i % static_cast<std::size_t>(columns)] += held[i];
        CHECK(distance(decode(DType::f32, to.view()), sums) <= tolerance(DType::f32, 700));
      }
}
