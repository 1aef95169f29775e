// Bounds on memory: those that PyTorch's own memory test asserts for its small Transformer (docs/fsdp-order.md M2), and
// closed forms for generated plans (M1).
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>

#include "models/implementation.h"
#include "models/importers/builder.h"
#include "planner/lower.h"
#include "simulator/engine/memory.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

// The Transformer of test_fully_shard_memory.py: learned positions, pre-LayerNorm blocks, projections without and
// feed-forward with bias, an untied head; width 768, 12 heads, vocabulary 32, 16 positions, 3 blocks.
ModelGraph transformer() {
  constexpr std::int64_t width = 768, heads = 12, vocab = 32, positions = 16;
  GraphBuilder b("transformer", "Transformer");
  const auto tokens = b.embedding_module(0, "tok_embeddings", vocab, width);
  const auto places = b.embedding_module(0, "pos_embeddings", positions, width);
  const auto list = b.list(0, "layers");
  struct Block {
    std::int32_t self, norm_1, attention, q, k, v, o, norm_2, ffn, up, down;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 3; ++i) {
    Block m{};
    m.self = b.block(list, i, "TransformerBlock");
    m.norm_1 = b.norm_module(m.self, "attention_norm", "LayerNorm", width, true);
    m.attention = b.module(m.self, "attention", "Attention");
    m.q = b.linear_module(m.attention, "wq", width, width, false);
    m.k = b.linear_module(m.attention, "wk", width, width, false);
    m.v = b.linear_module(m.attention, "wv", width, width, false);
    m.o = b.linear_module(m.attention, "wo", width, width, false);
    m.norm_2 = b.norm_module(m.self, "ffn_norm", "LayerNorm", width, true);
    m.ffn = b.module(m.self, "feed_forward", "FeedForward");
    m.up = b.linear_module(m.ffn, "w1", width, 4 * width, true);
    m.down = b.linear_module(m.ffn, "w2", 4 * width, width, true);
    blocks.push_back(m);
  }
  const auto norm = b.norm_module(0, "norm", "LayerNorm", width, true);
  const auto head = b.linear_module(0, "output", width, vocab, false);

  auto x = b.position(places, b.embedding(tokens, b.ids()));
  for (const Block& m : blocks) {
    const auto normed = b.layer_norm(m.norm_1, x, 1e-5);
    const auto q = b.linear(m.q, normed), k = b.linear(m.k, normed), v = b.linear(m.v, normed);
    const auto mixed =
        b.attention(m.attention, {q, k, v}, {.heads = heads, .kv_heads = heads, .head_dim = width / heads});
    x = b.add(m.self, x, b.linear(m.o, mixed));
    x = b.add(m.self, x, b.linear(m.down, b.gelu(m.ffn, b.linear(m.up, b.layer_norm(m.norm_2, x, 1e-5)), false)));
  }
  return b.finish(b.linear(head, b.layer_norm(norm, x, 1e-5)), vocab, positions, "transformer");
}

// Device memory of the first step: forward, backward and optimizer are what the test measures, and the Adam states that
// appear.
struct Measured {
  std::int64_t sharded = 0, forward = 0, backward = 0, optimizer = 0, after_zero_grad = 0;
};

Measured measure(const Program& program) {
  const ProgramMemory memory = replay_memory(program);
  Measured m;
  m.sharded = memory.init.points.back().after;
  bool backward = false, optimizer = false;
  for (std::size_t i = 0; i < program.first_step.ops.size(); ++i) {
    const Action a = program.first_step.ops[i].action;
    backward = backward || a == Action::backward;
    optimizer = optimizer || a == Action::init_optimizer || a == Action::optimizer;
    std::int64_t& peak = optimizer ? m.optimizer : backward ? m.backward : m.forward;
    peak = std::max(peak, memory.first_step.points[i].at);
  }
  m.backward = std::max(m.backward, m.forward);  // the test does not reset the peak between them
  REQUIRE(program.steady_step.ops[0].action == Action::zero_gradients);
  m.after_zero_grad = memory.steady_step.points[0].after;
  return m;
}

}  // namespace

