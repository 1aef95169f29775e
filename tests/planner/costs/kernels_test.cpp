// Products and attention against closed forms and laws; published measurements are in compute_test.cpp.
#include "planner/costs/kernels.h"

#include <doctest/doctest.h>

#include "models/catalog.h"
#include "planner/costs/attention.h"
#include "planner/costs/matmul.h"
#include "planner/costs/rates.h"
#include "planner/costs/traced.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

constexpr double kPeak = 108e12, kMemory = 1e15;  // 1 TFLOP/s for each of 108 SMs; memory is no bound
double seconds(double m, double n, double k) { return matmul_time({m, n, k}, kPeak, 108, kMemory).seconds; }

double factor(AttentionKernel kernel, std::int64_t heads, std::int64_t head_dim, std::int64_t length, bool causal) {
  OpShape s;
  s.heads = s.kv_heads = heads;
  s.head_dim = head_dim;
  s.causal = causal;
  return attention_shape_factor(kernel, s, {1, length}, load_gpu("a100-sxm-80", "test"));
}

}  // namespace

TEST_CASE("a wave more than fits is a whole wave") {
  // 256 x 128 tiles, k = 65536 (+ 256): a wave takes 2 * 256 * 128 * 65792 flops at 1 TFLOP/s.
  const double wave = 65536.0 * 65792 / 1e12;
  CHECK(seconds(256 * 108.0 * 8, 128, 65536) == relative(8 * wave));
  // 8 * 108 + 1 row tiles: 9 waves, with the other shape (432.5 -> 433 of 256 x 128 rows ...) no better: 128 x 256
  // tiles would be half empty.
  CHECK(seconds(256 * (108.0 * 8 + 1), 128, 65536) > 8.5 * wave);
  CHECK(seconds(256 * (108.0 * 8 + 1), 128, 65536) <= 9 * wave * (1 + 1e-12));
}

TEST_CASE("time of a matmul grows with its sizes and never beats the peak") {
  for (const double k : {256.0, 1024.0, 8192.0}) {
    CHECK(seconds(4096, 4096, 2 * k) > seconds(4096, 4096, k));
    CHECK(seconds(4096, 4096, 2 * k) < 2 * seconds(4096, 4096, k));  // a tile's fixed time is paid once
    CHECK(seconds(4096, 8192, k) == seconds(8192, 4096, k));         // either way round
    CHECK(2.0 * 8192 * 8192 * k / seconds(8192, 8192, k) < kPeak);   // never above the peak
  }
  // Few tiles and a long k: parts of k on more SMs. 16 tiles of 128 x 128 cannot keep 108 SMs busy; eight parts of
  // each, in two waves, do better.
  CHECK(seconds(512, 512, 65536) < 0.5 * 2 * 128 * 128 * 65792.0 / 0.92e12);
  // Bound by memory: 1 x 8192 x 8192 reads the weight.
  const MatmulTime thin = matmul_time({1, 8192, 8192}, kPeak, 108, 1e11);
  CHECK(thin.seconds == relative((8192 + 8192.0 * 8192 + 8192) * 2 / 1e11));
  // Rows of 50257 two-byte elements cannot be read 16 bytes at a time, rows of 50304 can.
  const double odd = matmul_time({4096, 50257, 768, 2, 2, 768, 50257}, kPeak, 108, kMemory).seconds;
  const double padded = matmul_time({4096, 50304, 768, 2, 2, 768, 50304}, kPeak, 108, kMemory).seconds;
  CHECK(odd / padded == relative(3).epsilon(0.01));
}

