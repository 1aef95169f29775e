#include "simulator/published/run_setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/architecture.h"
#include "models/catalog.h"
#include "models/graph/experts.h"
#include "models/graph/lora.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/plan/check_tensor.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/families.h"
#include "planner/tensor/local_model.h"
#include "planner/wrap.h"
#include "simulator/published/adapters.h"
#include "simulator/published/chunked_head.h"
#include "simulator/published/prime_rl_model.h"
#include "simulator/published/reading/cells.h"
#include "simulator/published/run_cluster.h"
#include "simulator/published/software/run_software.h"

namespace fsdp {
namespace {

// One row on its way to a setup.
class Builder {
 public:
  Builder(const PublishedRun& run, std::string_view where) : run_(run), where_(where) {}

  RunSetup build() {
    out_.platform = platform_of(run_);
    refuse_unknown_numerics();
    refuse_unknown_parallelism(run_);
    gpu_ = load_gpu(run_.gpu, "gpu");
    if (run_.peak_memory_gib && *run_.peak_memory_gib * (1LL << 30) > static_cast<double>(gpu_.memory.count()))
      cannot("peak_memory_gib", fmt::format("{:g} GiB are more than a {} has", *run_.peak_memory_gib, gpu_.name));
    stack_ = stack_of(run_);
    if (stack_ == Stack::titan && !month_of(run_)) assume("software of the beginning of 2025");
    month_ = month_of(run_).value_or(month(2025, 1));
    build_model();
    set_mesh();
    set_batches();
    set_units();
    set_checkpointing_policy();
    set_head();
    set_types();
    set_rest();
    RunImplementation chosen = implementation_of(run_, stack_, month_, of_model_);
    out_.implementation = chosen.implementation;
    out_.variant = std::move(chosen.variant);
    for (std::string& said : chosen.assumptions) assume(std::move(said));
    set_memory();
    out_.cluster = cluster_of_run(run_, gpu_, out_.assumptions);
    set_release(chosen, out_.model, out_.plan, out_.cluster);
    check(out_.plan, out_.model, "plan");
    out_.model = local_model(out_.model, out_.plan, *out_.implementation);
    return std::move(out_);
  }

 private:
  void assume(std::string what) { out_.assumptions.push_back(std::move(what)); }

  void refuse_unknown_numerics() const {
    if (!float8_of(run_))
      cannot("float8", "8-bit matrix products (\"" + printable(run_.float8) + "\") are not modelled");
    // "bf16_amp" is torch.autocast, around an FSDP told no precision; ATorch tells FSDP, too (auto/model_context.py).
    if (lower_case(run_.precision).ends_with("_amp") && stack_of(run_) != Stack::atorch)
      cannot("precision", "autocast over parameters in fp32 (\"" + printable(run_.precision) + "\") is not modelled");
    const bool by_te = float8_of(run_)->recipe == Float8Recipe::delayed;
    if (!by_te && (says(run_.precision, "fp8") || says(run_.precision, "float8")))
      cannot("precision", "8-bit matrix products are not modelled");
  }