TEST_CASE("the bounds of PyTorch's memory test hold, and are not far away") {
  const ModelGraph model = transformer();
  std::int64_t block = 0;
  for (const Parameter& p : model.parameters) block += p.name.starts_with("layers.0.") ? p.numel() : 0;
  // 4 x 768^2 + (2 x 768 x 3072 + 3072 + 768) + 2 x 2 x 768; token and position embeddings, the last norm, the head.
  REQUIRE(block == 7'084'800);
  REQUIRE(model.parameter_count() - 3 * block == 62'976);
  const std::int64_t B = 4 * block, X = 4 * 62'976, T = 3 * B + X, S = T / 2, MB = 1'000'000,
                     buffer = 16 * MB;  // bytes of fp32, W = 2
  // 4 tokens: activations, their gradients, the loss and the batch are below 1 MB.
  const std::int64_t small = MB;

  ShardingPlan plan = toy::plan(model, 2);
  plan.micro_batches = {1};
  plan.seq_len = 4;
  const auto measured = [&](Reshard reshard, bool offload) {
    for (Unit& u : plan.units) u.reshard_after_forward = reshard;
    plan.offload = offload;
    check(plan, model);
    return measure(lower(model, plan, find_implementation("torch-cpu", false, "test")));
  };
  {
    const Measured m = measured(Reshard::yes, false);
    CHECK(m.sharded <= S + B);
    CHECK(m.sharded == S);  // nothing is padded; PyTorch's slack is for moving a block before it is sharded
    CHECK(m.forward <= 3 * B + X + S + buffer);
    // At a block's entry: the root whole, the all-gather output of the block before and of this one; later this one and
    // its copy.
    CHECK(m.forward >= S + X + 2 * B);
    CHECK(m.forward <= S + X + 2 * B + small);
    CHECK(m.backward <= 4 * B + X + 2 * S + buffer);
    // At the end of the middle block's backward: its parameters and gradients, the next all-gather output, the
    // reduce-scatter input of the last block and that block's sharded gradient; of the root its parameters, and
    // gradients of head and norm.
    CHECK(m.backward >= S + B / 2 + X + 4 * B);
    CHECK(m.backward <= S + B / 2 + 2 * X + 4 * B + small);
    CHECK(m.optimizer <= 4 * S + buffer);
    CHECK(m.optimizer >= 4 * S);
    CHECK(m.optimizer <= 4 * S + small);  // fused: no temporaries; the test's Adam has two of its largest parameter
    CHECK(m.after_zero_grad <= 3 * S + 2 * buffer);
    CHECK(m.after_zero_grad == 3 * S);
  }
  {
    const Measured m = measured(Reshard::no, false);
    CHECK(m.forward <= S + T + B + buffer);
    CHECK(m.forward >= S + T + B);  // everything whole, and the last all-gather output
    CHECK(m.forward <= S + T + B + small);
    CHECK(m.backward <= S + T + B + B / 2 + buffer);
    // At the first reduce-scatter: input and output, when the last block is freed. That is less than before: 1.5 B
    // instead of the gradients and B; the peak is the block's gradients beside everything whole, or the end of forward.
    CHECK(m.backward >= S + T + B);
    CHECK(m.backward <= S + T + B + B / 2 + small);
    CHECK(m.optimizer <= 4 * S + buffer);
    CHECK(m.after_zero_grad == 3 * S);
  }
  {
    const Measured m = measured(Reshard::yes, true);
    CHECK(m.sharded <= B + B / 2);
    CHECK(m.sharded == 0);
    CHECK(m.forward <= 3 * B + X + buffer);
    CHECK(m.forward >= 2 * B + X);
    CHECK(m.backward <= 4 * B + X + buffer);
    CHECK(m.backward >= 4 * B);
    CHECK(m.optimizer <= buffer);
    CHECK(m.after_zero_grad == 0);
  }
}

namespace {

std::int64_t padded(const UnitLayout& l) { return l.shard_elements * l.shards; }

// Closed form: what can be alive at once, term by term, from layouts and dtypes alone. M: the largest unit.
std::int64_t bound(const ModelGraph& model, const ShardingPlan& plan, const Implementation& impl,
                   const std::vector<UnitLayout>& layouts) {
  const std::int64_t b_o = size_of(plan.master_dtype), b_p = size_of(plan.param_dtype),
                     b_r = size_of(plan.reduce_dtype);
  std::int64_t states = 0, kept = 0, largest = 0, largest_gradients = 0, root_gradients = 0, waiting = 0, held = 0;
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    const UnitLayout& l = layouts[u];
    states += l.shard_elements * b_o * 4;  // parameters, gradients, two Adam states
    const Reshard r = plan.units[u].reshard_after_forward;
    if (l.root || r == Reshard::no) kept += padded(l) * b_p;  // the root is whole while its children run, in any case
    largest = std::max(largest, padded(l));
    largest_gradients = std::max(largest_gradients, l.numel);
    if (l.root) root_gradients = l.numel * b_p;  // reduced in the final callback
    if (plan.replicate() > 1 && b_r != b_o)
      held += l.shard_elements * b_r;  // the all-reduce's buffer, to the end of backward
    if (plan.grad_sync == GradSync::last) waiting += l.numel * std::max(b_p, b_r);
    if (plan.grad_sync == GradSync::reduce_scatter_only) waiting += l.shard_elements * b_r;
  }
  const std::int64_t forward = largest * b_p * (2 + plan.forward_prefetch);
  const std::int64_t cast = plan.param_dtype != plan.master_dtype ? largest / plan.shard() * b_p : 0;
  const std::int64_t backward = largest * b_p * (1 + std::max(1, plan.backward_prefetch)) +
                                largest_gradients * b_p +                               // U, AG, gradients
                                largest * b_r + largest / plan.shard() * (b_r + b_o) +  // RS in, out, cast
                                largest_gradients * b_p;  // a second use adds from a temporary
  // Tensors and their gradients, all at once; recomputation makes them again.
  std::int64_t activations = 64;
  for (std::int64_t sequences : plan.micro_batches) {
    const Workload w{sequences, plan.seq_len, b_p};
    std::int64_t all = 0, scratch = 0;
    for (const Tensor& t : model.tensors) all += elements(t, w) * std::max<std::int64_t>(8, 3 * b_p);
    for (const Op& op : model.ops) {
      const OpFacts f = facts(impl, op, w);
      all += 2 * f.saved_extra_bytes;
      scratch = std::max({scratch, f.forward_scratch_bytes, f.backward_scratch_bytes});
    }
    activations = std::max(activations, all + scratch + 64);
  }
  return states + kept + root_gradients + waiting + held + cast + std::max(forward, backward) + activations;
}

}  // namespace