TEST_CASE("attention: longer sequences, more tiles and larger heads use more of the ceiling") {
  using K = AttentionKernel;
  for (const K kernel : {K::triton, K::flash2, K::cudnn, K::flash3, K::sdpa}) {
    for (const bool causal : {false, true}) {
      CHECK(factor(kernel, 16, 128, 4096, causal) > factor(kernel, 16, 128, 2048, causal));
      CHECK(factor(kernel, 32, 128, 4096, causal) > factor(kernel, 16, 128, 4096, causal));
      CHECK(factor(kernel, 16, 128, 4096, causal) >= factor(kernel, 16, 64, 4096, causal));
      CHECK(factor(kernel, 64, 128, 1 << 20, causal) < 1);
    }
    CHECK(factor(kernel, 16, 128, 2048, true) < factor(kernel, 16, 128, 2048, false));
  }
  CHECK(factor(K::flash2, 64, 128, 1 << 20, true) == relative(1).epsilon(0.001));
  // FlashAttention 1 alone is slower for large heads: 83 to 97 (causal) and 110 TFLOP/s (full) of 64.
  CHECK(factor(K::flash1, 16, 128, 4096, true) == relative(0.82 * factor(K::flash1, 16, 64, 4096, true)));
  CHECK(factor(K::flash1, 16, 64, 4096, true) ==
        relative(factor(K::triton, 16, 64, 4096, true) * (4096 + 520) / (4096 + 300)));
  CHECK(factor(K::flash1, 16, 64, 4096, false) ==
        relative(factor(K::triton, 16, 64, 4096, false) * (4096 + 170) / (4096 + 60)));
  // A window of 1024 in 65536 keys is as if sequences were twice as long as the window.
  OpShape s;
  s.heads = s.kv_heads = 16;
  s.head_dim = 128;
  s.window = 1024;
  const GpuSpec gpu = load_gpu("a100-sxm-80", "test");
  CHECK(attention_shape_factor(K::flash2, s, {1, 65536}, gpu) ==
        relative(factor(K::flash2, 16, 128, 65536, true) * 2048 / (2048 + 520) * (65536 + 520) / 65536));
}

// A head's last CTA is as long as the others, whether it is full or not: one token more adds no less than its work.
TEST_CASE("attention takes no less time for a token more, where few CTAs are less than a wave, too") {
  const GpuSpec gpu = load_gpu("h100-sxm-80", "test");
  OpShape s;
  s.heads = s.kv_heads = 12;
  s.head_dim = 64;
  for (const AttentionKernel kernel : {AttentionKernel::flash2, AttentionKernel::cudnn, AttentionKernel::triton})
    for (std::int64_t length = 65; length < 1030; ++length) {
      const auto seconds = [&](std::int64_t tokens) {
        const double square = static_cast<double>(tokens) * static_cast<double>(tokens);
        return square / attention_shape_factor(kernel, s, {1, tokens}, gpu);
      };
      CAPTURE(length);
      CHECK(seconds(length) > seconds(length - 1));
    }
}

TEST_CASE("a faster host link never copies slower") {
  GpuSpec gpu;
  double before = 0;
  for (double rate = 1e9; rate < 1000e9; rate += 0.5e9) {
    gpu.host_link = BytesPerSecond(rate);
    CHECK(host_copy_rate(gpu) >= before);
    CHECK(host_copy_rate(gpu) < rate);
    before = host_copy_rate(gpu);
  }
}