  void build_model() {
    Architecture a;
    a.name = base_model_of(run_), a.layers = run_.layers, a.hidden = run_.hidden, a.heads = run_.heads,
    a.kv_heads = run_.kv_heads, a.ffn = run_.ffn;
    a.vocab = run_.vocab, a.seq_len = run_.seq_len, a.params = run_.params;
    a.experts = run_.experts, a.experts_per_token = run_.experts_per_token, a.moe_ffn = run_.moe_ffn;
    if (run_.experts && stack_ != Stack::prime && stack_ != Stack::titan && !loops_over_experts(run_))
      cannot("experts", fmt::format("{} experts: their kernels in this stack are not modelled", *run_.experts));
    // Modalities' published configurations, whatever their models are called: rotary positions, SwiGLU, GPT-2's
    // vocabulary padded to 64.
    if (stack_ == Stack::modalities && !a.ffn && !a.vocab) {
      a.family = "llama", a.vocab = 50304;
      assume("rotary positions, SwiGLU and a vocabulary of 50,304, as in Modalities' own configurations");
    }
    if (!run_.seq_len) cannot("seq_len", "is empty: tokens per sequence are not assumed");
    ArchitectureModel m = model_from_architecture(a, where_);
    for (std::string& said : m.assumptions) assume(std::move(said));
    if (run_.head_dim && head_dim_of(m.graph) != *run_.head_dim)
      cannot("head_dim", fmt::format("{} is not the {} of such models", *run_.head_dim, head_dim_of(m.graph)));
    out_.model = std::move(m.graph);
    of_model_.experts = has_experts(out_.model);
    const bool known = (month_ >= month(2025, 8) && month_ < month(2026, 2)) || month_ >= month(2026, 4);
    if (of_model_.experts && stack_ == Stack::titan && !known)
      cannot("experts", "torchtitan's are modelled as of August 2025 to January 2026, and since April 2026");
    if (of_model_.experts && stack_ == Stack::prime) {
      if (gpu_.compute_capability < 90)
        cannot("gpu", "experts that are multiplied one by one, as before Hopper, are not modelled");
      out_.model = with_torchtitan_experts(std::move(out_.model), {.sorted_outside = true});
    }
    add_adapters();
    out_.plan.seq_len = *run_.seq_len;
  }

  void add_adapters() {
    auto adapters = adapters_of(run_, out_.assumptions);
    if (!adapters) return;
    of_model_.rank = adapters->layers.rank;
    if (of_model_.experts) name_dense_feed_forward(adapters->layers, out_.model);
    out_.model = add_lora(std::move(out_.model), adapters->layers, "lora_targets");
    if (stack_ == Stack::atorch) out_.model = require_input_gradients(std::move(out_.model));
    of_model_.adapted_experts = of_model_.experts && adapters->experts;
    // prime-rl groups products on Hopper alone, and of ranks that 8 divides (lora/multi_linear.py, multi_moe.py).
    of_model_.grouped_adapters = gpu_.compute_capability / 10 == 9 && adapters->layers.rank % 8 == 0;
    if (of_model_.adapted_experts) out_.model = adapt_experts(std::move(out_.model), adapters->layers.rank);
    if (stack_ == Stack::prime) out_.model = hold_adapters(std::move(out_.model), adapters->held);
    if (of_model_.adapted_experts && !of_model_.grouped_adapters) out_.model = multiply_in_turn(std::move(out_.model));
    check_graph(out_.model, where_);
  }

  // dp_shard x dp_replicate must be all GPUs; what is missing follows from the strategy.
  void set_mesh() {
    ShardingPlan& p = out_.plan;
    if (!run_.gpus) cannot("gpus", "is empty");
    const std::int64_t gpus = data_ranks(), tensor = run_.tp.value_or(1);
    const std::string s = lower_case(run_.strategy), framework = lower_case(run_.framework);
    if (framework.empty()) assume(says(s, "fsdp2") ? "framework fsdp2" : "framework fsdp1");
    if (framework == "fsdp2" || (framework.empty() && s == "fsdp2")) p.dialect = Dialect::fsdp2;
    else if (framework == "fsdp1" || framework == "fsdp" || framework.empty()) p.dialect = Dialect::fsdp1;
    else if (framework == "ddp") p.dialect = Dialect::ddp;
    else not_modelled("framework", run_.framework);
    if (s == "no_shard" || s == "ddp") p.dialect = Dialect::ddp;
    const bool hybrid = says(s, "hybrid") || s == "hsdp";
    if (!s.empty() && !hybrid && s != "full_shard" && s != "shard_grad_op" && s != "fsdp2" && s != "fsdp" &&
        s != "no_shard" && s != "ddp")
      not_modelled("strategy", run_.strategy);
    std::int64_t shard = gpus, replicate = 1;
    if (run_.dp_shard)
      shard = *run_.dp_shard, replicate = run_.dp_replicate.value_or(gpus / std::max<std::int64_t>(shard, 1));
    else if (run_.dp_replicate) replicate = *run_.dp_replicate, shard = gpus / replicate;
    else if (hybrid) shard = std::min(gpus, run_.gpus_per_node.value_or(8)), replicate = gpus / shard;
    if (p.dialect == Dialect::ddp) replicate = gpus, shard = 1;
    if (shard * replicate != gpus)
      cannot("dp_shard", fmt::format("{} x {} replicas are not the {} GPUs: only data parallelism is modelled", shard,
                                     replicate, gpus));
    p.mesh = {{"replicate", replicate}, {"shard", shard}};
    check_tensor_ranks(tensor, *run_.gpus, p.dialect);
    set_tensor(p, out_.model, tensor);
  }