TEST_CASE("closed forms bound the memory of generated plans, and some plan comes close") {
  std::mt19937 random(20261121);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  double closest = 0;
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    const toy::Shape shape{.blocks = 2 + pick(5),
                           .vocab = 5 + pick(40),
                           .width = 16 + pick(60),
                           .hidden = 64 + pick(200),
                           .tied = pick(2) == 0};
    const ModelGraph model = toy::model(shape);
    ShardingPlan plan = toy::plan(model, 2 + pick(6), 1 + pick(3));
    const std::array choices{Reshard::automatic, Reshard::yes, Reshard::no};
    for (Unit& u : plan.units) u.reshard_after_forward = choices[static_cast<std::size_t>(pick(3))];
    if (pick(2) == 0)
      for (Unit& u : plan.units) u.reshard_after_forward = Reshard::automatic;
    plan.seq_len = 1 + pick(3);
    plan.micro_batches.assign(static_cast<std::size_t>(1 + pick(3)), 1 + pick(2));
    plan.grad_sync = static_cast<GradSync>(pick(plan.replicate() > 1 ? 3 : 2));
    plan.forward_prefetch = pick(3);
    plan.backward_prefetch = pick(3);
    if (pick(2)) plan.param_dtype = DType::bf16;
    if (pick(2)) plan.reduce_dtype = DType::bf16;
    if (pick(3) == 0) plan.checkpointed = {"layers.0", "layers.1"};
    check(plan, model);
    const Implementation& impl =
        pick(2) ? find_implementation("native", false, "test") : find_implementation("torch-cpu", false, "test");
    const Program program = lower(model, plan, impl);
    const std::int64_t peak = replay_memory(program).peak, limit = bound(model, plan, impl, program.layouts);
    CHECK(peak <= limit);
    closest = std::max(closest, static_cast<double>(peak) / static_cast<double>(limit));
  }
  CHECK_MESSAGE(closest > 0.85, closest);
}