TEST_CASE("attention: which kernel, and how a fit moves it") {
  ClusterSpec hopper, blackwell;
  hopper.gpu = load_gpu("h100-sxm-80", "test");
  blackwell.gpu = load_gpu("b200", "test");
  Costs h = default_costs(hopper), b = default_costs(blackwell);
  using K = AttentionKernel;
  const auto forward = [](K k, const ClusterSpec& c, const Costs& costs) {
    return attention_ceiling(k, c.gpu, costs).forward;
  };
  CHECK(forward(K::sdpa, hopper, h) == forward(K::cudnn, hopper, h));
  CHECK(forward(K::sdpa, blackwell, b) == forward(K::cudnn, blackwell, b));
  CHECK(forward(K::sdpa_before_2_11, hopper, h) == forward(K::flash2, hopper, h));
  CHECK(forward(K::sdpa_before_2_11, blackwell, b) == forward(K::cudnn, blackwell, b));
  ClusterSpec ampere, desktop = blackwell;
  ampere.gpu = load_gpu("a100-sxm-80", "test");
  desktop.gpu.compute_capability = 120;
  for (const K k : {K::sdpa, K::sdpa_before_2_11}) {
    CHECK(forward(k, ampere, default_costs(ampere)) == default_costs(ampere).attention_forward_efficiency);
    CHECK(forward(k, desktop, b) == forward(K::flash2, desktop, b));
  }
  const auto of = [](K k, TorchVersion release, DType type = DType::bf16, std::int64_t head_dim = 128) {
    return attention_of(k, release, type, head_dim);
  };
  CHECK(of(K::sdpa, {2, 8}) == K::sdpa_before_2_11);
  CHECK(of(K::sdpa, {2, 9}) == K::sdpa);
  CHECK(of(K::sdpa, {2, 10}) == K::sdpa_before_2_11);
  CHECK(of(K::sdpa, {2, 11}) == K::sdpa);
  CHECK(of(K::sdpa, {}) == K::sdpa);
  CHECK(of(K::sdpa, {}, DType::f16, 64) == K::sdpa);
  CHECK(of(K::sdpa, {}, DType::f32) == K::flash2);
  CHECK(of(K::sdpa_before_2_11, {}, DType::f32) == K::flash2);
  CHECK(of(K::sdpa, {}, DType::bf16, 192) == K::sdpa);
  CHECK(of(K::sdpa, {}, DType::bf16, 256) == K::flash2);
  CHECK(of(K::flash3, {2, 6}, DType::bf16, 256) == K::flash3);
  ClusterSpec own = hopper;
  own.gpu.attention = {};  // nothing said of cuDNN: not its order of sizes either
  CHECK(forward(K::sdpa, own, h) == forward(K::flash2, own, h));
  OpShape small;
  small.heads = small.kv_heads = 32, small.head_dim = 64;
  CHECK(attention_shape_factor(K::sdpa, small, {8, 4096}, own.gpu) ==
        attention_shape_factor(K::flash2, small, {8, 4096}, own.gpu));
  CHECK(forward(K::flash3, hopper, h) > forward(K::flash2, hopper, h));
  CHECK(forward(K::flash1, hopper, h) < forward(K::flash2, hopper, h));
  CHECK(forward(K::flex, hopper, h) == 0.44);
  CHECK(forward(K::flex, blackwell, b) == 0.255);
  CHECK(forward(K::flex, own, h) == forward(K::flash2, own, h));
  // Fitted constants scale every kernel of the GPU alike.
  const double before = forward(K::cudnn, hopper, h);
  h.attention_forward_efficiency *= 0.9;
  CHECK(forward(K::cudnn, hopper, h) == relative(0.9 * before));
}

TEST_CASE("attention is priced by the kernel that the plan's release has for its type, whatever model it comes from") {
  ClusterSpec hopper;
  hopper.gpu = load_gpu("h100-sxm-80", "test");
  const Costs costs = default_costs(hopper);
  ModelGraph model;
  model.trace.kinds.resize(1);
  TracedWork& traced = model.trace.kinds[0].forward.work;
  traced.attention = TracedAttention{
      .heads = 32, .kv_heads = 32, .head_dim = 128, .queries = 8192, .keys = 8192, .causal = true, .bytes = {}};
  Op op;
  op.kind = OpKind::attention;
  op.shape.heads = op.shape.kv_heads = 32, op.shape.head_dim = 128, op.shape.causal = true;
  const auto seconds_of = [&](std::string_view implementation, TorchVersion release, DType type, bool of_trace) {
    ShardingPlan plan;
    plan.seq_len = 8192, plan.param_dtype = type, plan.torch = release;
    const Implementation& i = find_implementation(implementation, false, "test");
    const CostContext context{model, plan, i, hopper, costs};
    Op asked = op;
    if (of_trace) asked.kind = OpKind::opaque, asked.shape.traced = 0;
    return (of_trace ? traced_demand(asked, Direction::forward, 2, context)
                     : kernel_demand(asked, Direction::forward, 2, context))
        .alone.count();
  };
  for (const bool of_trace : {false, true}) {
    CAPTURE(of_trace);
    const double today = seconds_of("torchtitan", {}, DType::bf16, of_trace),
                 before = seconds_of("torchtitan", {2, 10}, DType::bf16, of_trace);
    CHECK(before / today == relative(0.64 / 0.39).epsilon(0.01));  // the ceilings of models/gpus/h100-sxm-80.json
    CHECK(seconds_of("torchtitan", {2, 9}, DType::bf16, of_trace) == today);
    CHECK(seconds_of("torchtitan", {}, DType::f32, of_trace) ==
          seconds_of("torchtitan", {2, 10}, DType::f32, of_trace));
  }
  CHECK(seconds_of("torchtitan-2024", {}, DType::bf16, false) > 1.3 * seconds_of("hf", {}, DType::bf16, false));
}

