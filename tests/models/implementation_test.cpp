// Implementations: what each op keeps and takes, against PyTorch's autograd (tests/torch/record_saved.py) and closed
// forms.
#include "models/implementation.h"
#include "models/implementations/prime_rl.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/input/error.h"

using namespace fsdp;
using nlohmann::json;

namespace {

OpKind kind_named(std::string_view wanted) {
  for (int k = 0; k < kOpKinds; ++k) {
    if (name(static_cast<OpKind>(k)) == wanted) return static_cast<OpKind>(k);
  }
  FAIL("unknown op " << wanted);
  return {};
}

// Sum over the ops of what forward leaves behind for backward; a tensor kept by several ops counts once.
std::int64_t saved_bytes(const Implementation& implementation, const ModelGraph& m, const Workload& w) {
  std::set<std::int32_t> kept;
  std::int64_t bytes = 0;
  for (const Op& op : m.ops) {
    const OpFacts f = facts(implementation, op, w);
    bytes += f.saved_extra_bytes;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if ((f.saved_inputs >> i & 1) != 0) kept.insert(op.inputs[i]);
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      if ((f.saved_outputs >> i & 1) != 0) kept.insert(op.outputs[i]);
    }
  }
  for (std::int32_t t : kept) {
    const Tensor& tensor = m.tensors[static_cast<std::size_t>(t)];
    bytes += elements(tensor, w) * (tensor.kind == TensorKind::ids ? 8 : w.element_bytes);
  }
  return bytes;
}

}  // namespace

// What a kernel takes inside itself, which a recording of operators does not see.
std::int64_t inside_kernels(const Op& op, const Workload& w) {
  if (op.kind == OpKind::embedding) return w.tokens() * (4 * op.shape.width + 32);
  if (op.kind != OpKind::attention) return 0;
  const std::int64_t delta_and_dq = w.tokens() * op.shape.heads * 4 * (1 + op.shape.head_dim);
  return delta_and_dq;
}

// Attention that is multiplied out, with q, k and v of which some get no gradient ("frozen qv"). A recording takes off
// the gradients of all three, made or not; `all`: facts where all are made.
void check_frozen(const OpFacts& all, const Implementation& i, Op op, const Workload& w, const json& row) {
  const std::string label = row["op"], names = label.substr(label.rfind(' ') + 1);
  const auto frozen = [&](char input) { return names.find(input) != std::string::npos; };
  ModelGraph model;
  model.tensors.resize(4);
  for (std::size_t k = 0; k < 3; ++k) model.tensors[k].requires_grad = !frozen("qkv"[k]);
  op.inputs = {0, 1, 2}, op.outputs = {3};
  const OpFacts f = facts(i, op, w, model);
  const std::int64_t infinite = w.tokens() * op.shape.heads * (w.seq_len + 1);  // inside of _safe_softmax
  const std::int64_t q = w.tokens() * op.shape.heads * op.shape.head_dim * w.element_bytes,
                     kv = q / op.shape.heads * op.shape.kv_heads,
                     not_made = (frozen('q') ? q : 0) + (frozen('k') ? kv : 0) + (frozen('v') ? kv : 0);
  CHECK(f.saved_extra_bytes == row["saved_extra_bytes"].get<std::int64_t>());
  CHECK(f.forward_scratch_bytes == row["forward_scratch_bytes"].get<std::int64_t>() + infinite);
  CHECK(f.backward_scratch_bytes == row["backward_scratch_bytes"].get<std::int64_t>() + not_made);
  CHECK(f != all);
}

// A router's product and its choice of 4 of 32 experts, recorded as one, which returns the weights alone. `passing`:
// what the recording counts as saved beside both, which goes when the router returns. Gives the choice's.
OpFacts check_router(const Implementation& i, const Workload& w, const json& row, const Op& product, OpShape shape,
                     std::int64_t passing) {
  Op choice;
  choice.kind = OpKind::moe_route;
  choice.shape = std::move(shape);
  choice.shape.experts = {.count = 32, .top_k = 4};
  const OpFacts a = facts(i, product, w), b = facts(i, choice, w);
  CHECK(a.forward_launches + b.forward_launches == row["forward_kernels"].get<int>());
  CHECK(a.backward_launches + b.backward_launches == row["backward_kernels"].get<int>());
  const std::int64_t choices = w.tokens() * choice.shape.experts.top_k * 8;  // indices: another output
  CHECK(a.saved_extra_bytes + b.saved_extra_bytes + choices + passing == row["saved_extra_bytes"].get<std::int64_t>());
  return b;
}