  // GPUs that see sequences of their own.
  std::int64_t data_ranks() const {
    const std::int64_t tensor = run_.tp.value_or(1);
    if (*run_.gpus % tensor != 0) cannot("tp", fmt::format("{} does not divide {} GPUs", tensor, *run_.gpus));
    return *run_.gpus / tensor;
  }

  // Any two of micro-batch, accumulation and global batch decide the third; the last micro-batch may be smaller.
  void set_batches() {
    constexpr std::int64_t kMostMicroBatches = 4096;  // more is a slip of the pen, and would be lowered one by one
    const auto refuse_many = [&](std::int64_t n) {
      if (n > kMostMicroBatches)
        cannot("grad_accum", fmt::format("{} micro-batches per step are more than {}", n, kMostMicroBatches));
    };
    refuse_many(run_.grad_accum.value_or(1));
    const std::int64_t gpus = data_ranks();
    std::int64_t per_rank = 0;
    if (run_.global_batch) {
      if (*run_.global_batch % gpus != 0)
        cannot("global_batch", fmt::format("{} sequences do not divide over {} GPUs", *run_.global_batch, gpus));
      per_rank = *run_.global_batch / gpus;
    } else if (run_.micro_batch) {
      if (!run_.grad_accum) assume("one micro-batch per step");
      per_rank = *run_.micro_batch * run_.grad_accum.value_or(1);
    } else {
      cannot("micro_batch", "and global_batch are both empty");
    }
    const std::int64_t accum =
        run_.grad_accum.value_or(run_.micro_batch ? (per_rank + *run_.micro_batch - 1) / *run_.micro_batch : 1);
    refuse_many(accum);
    const std::int64_t micro = run_.micro_batch.value_or((per_rank + accum - 1) / accum);
    if (micro > per_rank)
      cannot("micro_batch",
             fmt::format("{} contradicts global_batch, which leaves {} for each of {} GPUs", micro, per_rank, gpus));
    if (micro * accum < per_rank || micro * (accum - 1) >= per_rank)
      cannot("global_batch",
             fmt::format("{} sequences per GPU are not {} micro-batches of {}", per_rank, accum, micro));
    out_.plan.micro_batches.assign(static_cast<std::size_t>(accum), micro);
    out_.plan.micro_batches.back() = per_rank - micro * (accum - 1);
  }