TEST_CASE("attention: cuDNN 9.19 on H200, forward and backward, within 15 % of what its benchmark files say") {
  // cudnn-frontend, benchmark/sdpa_benchmark_training: 64 query heads, 8 of keys, size 128, bf16; TFLOP/s, half of the
  // square where causal, 2.5 times forward's flops in backward.
  struct Row {
    std::int64_t length;
    double forward_causal, backward_causal, forward_full, backward_full;
  };
  ClusterSpec cluster;
  cluster.gpu = load_gpu("h200-sxm", "test");
  const Costs costs = default_costs(cluster);
  const double peak = 989e12;
  for (const Row& r : {Row{2048, 484, 370, 633, 504}, Row{4096, 591, 474, 671, 560}, Row{8192, 644, 541, 691, 594},
                       Row{16384, 673, 579, 702, 612}}) {
    CAPTURE(r.length);
    const auto reached = [&](Direction direction, bool causal) {
      OpShape s;
      s.heads = 64, s.kv_heads = 8, s.head_dim = 128, s.causal = causal;
      return 1 /
             attention_arithmetic(AttentionKernel::cudnn, direction, 1e12, peak, s, {1, r.length}, cluster.gpu, costs);
    };
    CHECK(reached(Direction::forward, true) == relative(r.forward_causal).epsilon(0.15));
    CHECK(reached(Direction::backward, true) == relative(r.backward_causal).epsilon(0.15));
    CHECK(reached(Direction::forward, false) == relative(r.forward_full).epsilon(0.15));
    CHECK(reached(Direction::backward, false) == relative(r.backward_full).epsilon(0.15));
  }
}

TEST_CASE(
    "attention with its scores written out: two products over the whole square, four in backward, at the products' "
    "rate") {
  ModelGraph model;
  ShardingPlan plan;
  plan.param_dtype = DType::bf16;
  plan.seq_len = 4096;
  const ClusterSpec cluster = load_cluster("dgx-a100-80");
  const Costs costs = default_costs(cluster);
  const CostContext context{model, plan, find_implementation("hf-eager-attention", false, "test"), cluster, costs};
  Op op;
  op.kind = OpKind::attention;
  op.shape.heads = op.shape.kv_heads = 16;
  op.shape.head_dim = 128;
  op.shape.causal = true;
  const double product = 2.0 * 4096 * 4096 * 128 * 16, rate = 312e12 * 0.87 * 0.96;
  const auto arithmetic = [&](Direction direction) {
    const Demand d = kernel_demand(op, direction, 1, context);
    return d.use[static_cast<std::size_t>(Resource::compute)] * d.alone.count();
  };
  CHECK(arithmetic(Direction::forward) == relative(2 * product / rate));
  CHECK(arithmetic(Direction::backward) == relative(4 * product / rate));
}