void check_router(const Workload& w, const json& row, const std::string& label, std::int64_t width) {
  const Implementation& hf = hf_implementation(false);
  Op product;
  product.kind = OpKind::linear;
  product.params = {0};
  product.shape = {.in = width, .out = 32, .in_fp32 = true};
  const std::int64_t tokens = w.tokens();
  if (label == "router") {  // DeepSeek-V3's: indices of both choices of groups, and a mask
    check_router(hf, w, row, product,
                 {.groups = 8, .renormalised = true, .sigmoid = true, .chosen_groups = 3, .wide_weight = true},
                 tokens * (8 * 2 * 8 + 3 * 8 + 32));
  } else if (label == "router_of_chosen") {  // gpt-oss's, with a bias
    product.params = {0, 1};
    product.shape.in_fp32 = false;
    CHECK(check_router(hf, w, row, product, {.renormalised = true, .of_chosen = true}, 0).saved_outputs == 0b11);
  } else {  // DeepSeek-V2's; in groups: where the best of each is, and the choice of groups
    const bool groups = label == "router_in_fp32, groups";
    const OpFacts f = check_router(
        hf, w, row, product,
        {.groups = groups ? 8 : 1, .chosen_groups = groups ? 3 : 1, .in_fp32 = true, .factor = 16, .wide_weight = true},
        groups ? tokens * 8 * 11 : 0);
    CHECK(f.forward_scratch_bytes + tokens * 32 * 4 == row["forward_scratch_bytes"].get<std::int64_t>());  // the logits
  }
}

TEST_CASE(
    "eager stacks: what is saved, alive at the worst moment and launched is what PyTorch saves, holds and launches") {
  const json golden = json::parse(std::ifstream(FSDP_TESTS_DIR "/torch/golden/models/saved.json"));
  const json& s = golden["shapes"];
  CHECK(golden["ops"].size() >= 70);
  for (const json& row : golden["ops"]) {
    CAPTURE(row.dump());
    const std::string label = row["op"];
    const auto says = [&](const char* word) { return label.find(word) != std::string::npos; };
    if (label.starts_with("router")) {
      check_router({s["sequences"], s["seq_len"], row["element_bytes"]}, row, label, s["width"]);
      continue;
    }
    Op op;
    std::string kind = label;
    for (const char* word : {"linear", "attention", "gelu", "rms_norm", "rotary", "swiglu"})
      if (label.starts_with(word)) kind = word;
    op.kind = kind_named(kind);
    const bool of_packed_v = says("of_packed_v"), partial = says("partial"), two = label == "rotary_partial",
               latent = says("latent");
    const std::int64_t heads = s["heads"];
    op.params.resize(says("bias") || says("transposed") ? 2 : 1);
    const std::int64_t part = s["part"], head_dim = s["head_dim"];
    op.shape = {.in = says("linear")          ? s["width"].get<std::int64_t>()
                      : says("rotary_latent") ? s["latent"].get<std::int64_t>() + part
                      : latent                ? s["width"].get<std::int64_t>() + part
                                              : 0,
                .out = s["out"],
                .width = s["width"],
                .heads = heads,
                .kv_heads = says("grouped") || of_packed_v || label == "rotary_packed" || two
                                ? s["kv_heads"].get<std::int64_t>()
                                : heads,
                .head_dim = s["head_dim"],
                .window = says("windowed") ? 16 : 0,
                .vocab = s["vocab"],
                .packed = says("packed"),
                .tanh = says("tanh"),
                .in_fp32 = says("in_fp32"),
                .rotated = latent    ? part
                           : partial ? head_dim / 2
                                     : 0,
                .cap = says("cap") ? 50.0 : 0,
                .weight_offset = says("offset") ? 1.0 : 0,
                .wide_weight = says("wide") || says("offset"),
                .wide_angles = says("wide") || says("complex"),
                .interleaved = says("packed_partial"),
                .fast = says("fast"),
                .v_head_dim = latent && says("attention") ? s["v_dim"].get<std::int64_t>() : 0,
                .by_head = says("by_head") || says("sinks") || latent,
                .sinks = says("sinks"),
                .by_halves = says("halved"),
                .clamped = says("clamped")};
    op.inputs.resize(of_packed_v || two || says("rotary_latent") ? 2 : latent && says("attention") ? 3 : 1);
    const Implementation& i = find_implementation(row["stack"].get<std::string>(), false, "t");
    const Workload w{s["sequences"], s["seq_len"], row["element_bytes"]};
    const OpFacts f = facts(i, op, w);
    if (says("frozen")) {
      check_frozen(f, i, op, w, row);
      continue;
    }
    // q and k that were turned are one tensor of ours.
    if (of_packed_v) CHECK(int{f.saved_inputs} == row["saved_inputs"].get<int>() >> 1);
    else CHECK(int{f.saved_inputs} == row["saved_inputs"].get<int>());
    CHECK(int{f.saved_outputs} == row["saved_outputs"].get<int>());
    CHECK(f.saved_extra_bytes == row["saved_extra_bytes"].get<std::int64_t>());
    // In fp32 grouped heads have no fused kernel. _safe_softmax, one operator in the recording, is five kernels, which
    // write down which scores are minus infinity, and which rows have no other.
    const bool safe_softmax =
        f.attention == AttentionKernel::math && row["stack"] != "hf-eager-attention" && !op.shape.sinks;
    const std::int64_t infinite = safe_softmax ? w.tokens() * heads * (w.seq_len + 1) : 0;
    CHECK(f.forward_scratch_bytes == row["forward_scratch_bytes"].get<std::int64_t>() + infinite);
    const std::int64_t seen = std::max<std::int64_t>(0, row["backward_scratch_bytes"]), inside = inside_kernels(op, w);
    const bool flex = f.attention == AttentionKernel::flex;  // recorded with what its kernels take inside
    const bool flash = op.kind == OpKind::attention && f.attention != AttentionKernel::math && !flex;
    // 4 bytes: the loss's own gradient. Grouped heads: flash makes dk and dv of all heads inside, or repeat_kv's
    // backward is given them.
    // The recording has the gradient of v alone: what becomes of it is Inside.
    if (of_packed_v && flash) CHECK(f.backward_scratch_bytes >= seen + inside);
    else if (!flash)
      CHECK(std::abs(f.backward_scratch_bytes - seen - (op.kind == OpKind::embedding ? inside : 0)) <= 4);
    else if (!says("grouped")) CHECK(f.backward_scratch_bytes == seen + inside);
    else CHECK(f.backward_scratch_bytes >= seen + inside);
    const bool fused = flash || flex || op.kind == OpKind::embedding || op.kind == OpKind::layer_norm ||
                       i.name == "foundry" || (op.kind == OpKind::rms_norm && f.saved_extra_bytes < w.tokens() * 8);
    if (fused)
      CHECK(f.forward_launches + f.backward_launches >=
            row["forward_kernels"].get<int>() + row["backward_kernels"].get<int>());
    else
      CHECK(std::pair(int{f.forward_launches}, int{f.backward_launches}) ==
            std::pair(row["forward_kernels"].get<int>() + (safe_softmax ? 4 : 0), row["backward_kernels"].get<int>()));
  }
}