  // torchtitan's units before August 2025 (pull request 1094): blocks and the root, the last block kept after forward;
  // "[norm, output]" is a trial of the later ones. prime-rl's notes say where the head, with the norm, is one, kept;
  // torchtune's, where its configuration has custom_sharded_layers.
  void set_units() {
    ShardingPlan& p = out_.plan;
    const bool own_head = stack_ == Stack::prime && says(run_.notes, "embed; [lm_head, norm] with reshard false");
    const bool recent = stack_ != Stack::titan || month_ >= month(2025, 8) || says(run_.wrap, "[norm, output]");
    const bool own_units = says(run_.wrap, "tok_embeddings") || says(run_.wrap, "embedding") || own_head ||
                           says(run_.notes, "tok_embeddings and output have their own units") ||
                           (stack_ == Stack::titan && run_.wrap.empty());
    if (!run_.wrap.empty() && !says(run_.wrap, "block") && !says(run_.wrap, "layer")) not_modelled("wrap", run_.wrap);
    p.wrap = p.dialect == Dialect::fsdp2 && own_units && recent ? "titan" : "block";
    if (needs_adapter_units(out_.model, p.dialect)) {
      const bool around = stack_ == Stack::atorch;  // wrap_trainable_outmost (opt_lib/zero_optimization.py)
      p.wrap = around ? kTrainedOutermostUnits : kAdapterUnits;
      assume(around ? "all adapters in one unit around all others, as the source's script asks for"
                    : "units of the trained modules, too, as peft's fsdp_auto_wrap_policy makes them");
    }
    fsdp::set_units(p, wrap(out_.model, p.wrap, where_));
    // What torchtitan's default was before August 2025.
    const bool but_last = says(run_.reshard, "(all blocks but the last)");
    const std::string reshard = but_last ? "default" : without_remark(run_.reshard);
    const bool never = reshard == "false" || reshard == "never" || reshard == "no";
    const bool all = reshard == "true" || reshard == "always" || reshard == "yes";
    if (!reshard.empty() && reshard != "default" && !all && !never) not_modelled("reshard", run_.reshard);
    const bool keep = says(run_.strategy, "shard_grad_op") || never;
    if (p.dialect == Dialect::ddp) return;
    if (keep) set_reshard(p, Reshard::no);
    if (p.dialect != Dialect::fsdp2 || keep) return;
    if (all)
      for (Unit& u : p.units) u.reshard_after_forward = Reshard::yes;
    if (own_head && p.units.size() > 1) p.units[p.units.size() - 2].reshard_after_forward = Reshard::no;
    if (p.wrap == "block" && stack_ == Stack::titan) {
      if (!all && p.units.size() > 1) p.units[p.units.size() - 2].reshard_after_forward = Reshard::no;
      p.units.back().reshard_after_forward = Reshard::no;  // PyTorch's root, whatever was asked for
    }
  }

  // A head that goes over the vocabulary in chunks. Units are found by what the head was before.
  void set_head() {
    if (const auto chunks = head_chunks(run_.loss)) {
      if (stack_ != Stack::prime) not_modelled("loss", run_.loss);
      // Pull request 2505 of 18 May 2026: the two runs with chunks of tokens that are known came after it.
      if (chunks->tokens > 0 && says(run_.model, "qwen3") && !run_.experts)
        cannot("software", "prime-rl's own blocks for Qwen3, since May 2026, are not modelled");
      chunk_head(out_.model, *chunks, gpu_);
      assume("a loss in chunks of the vocabulary at the speed of its kernels' bytes");
    }
    out_.plan.model_name = out_.model.name;
    out_.plan.model_digest = out_.model.digest();
  }

  void set_checkpointing_policy() {
    std::string c = lower_case(run_.activation_checkpointing);
    if (c.empty()) {
      // torchtitan's configurations: all of a block from 30 billion parameters on, and of gpt-oss; else single
      // operations.
      constexpr std::int64_t kWholeBlocks = 30'000'000'000;
      const bool whole = out_.model.parameter_count() >= kWholeBlocks || out_.model.family == "gpt_oss";
      c = stack_ != Stack::titan ? "none" : whole ? "full" : "selective-op";
      assume(c == "none" ? "no activation checkpointing"
                         : "activation checkpointing " + c + ", as torchtitan's configurations have it");
    }
    if (c == "no") c = "none";
    if (c == "selective") c = "selective-op";
    if (stack_ == Stack::titan && c.starts_with("every-")) c.replace(0, 6, "last-of-");  // its way of every N-th block
    set_checkpointing(out_.plan, out_.model, c, "activation_checkpointing");
    if (stack_ == Stack::automodel && c == "full") checkpoint_parts();
  }