TEST_CASE("attention: what its copies move is not hidden by its kernel") {
  ModelGraph model;
  ShardingPlan plan;
  plan.param_dtype = DType::bf16;
  plan.seq_len = 2048;
  ClusterSpec cluster = load_cluster("dgx-a100-80");
  const Costs costs = default_costs(cluster);
  Op op;
  op.kind = OpKind::attention;
  op.shape.heads = op.shape.kv_heads = 16;
  op.shape.head_dim = 64;
  op.shape.causal = true;
  Implementation plain = find_implementation("foundry", false, "test"), padded = plain;
  const auto attention = static_cast<std::size_t>(OpKind::attention);
  padded.rules[attention] = foundry_2023_01_implementation().rules[attention];
  plain.rules[attention] = [](const Op& o, const Workload& w) {  // the same kernel, on rows as they lie
    OpFacts f = find_implementation("foundry", false, "test").rules[static_cast<std::size_t>(OpKind::attention)](o, w);
    f.attention = AttentionKernel::flash1;
    return f;
  };
  const auto seconds = [&](const Implementation& i, Direction d) {
    return kernel_demand(op, d, 4, {model, plan, i, cluster, costs}).alone.count();
  };
  // 18 and 22 bytes for each of 4 * 2048 * 1024 elements, and the launches of what is beside the kernel. Of them 16 are
  // moved one element at a time, four elements of q, k, v and the result: 155 G/s on 132 multiprocessors.
  const double elements = 4.0 * 2048 * 1024, memory = 2.039e12 * 0.82, launch = costs.kernel_overhead.count();
  const double one_by_one = 4 * elements / (155e9 * 108 / 132);
  CHECK(seconds(padded, Direction::forward) - seconds(plain, Direction::forward) ==
        relative(2 * elements / memory + one_by_one + 11 * launch));
  CHECK(seconds(padded, Direction::backward) - seconds(plain, Direction::backward) ==
        relative(6 * elements / memory + one_by_one + 3 * launch));
  cluster.gpu.sms = 1000;  // so many that memory is what they wait for
  CHECK(seconds(padded, Direction::forward) - seconds(plain, Direction::forward) ==
        relative(18 * elements / memory + 11 * launch));
  CHECK(seconds(padded, Direction::backward) - seconds(plain, Direction::backward) ==
        relative(22 * elements / memory + 3 * launch));
}

TEST_CASE("experts: so many products of their slots each; one expert is a linear layer") {
  ModelGraph model;
  ShardingPlan plan;
  plan.param_dtype = DType::bf16;
  plan.seq_len = 4096;
  const ClusterSpec cluster = load_cluster("dgx-h100");
  const Costs costs = default_costs(cluster);
  const CostContext context{model, plan, native_implementation(), cluster, costs};
  const auto op = [](OpKind kind, Experts e) {
    return Op{kind, 0, {}, {}, {}, {.in = 4096, .out = 14336, .experts = e}};
  };
  const auto seconds = [&](const Op& o, Direction d) { return kernel_demand(o, d, 1, context).alone.count(); };
  for (const Direction d : {Direction::forward, Direction::backward}) {
    const double linear = seconds(op(OpKind::linear, {}), d);
    CHECK(seconds(op(OpKind::expert_linear, {.count = 1, .top_k = 1}), d) == relative(linear));
    // 8 experts, 2 per token: twice the rows, in eight products of 1024 rows: never quicker than twice, and not by far
    // slower.
    const double of_eight = seconds(op(OpKind::expert_linear, {.count = 8, .top_k = 2}), d);
    CHECK(of_eight >= 1.9 * linear);
    CHECK(of_eight <= 2.6 * linear);
    // Room for every token at every expert: four times the work.
    CHECK(seconds(op(OpKind::expert_linear, {.count = 8, .top_k = 2, .capacity_factor = 4}), d) ==
          relative(4 * of_eight).epsilon(0.1));
  }
  // Calibrated, as on the host: one product after the other, by the curves.
  Costs measured = costs;
  measured.matmul_curve[0] = measured.matmul_curve[1] = measured.matmul_curve[2] = {{1e6, 1e-6}, {1e13, 10.0}};
  const CostContext on_host{model, plan, native_implementation(), cluster, measured};
  Op one = op(OpKind::linear, {});
  ShardingPlan quarter = plan;
  quarter.seq_len = 1024;
  const CostContext of_slots{model, quarter, native_implementation(), cluster, measured};
  for (const Direction d : {Direction::forward, Direction::backward})
    CHECK(kernel_demand(op(OpKind::expert_linear, {.count = 8, .top_k = 2}), d, 1, on_host).alone.count() ==
          relative(8 * kernel_demand(one, d, 1, of_slots).alone.count()));
}