TEST_CASE("saved activations of one Llama block, in closed form") {
  // Two models that differ by one block; the difference is what a block saves. Widths: h hidden, q = h (heads *
  // head_dim), k kv heads * head_dim, f feed-forward; s elements bytes; T tokens.
  const auto layers = [](int n) {
    return model_from_config(
        R"({"model_type":"llama","vocab_size":64,"hidden_size":32,"intermediate_size":48,"num_attention_heads":4,
      "num_key_value_heads":2,"num_hidden_layers":)" +
            std::to_string(n) + "}",
        "c");
  };
  const Workload w{3, 8, 2};
  const std::int64_t t = 24, h = 32, k = 16, f = 48, s = 2, heads = 4;
  const auto block = [&](const Implementation& i) {
    return saved_bytes(i, layers(3), w) - saved_bytes(i, layers(2), w);
  };
  // native: norm input, normed (h each, twice: 4h), q k v (h + 2k), attention output (h), gate, up, product (3f);
  // fp32: 1/rms twice, log-sum-exp per head.
  CHECK(block(native_implementation()) == t * s * (4 * h + h + 2 * k + h + 3 * f) + t * 4 * (2 + heads));
  // torchtitan, eager: silu(gate) (f) besides; before 2026 k and v repeated to all heads instead (2h).
  CHECK(block(torchtitan_implementation(false)) == t * s * (4 * h + h + 2 * k + h + 4 * f) + t * 4 * (2 + heads));
  CHECK(block(torchtitan_implementation(true)) == t * s * (4 * h + h + 2 * k + h + 3 * f) + t * 4 * (2 + heads));
  CHECK(block(find_implementation("torchtitan-2025", true, "test")) ==
        t * s * (4 * h + h + 2 * h + h + 3 * f) + t * 4 * (2 + heads));
  // RMSNorm written out: x and the result before the weight in fp32 instead of x (2 * (8 - 2) bytes more of h per
  // token); in 2024 and in transformers the latter in bf16.
  CHECK(block(find_implementation("torchtitan-2025", false, "test")) ==
        t * s * (4 * h + h + 2 * h + h + 4 * f) + t * 12 * h + t * 4 * (2 + heads));
  CHECK(block(find_implementation("torchtitan-2024", false, "test")) ==
        t * s * (4 * h + h + 2 * h + h + 4 * f) + t * 8 * h + t * 4 * (2 + heads));
  CHECK(block(hf_implementation(false)) == t * s * (4 * h + h + 2 * k + h + 4 * f) + t * 8 * h + t * 4 * (2 + heads));
}