  // AutoModel recomputes the norms, the attention and the mlp of a block one by one.
  void checkpoint_parts() {
    std::vector<std::string> parts;
    for (const std::string& block : out_.plan.checkpointed)
      for (const char* part : {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"})
        parts.push_back(block + "." + part);
    out_.plan.checkpointed = std::move(parts);
    assume("norms, attention and mlp of each block recomputed one by one, as AutoModel does");
  }

  DType type(const std::string& cell, std::string_view column, DType usual) const {
    if (cell.empty()) return usual;
    const DType t = parse_dtype(lower_case(cell), column);
    if (t != DType::bf16 && t != DType::f16 && t != DType::f32) not_modelled(column, cell);
    return t;
  }

  void set_types() {
    ShardingPlan& p = out_.plan;
    const std::string mixed = lower_case(run_.precision);
    DType usual = DType::bf16;
    if (run_.param_dtype.empty() && says(mixed, "fp16")) usual = DType::f16;
    if (run_.param_dtype.empty() && (mixed == "fp32" || mixed == "tf32")) usual = DType::f32;
    if (run_.param_dtype.empty() && mixed.empty()) assume("parameters gathered and used in bf16");
    p.param_dtype = type(run_.param_dtype, "param_dtype", usual);
    // torchtitan reduces in fp32 by default; elsewhere gradients travel as they come unless it is said.
    const DType reduce = stack_ == Stack::titan ? DType::f32 : p.param_dtype;
    if (run_.reduce_dtype.empty()) assume(fmt::format("gradients reduced in {}", name(reduce)));
    p.reduce_dtype = type(run_.reduce_dtype, "reduce_dtype", reduce);
    p.master_dtype = type(run_.master_dtype, "master_dtype", DType::f32);
    p.float8 = *float8_of(run_);
    keep_adapters_in_fp32(p, run_, out_.model, out_.assumptions);
  }

  void set_rest() {
    ShardingPlan& p = out_.plan;
    const std::string prefetch = lower_case(run_.backward_prefetch);
    if (prefetch == "backward_post") p.backward_post = p.dialect == Dialect::fsdp1;
    else if (prefetch == "none" || prefetch == "no") p.backward_prefetch = 0;
    else if (!prefetch.empty() && prefetch != "backward_pre" && prefetch != "default")
      p.backward_prefetch = digit("backward_prefetch", run_.backward_prefetch);
    if (p.dialect == Dialect::fsdp1) p.limit_all_gathers = !says(run_.notes, "limit_all_gathers=false");
    if (!says_no(run_.forward_prefetch) && lower_case(run_.forward_prefetch) != "default")
      p.forward_prefetch = digit("forward_prefetch", run_.forward_prefetch);
    const std::string sync = lower_case(run_.grad_sync);
    if (sync == "last" || sync.starts_with("last micro-batch only")) p.grad_sync = GradSync::last;
    else if (!sync.empty() && !sync.starts_with("every")) not_modelled("grad_sync", run_.grad_sync);
    if (sync.empty() && p.micro_batches.size() > 1) assume("gradients reduced after every micro-batch");
    p.clip_norm = run_.clip_norm && *run_.clip_norm > 0 ? run_.clip_norm : std::nullopt;
    if (stack_ == Stack::atorch) {
      p.forward_prefetch = 1, assume("forward prefetch, and no clipping unless stated, as in the source's script");
    } else if (!run_.clip_norm) {
      p.clip_norm = 1.0, assume("gradients clipped to norm 1");
    }
    const std::string optimizer = lower_case(run_.optimizer);
    const bool fewer_bits = says(optimizer, "8bit") || says(optimizer, "8-bit") || says(optimizer, "4bit");
    if (optimizer.empty()) assume("AdamW");
    const bool no_op = optimizer.starts_with("none");
    if (no_op) assume("an optimizer step that does nothing: SGD, which keeps no states");
    if (optimizer == "sgd" || no_op) p.optimizer.kind = OptimizerKind::sgd;
    else if (!optimizer.empty() && (!says(optimizer, "adam") || fewer_bits)) not_modelled("optimizer", run_.optimizer);
    const std::string offload = without_remark(run_.cpu_offload);
    const bool in_host = offload == "activations", to_host = in_host || !says_no(run_.activation_offload);
    p.offload = says_yes(offload) || offload.starts_with("parameters");
    p.offload_optimizer = offload == "optimizer states";
    if (p.offload) p.loop.host_threads = host_threads_of(run_, out_.assumptions);
    const bool kept = says_no(offload) || in_host;
    if (!kept && !p.offload && !p.offload_optimizer) not_modelled("cpu_offload", run_.cpu_offload);
    if (to_host && p.checkpointed.empty()) cannot("activation_offload", "of activations that are not recomputed");
    if (to_host) p.offload_activations = p.checkpointed;
    if (head_chunks(run_.loss)) return;  // the model's head says it
    const bool own_chunks = stack_ == Stack::titan && month_ >= month(2026, 5) && p.dialect == Dialect::fsdp2 &&
                            p.tensor() == 1 && p.float8.recipe == Float8Recipe::none;
    if (own_chunks && (run_.loss.empty() || says(run_.loss, "chunk"))) run_loss_in_chunks();
    else if (says(run_.loss, "chunk")) p.loss_chunks = std::min<std::int64_t>(16, p.seq_len);
    else if (!run_.loss.empty() && !says(run_.loss, "cross") && without_remark(run_.loss) != "plain")
      not_modelled("loss", run_.loss);
  }

  // torchtitan's loss since 27 April 2026 (pull request 2937), its configurations' own: the output layer runs with each
  // of eight chunks of the sequence, and stays gathered between them. Tied to the embedding it is one unit with that,
  // whose gradient comes with another backward: there whole logits are made, and only the loss is computed in chunks.
  void run_loss_in_chunks() {
    constexpr std::int64_t kChunks = 8;
    ShardingPlan& p = out_.plan;
    if (p.seq_len % kChunks != 0)
      cannot("seq_len", fmt::format("{} does not divide by {}, the chunks of the loss", p.seq_len, kChunks));
    if (run_.loss.empty()) assume("a loss in eight chunks, as torchtitan's configurations have it");
    p.loss_chunks = kChunks;
    if (!run_head_in_chunks(p, out_.model))
      assume("whole logits: the output layer is tied to the embedding, or ends no unit");
    else if (p.micro_batches.size() > 1) assume("the output layer stays gathered until the last micro-batch");
  }

  // torchtitan's launch script sets expandable segments since 22 October 2024, prime-rl's benchmarks always.
  void set_memory() {
    if (run_.peak_memory_gib) {
      if (run_.memory_kind.empty()) assume("peak memory as reserved");
      const std::string kind = run_.memory_kind.empty() ? "reserved" : lower_case(run_.memory_kind);
      for (const MemoryKind k : {MemoryKind::reserved, MemoryKind::allocated, MemoryKind::active})
        if (kind == fsdp::name(k)) out_.memory_kind = k;
      if (!out_.memory_kind) not_modelled("memory_kind", run_.memory_kind);
    }
    if (!says_no(run_.expandable_segments) && !says_yes(run_.expandable_segments))
      cannot("expandable_segments", "\"" + printable(run_.expandable_segments) + "\" is neither yes nor no");
    out_.expandable_segments = run_.expandable_segments.empty()
                                   ? stack_ == Stack::prime || (stack_ == Stack::titan && month_ >= month(2024, 11))
                                   : !says_no(run_.expandable_segments);
  }

  const PublishedRun& run_;
  GpuSpec gpu_;
  RunModel of_model_;
  std::string_view where_;
  Stack stack_ = Stack::hf;
  int month_ = 0;
  RunSetup out_;
};

}  // namespace

std::variant<RunSetup, std::string> set_up(const PublishedRun& run, std::string_view where) {
  try {
    return Builder(run, where).build();
  } catch (const InputError& e) {
    return std::string(e.what());
  }
}

std::string_view name(MemoryKind kind) {
  return kind == MemoryKind::reserved ? "reserved" : kind == MemoryKind::allocated ? "allocated" : "active";
}

}  // namespace fsdp