TEST_CASE(
    "latent attention has cuDNN's price where PyTorch takes cuDNN, else that of the first flash; torchtitan's, flex") {
  struct Case {
    const char* cluster;
    TorchVersion torch;
    AttentionKernel kernel;
    const char* implementation = "hf";
  };
  const ModelGraph model;
  const Op op{OpKind::attention,
              0,
              {},
              {},
              {},
              {.heads = 32, .kv_heads = 32, .head_dim = 192, .rotated = 64, .v_head_dim = 128, .by_head = true}};
  for (const Case& c :
       {Case{"dgx-h100", {}, AttentionKernel::cudnn}, Case{"dgx-h100", {2, 10}, AttentionKernel::triton},
        Case{"dgx-a100-80", {}, AttentionKernel::triton}, Case{"dgx-h100", {}, AttentionKernel::flex, "torchtitan"},
        Case{"dgx-a100-80", {}, AttentionKernel::flex, "torchtitan-2026-06"}}) {
    CAPTURE(c.cluster);
    const Implementation& stack = find_implementation(c.implementation, false, "test");
    ShardingPlan plan;
    plan.param_dtype = DType::bf16;
    plan.seq_len = 8192;
    plan.torch = c.torch;
    const ClusterSpec cluster = load_cluster(c.cluster);
    const Costs costs = default_costs(cluster);
    const Workload w{1, plan.seq_len, 2};
    const OpFacts f = facts(stack, op, w);
    const double memory = memory_rate(cluster, costs), peak = matrix_peak(DType::bf16, cluster.gpu);
    for (const Direction d : {Direction::forward, Direction::backward}) {
      const bool forward = d == Direction::forward;
      const double flops = forward ? forward_flops(op, w) : backward_flops(op, w);
      const double copied = static_cast<double>(forward ? f.forward_copied_bytes : f.backward_copied_bytes);
      CHECK(kernel_demand(op, d, 1, {model, plan, stack, cluster, costs}).alone.count() ==
            relative(attention_arithmetic(c.kernel, d, flops, peak, op.shape, w, cluster.gpu, costs) + copied / memory +
                     (forward ? f.forward_launches : f.backward_launches) * costs.kernel_overhead.count()));
    }
  }
}

TEST_CASE("a router's product is one in fp32, and beside it are its casts") {
  const ModelGraph model;
  ShardingPlan plan;
  plan.param_dtype = DType::bf16;
  plan.seq_len = 8192;
  const ClusterSpec cluster = load_cluster("dgx-h100");
  const Costs costs = default_costs(cluster);
  const Implementation& hf = hf_implementation(false);
  Op op{OpKind::linear, 0, {}, {}, {}, {.in = 8192, .out = 8192}};
  const double narrow = kernel_demand(op, Direction::forward, 1, {model, plan, hf, cluster, costs}).alone.count();
  op.shape.in_fp32 = true;
  const double wide = kernel_demand(op, Direction::forward, 1, {model, plan, hf, cluster, costs}).alone.count();
  // Two casts of 8192 x 8192 numbers from 2 to 4 bytes.
  const double casts = 2 * 8192.0 * 8192 * 6 / memory_rate(cluster, costs);
  CHECK((wide - casts) / narrow ==
        relative(matrix_peak(DType::bf16, cluster.gpu) / matrix_peak(DType::f32, cluster.gpu)).epsilon(0.05));
}

TEST_CASE("metrics behind backward take the time of their bytes and launches, and the host issues each") {
  const ModelGraph model;
  ShardingPlan plan;
  plan.param_dtype = DType::bf16;
  plan.seq_len = 2048;
  const ClusterSpec cluster = load_cluster("dgx-h100");
  const Costs costs = default_costs(cluster);
  Op loss{OpKind::cross_entropy, 0, {}, {}, {}, {.vocab = 50368}};
  const Demand d = metrics_demand(loss, 2, {model, plan, foundry_implementation(false), cluster, costs});
  // Two metrics of 4096 rows, 8 bytes a logit of log-softmax and 6 of its cast; 7 kernels each, and 3 that shift
  // labels.
  CHECK(d.alone.count() == relative(2 * 4096.0 * 50368 * (8 + 6) / memory_rate(cluster, costs) + 17 * 2e-6));
  CHECK(d.launches == 17);
  CHECK(d.host.count() == relative((costs.host_per_operation.count() + 17 * 12e-6) * costs.host_scale));
  CHECK(!d.host_waits);
  CHECK(d.flops.count() == 0);
  CHECK(metrics_demand(loss, 2, {model, plan, native_implementation(), cluster, costs}).launches == 0);
}