TEST_CASE("every implementation states plausible facts for every op of every family") {
  for (const char* model : {"tiny-llama", "qwen3-0.6b", "gpt2", "mpt-125m-bench"}) {
    const ModelGraph m = load_model(model);
    for (const Implementation* i :
         {&native_implementation(), &torchtitan_implementation(false), &torchtitan_implementation(true),
          &find_implementation("torchtitan-2025", false, "test"), &find_implementation("torchtitan-2024", true, "test"),
          &hf_implementation(false), &hf_implementation(true), &hf_eager_attention_implementation(),
          &automodel_implementation(), &foundry_implementation(false), &foundry_implementation(true)}) {
      for (const Op& op : m.ops) {
        CAPTURE(model);
        CAPTURE(name(op.kind));
        const OpFacts one = facts(*i, op, {1, 64, 2}), two = facts(*i, op, {2, 64, 2});
        CHECK((one.saved_inputs >> op.inputs.size()) == 0);
        CHECK((one.saved_outputs >> op.outputs.size()) == 0);
        CHECK(one.forward_traffic_bytes > 0);
        CHECK(one.forward_scratch_bytes <= two.forward_scratch_bytes);  // more tokens never need less
        CHECK(one.backward_scratch_bytes <= two.backward_scratch_bytes);
        CHECK(two.saved_extra_bytes == 2 * one.saved_extra_bytes);  // per token
        CHECK(one.forward_traffic_bytes <= two.forward_traffic_bytes);
        CHECK(one.backward_traffic_bytes <= two.backward_traffic_bytes);
      }
    }
  }
}

TEST_CASE("compiling never saves, launches or moves more") {
  for (const char* model : {"tiny-llama", "gpt2"}) {
    for (const Op& op : load_model(model).ops) {
      CAPTURE(name(op.kind));
      const OpFacts eager = facts(torchtitan_implementation(false), op, {1, 64, 2}),
                    fused = facts(torchtitan_implementation(true), op, {1, 64, 2});
      CHECK(fused.forward_launches <= eager.forward_launches);
      CHECK(fused.backward_launches <= eager.backward_launches);
      CHECK(fused.saved_extra_bytes <= eager.saved_extra_bytes);
      CHECK(fused.forward_scratch_bytes <= eager.forward_scratch_bytes);
      CHECK(fused.forward_traffic_bytes <=
            eager.forward_traffic_bytes + 8 * 64);  // + maximum and log-sum of the fused loss
      CHECK(fused.backward_traffic_bytes <= eager.backward_traffic_bytes);
    }
  }
}

TEST_CASE("a loss reads its logits as often as its kernels do") {
  // Bytes per logit. PyTorch's, in fp32 of bf16 logits: a cast 2 + 4; log-softmax, whose kernel takes three passes over
  // long rows (SoftMax.cu, cunn_SoftMaxForward), 3 * 4 + 4; backward a fill 4, log-softmax 3 * 4 + 4 (the gradient
  // twice, the output once), a cast 4 + 2. Rows of up to 48 KB are in shared memory after the first pass
  // (cunn_SoftMaxForwardSmem).
  Op op;
  op.kind = OpKind::cross_entropy;
  const Workload w{3, 100, 2};
  const auto per_logit = [&](std::int64_t bytes, std::int64_t vocab) { return bytes / (300 * vocab); };
  const Implementation& titan = find_implementation("torchtitan-2024", false, "test");
  op.shape.vocab = 50368;
  CHECK(per_logit(facts(titan, op, w).forward_traffic_bytes, 50368) == 22);
  CHECK(per_logit(facts(titan, op, w).backward_traffic_bytes, 50368) == 26);
  op.shape.vocab = 12288;
  CHECK(per_logit(facts(titan, op, w).forward_traffic_bytes, 12288) == 14);
  CHECK(per_logit(facts(titan, op, w).backward_traffic_bytes, 12288) == 22);

  // MPT's: flash-attn's xentropy reads bf16 logits twice forward, once backward where it writes as many
  // (xentropy_kernel.cu). Launches: the kernel and a sum; the loss's own backward, its kernel and a scaling. Then
  // Composer's two metrics, each a log-softmax in bf16 and a cast of its result: the labels shifted (3), and per metric
  // log-softmax, cast, sum over labels, labels compared and counted, two additions.
  op.shape.vocab = 50368;
  for (const bool compiled : {false, true}) {
    const OpFacts f = facts(foundry_implementation(compiled), op, w);
    CHECK(per_logit(f.forward_traffic_bytes, 50368) == 2 * 2);
    CHECK(per_logit(f.backward_traffic_bytes, 50368) == 2 * 2);
    CHECK(per_logit(f.after_backward.traffic_bytes, 50368) == 2 * (3 * 2 + 2 + 2 + 4));
    CHECK(f.forward_launches == 2);
    CHECK(f.backward_launches == 3);
    CHECK(f.after_backward.launches == 3 + 2 * 7);
    CHECK(f.saved_extra_bytes == 300 * 4);  // metrics keep nothing
  }
}

TEST_CASE("a loss in chunks: torch.chunk makes the last one smaller") {
  Op op;
  op.kind = OpKind::cross_entropy;
  op.shape.vocab = 509;
  const auto logits = [&](std::int64_t bytes) { return bytes / (2 * 509.0); };  // tokens of two sequences
  const Implementation& hf = find_implementation("hf", false, "test");
  const auto of = [&](std::int64_t tokens, std::int64_t chunks) { return facts(hf, op, {2, tokens, 2, chunks}); };
  // 22, 22 and 20 tokens. Forward: all are saved but for what comes after, and one is cast to fp32. Backward, in bytes
  // per logit beside the saved ones and the 2 of the result: the last one's two gradients, 8.
  CHECK(logits(of(64, 3).forward_scratch_bytes) == 4 * 20);
  CHECK(logits(of(64, 3).backward_scratch_bytes) == 8 * 20 - 2 * 64);
  // 3, 3, 3 and 1: the third is cast when the last is not saved yet; backward takes it when the last is done.
  CHECK(logits(of(10, 4).forward_scratch_bytes) == 4 * 2);
  CHECK(logits(of(10, 4).backward_scratch_bytes) == 8 * 3 - 2 * 1 - 2 * 10);
  CHECK(facts(hf, op, {2, 10, 4, 4}).forward_scratch_bytes == 4 * 2 * 2 * 509);  // in fp32 a copy of the chunk
  CHECK(facts(hf, op, {1, 10, 4, 4}).forward_scratch_bytes == 0);                // a view of it
  CHECK(of(6, 4).forward_launches == of(6, 3).forward_launches);                 // of 2 tokens each: three
}

TEST_CASE("MosaicGPT before March 2023: a residual stream in fp32") {
  // Bytes per element over those of a stream in bf16. Autocast: nn.LayerNorm runs in fp32, so that it reads and writes
  // twice as much and a linear layer casts its result, 4 + 2; parameters are fp32 and cast per use. Additions read 4 +
  // 2 and write 4.
  const Implementation &old = foundry_2023_01_implementation(), &now = foundry_implementation(false);
  const Workload w{2, 64, 2};
  const std::int64_t n = 128 * 48;
  Op op;
  op.shape = {.in = 48, .out = 96, .width = 48, .vocab = 50257};
  op.params = {0, 1};
  const auto forward = [&](OpKind k) {
    op.kind = k;
    return facts(old, op, w).forward_traffic_bytes - facts(now, op, w).forward_traffic_bytes;
  };
  const auto backward = [&](OpKind k) {
    op.kind = k;
    return facts(old, op, w).backward_traffic_bytes - facts(now, op, w).backward_traffic_bytes;
  };
  CHECK(forward(OpKind::layer_norm) == n * (2 * 2 + 6));
  CHECK(backward(OpKind::layer_norm) == n * (5 * 2 + 6));
  CHECK(forward(OpKind::add) == n * ((4 + 2 + 4) - 3 * 2));
  CHECK(backward(OpKind::add) == n * 6);  // sums of gradients are operations of their own
  CHECK(forward(OpKind::linear) == (48 * 96 + 96) * 6);
  CHECK(backward(OpKind::linear) == (48 * 96 + 96) * 6);
  CHECK(forward(OpKind::embedding) == n * (2 + 2));
  op.kind = OpKind::cross_entropy;
  // A log-softmax reads three times and writes once in bf16, its result is cast to fp32; backward fills zeros, casts
  // them, and reads three times and writes once.
  CHECK(facts(old, op, w).forward_traffic_bytes == 128 * 50257 * (8 + 6));
  CHECK(facts(old, op, w).backward_traffic_bytes == 128 * 50257 * (4 + 6 + 8));
  CHECK(facts(old, op, w).after_backward.traffic_bytes == 128 * 50257 * 2 * (8 + 6));
  // q, k and v gathered and scattered into zeros, the result put into zeros and its gradient gathered.
  op.kind = OpKind::attention;
  op.shape.heads = op.shape.kv_heads = 2;
  op.shape.head_dim = 48;
  const OpFacts padded = facts(old, op, w);
  CHECK(padded.forward_copied_bytes == 128 * 2 * 96 * (3 * 2 + 3));
  CHECK(padded.backward_copied_bytes == 128 * 2 * 96 * (2 + 3 * 3));
  CHECK(forward(OpKind::attention) == padded.forward_copied_bytes);
  CHECK(backward(OpKind::attention) == padded.backward_copied_bytes);
  CHECK(padded.forward_indexed == 128 * 4 * 96);
  CHECK(padded.backward_indexed == 128 * 4 * 96);
  CHECK(padded.forward_reads == 2);
  CHECK(facts(now, op, w).forward_reads == 0);
  CHECK(now.recompute_stops_early);  // PyTorch 2.1 and later
  CHECK_FALSE(old.recompute_stops_early);
}

TEST_CASE("torchtitan's since June 2026: k is kept with q and v, which one product makes") {
  const Implementation& fused = find_implementation("torchtitan-2026-06", true, "test");
  const Workload w{2, 128, 2};
  for (const char* name : {"llama3-8b", "qwen3-8b"}) {
    const ModelGraph model = load_model(name);
    std::int64_t matmuls = 0, keys = 0, others = 0;
    for (const Op& op : model.ops) {
      if (op.kind == OpKind::linear) ++matmuls;
      if (matmuls == 8) break;  // one block
      const std::int64_t bytes = fused.keeps_beside(op, w, model, matmuls);
      const bool key = model.modules[static_cast<std::size_t>(op.module)].name.ends_with("k_proj");
      (key ? keys : others) += bytes;
    }
    CHECK(keys == 2 * 128 * 1024 * 2);
    CHECK(others == 0);
  }
  CHECK((torchtitan_implementation(true).keeps_beside == nullptr));
}

TEST_CASE("which kernel attention was, what selective checkpointing kept of it, and where memory came from") {
  const auto of = [](std::string_view name) -> const Implementation& {
    return find_implementation(name, true, "test");
  };
  Op attention;
  attention.kind = OpKind::attention;
  const auto keeps = [&](std::string_view name) { return of(name).keeps_selectively(attention, 1); };
  for (const char* name : {"torchtitan", "torchtitan-2025-12", "torchtitan-2025-10", "torchtitan-2025-blackwell",
                           "torchtitan-2024-07-hopper", "hf"})
    CHECK_MESSAGE(of(name).sdpa == AttentionKernel::sdpa, name);
  for (const char* name : {"torchtitan-2025-09", "torchtitan-2025", "torchtitan-2024", "torchtitan-2024-04",
                           "torchtitan-2024-05", "torchtitan-2024-07", "torchtitan-2024-03"}) {
    CHECK_MESSAGE(of(name).sdpa == AttentionKernel::sdpa_before_2_11, name);
    CHECK_MESSAGE(keeps(name), name);
  }
  CHECK(keeps("torchtitan"));
  CHECK(keeps("torchtitan-2025-12"));
  CHECK_FALSE(keeps("torchtitan-2025-10"));
  CHECK_FALSE(keeps("torchtitan-2025-blackwell"));
  CHECK_FALSE(keeps("torchtitan-2024-07-hopper"));
  for (const char* name : {"torchtitan-2024-04", "torchtitan-2024-05", "torchtitan-2024-07",
                           "torchtitan-2024-07-hopper", "torchtitan-2024-03"})
    CHECK_MESSAGE(of(name).memory == MemorySource::caching, name);
  CHECK(of("torchtitan-2024").memory == MemorySource::caching_expandable);
  CHECK(native_implementation().sdpa == AttentionKernel::flash2);
  CHECK(native_cuda_implementation().sdpa == AttentionKernel::flash2);
  CHECK(before_torch_2_11(of("hf")).sdpa == AttentionKernel::sdpa_before_2_11);
  CHECK(digest(before_torch_2_11(of("torchtitan-2025"))) == digest(of("torchtitan-2025")));
}

// What native says of an operation, with 1 in a field.
template <std::int64_t OpFacts::*kField>
OpFacts with_one(const Op& op, const Workload& w) {
  OpFacts f = facts(native_implementation(), op, w);
  f.*kField = 1;
  return f;
}

OpFacts with_metrics(const Op& op, const Workload& w) {
  OpFacts f = facts(native_implementation(), op, w);
  f.after_backward.launches = 1;
  return f;
}

TEST_CASE("transformers' Trainer before PyTorch 2.8 steps by foreach, whatever else is of its time") {
  for (const Implementation& i :
       {hf_implementation(false), hf_implementation(true), hf_eager_attention_implementation(),
        before_torch_2_11(hf_implementation(false)), keeping_float8_casts(hf_implementation(true), true),
        keeping_float8_casts(before_torch_2_11(hf_implementation(true)), false)}) {
    CHECK_FALSE(i.optimizer_temps_at_once);
    const Implementation then = by_foreach(i);
    CHECK(then.optimizer_temps_at_once);
    CHECK(then.optimizer_temp_bytes_per_element == 4);
    CHECK(then.sdpa == i.sdpa);
    CHECK(then.float8_copies == i.float8_copies);
    CHECK(then.optimizer_traffic > i.optimizer_traffic);
  }
}

// Latent attention of torchtitan: eager its function holds the keys that it has joined until it returns.
TEST_CASE("compiled latent attention has no variables, and keeps as much") {
  Op op;
  op.kind = OpKind::attention;
  op.inputs = {0, 1, 2}, op.outputs = {3};
  op.shape = {.heads = 4, .kv_heads = 4, .head_dim = 24, .rotated = 8, .v_head_dim = 16};
  const Workload w{2, 64, 2};
  for (const char* name : {"torchtitan", "torchtitan-2026-06"}) {
    const OpFacts eager = facts(find_implementation(name, false, "test"), op, w),
                  compiled = facts(find_implementation(name, true, "test"), op, w);
    CHECK(eager.variable_bytes == 2 * 64 * 4 * 24 * 2);
    CHECK(compiled.variable_bytes == 0);
    CHECK(compiled.saved_extra_bytes == eager.saved_extra_bytes);
  }
  CHECK_THROWS_AS((void)facts(find_implementation("torchtitan-2025-10", false, "test"), op, w), InputError);
}

TEST_CASE("implementations are found by name, and have different digests") {
  CHECK(&find_implementation("native", false, "t") == &native_implementation());
  CHECK(&find_implementation("torchtitan", true, "t") == &torchtitan_implementation(true));
  CHECK_THROWS_WITH((void)find_implementation("native", true, "--compile"),
                    "--compile: \"native\" has no compiled form; leave out --compile");
  CHECK_THROWS_WITH((void)find_implementation("torchtitn", false, "--implementation"),
                    "--implementation: \"torchtitn\" is no implementation; did you mean \"torchtitan\"?");
  CHECK(&find_implementation("native-cuda", false, "t") == &native_cuda_implementation());
  CHECK(digest(native_implementation()) != digest(native_cuda_implementation()));
  CHECK(digest(native_implementation()) != digest(torchtitan_implementation(false)));
  CHECK(digest(torchtitan_implementation(true)) != digest(torchtitan_implementation(false)));
  Implementation changed = native_implementation();
  changed.rules[static_cast<std::size_t>(OpKind::gelu)] = changed.rules[static_cast<std::size_t>(OpKind::add)];
  CHECK(digest(changed) != digest(native_implementation()));
  for (const OpRule rule : {with_one<&OpFacts::forward_scattered>, with_one<&OpFacts::backward_scattered>,
                            with_one<&OpFacts::forward_indexed>, with_one<&OpFacts::backward_indexed>}) {
    changed = native_implementation();
    changed.rules[static_cast<std::size_t>(OpKind::add)] = rule;
    CHECK(digest(changed) != digest(native_implementation()));
  }
  changed = native_implementation();
  changed.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = with_metrics;
  CHECK(digest(changed) != digest(native_implementation()));
  changed = native_implementation();
  changed.loop_holds = LoopHolds::logits;
  CHECK(digest(changed) != digest(native_implementation()));
}

TEST_CASE("experts: known facts are plausible, unknown ones refused with the names of those who know") {
  const ModelGraph m = load_model("mixtral-8x7b");
  const auto of = [](const char* name, bool compiled) { return &find_implementation(name, compiled, "i"); };
  for (const Implementation* i :
       {&native_implementation(), &native_cuda_implementation(), &hf_implementation(false), of("torchtitan", false),
        of("torchtitan", true), of("torchtitan-2025-12", false), of("torchtitan-2025-10", false)})
    for (const Op& op : m.ops) {
      if (op.shape.experts.count == 0) continue;
      CAPTURE(implementation_text(*i));
      CAPTURE(name(op.kind));
      const OpFacts one = facts(*i, op, {1, 64, 2}), two = facts(*i, op, {2, 64, 2});
      CHECK((one.saved_inputs >> op.inputs.size()) == 0);
      CHECK((one.saved_outputs >> op.outputs.size()) == 0);
      CHECK(one.forward_traffic_bytes > 0);
      CHECK(one.forward_traffic_bytes <= two.forward_traffic_bytes);
      CHECK(one.backward_traffic_bytes <= two.backward_traffic_bytes);
      const bool offsets = i == &hf_implementation(false) && op.kind == OpKind::moe_dispatch;
      CHECK(two.saved_extra_bytes == 2 * one.saved_extra_bytes - (offsets ? 4 * op.shape.experts.count : 0));
    }
  const auto refusal_of = [](const Implementation& i, const ModelGraph& model) -> std::string {
    try {
      for (const Op& op : model.ops) static_cast<void>(facts(i, op, {1, 64, 2}));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal_of(torchtitan_implementation(false), m) == "");
  CHECK(refusal_of(torchtitan_implementation(true), m) == "");
  CHECK(refusal_of(*of("torchtitan-2024", false), m)
            .find("torchtitan-2024 has no known memory and time for moe_route; "
                  "those that have: native, native-cuda, torchtitan,") != std::string::npos);
  CHECK(refusal_of(*of("torchtitan-2025-12", true), m).find("compiled, has no known") != std::string::npos);
  CHECK(refusal_of(hf_implementation(true), m)
            .find("those that have: torchtitan, torchtitan-2026-06; without "
                  "--compile: native, native-cuda,") != std::string::npos);
  CHECK(refusal_of(foundry_implementation(false), m) != "");
  CHECK(refusal_of(torch_cpu_implementation(), m) != "");
  CHECK(refusal_of(hf_implementation(false), m) == "");
  CHECK(refusal_of(hf_implementation(false), load_model("tiny-mixtral")).find("capacity_factor") != std::string::npos);
  CHECK(refusal_of(native_implementation(), load_model("tiny-mixtral")) == "");
}

TEST_CASE("where the host reads numbers from the device, its time is in the step") {
  const Implementation& plain = prime_rl_implementation(AttentionKernel::flash3, PrimeRlAdapters::none);
  const Workload w{1, 64, 2};
  const auto of = [&](const Implementation& i, OpKind kind, OpShape shape) {
    return facts(i, Op{kind, 0, {0}, {1}, {}, shape}, w);
  };
  // transformers asks whether sequences are packed; the loss of the RL trainer compares position by position.
  CHECK(of(plain, OpKind::attention, {.heads = 4, .kv_heads = 2, .head_dim = 8}).forward_reads == 1);
  CHECK(of(plain, OpKind::cross_entropy, {.vocab = 1}).forward_reads == 64);
  CHECK(of(plain, OpKind::cross_entropy, {.vocab = 100}).forward_reads == 0);
  CHECK(of(plain, OpKind::opaque, {.width = 30, .vocab = 100}).backward_reads == 4);
  CHECK(plain.host_seconds_per_read > 0);
  // A product for all adapters, or one for each, whose tokens are sliced.
  const OpShape scaled{.width = 16};
  CHECK(of(prime_rl_implementation(AttentionKernel::flash3, PrimeRlAdapters::grouped), OpKind::scale, scaled)
            .forward_reads == 2);
  CHECK(of(prime_rl_implementation(AttentionKernel::flash2, PrimeRlAdapters::in_turn), OpKind::scale, scaled)
            .forward_reads == 9);
  CHECK(facts(find_implementation("hf", false, ""), Op{OpKind::scale, 0, {0}, {1}, {}, scaled}, w).forward_reads == 0);
}
