#include "cli/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <vector>

#include "cli/report/adapter_notes.h"
#include "cli/terminal/terminal.h"
#include "models/input/counted.h"
#include "planner/wrap.h"
#include "viz/trace.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

// "micro-batch 1 x 8 on each of 64 GPUs = 512 sequences (4,194,304 tokens) a step"
std::string batch(const ShardingPlan& plan) {
  const auto& sizes = plan.micro_batches;
  if (sizes.empty()) return "micro-batch -";
  const bool equal = std::all_of(sizes.begin(), sizes.end(), [&](std::int64_t s) { return s == sizes.front(); });
  std::string text = fmt::format("micro-batch {}", sizes.front());
  if (!equal) text = fmt::format("micro-batches {}", fmt::join(sizes, "+"));
  else if (sizes.size() > 1) text += fmt::format(" x {}", sizes.size());
  const std::int64_t tokens = plan.tokens_per_step(), sequences = tokens / std::max<std::int64_t>(1, plan.seq_len);
  const std::int64_t each = plan.data_ranks();
  const std::string_view who = plan.tensor() > 1 ? "tensor group" : "rank";
  return text + fmt::format(" on each of {} {}{} = {} sequence{} ({} tokens) a step", with_commas(each), who,
                            each == 1 ? "" : "s", with_commas(sequences), sequences == 1 ? "" : "s",
                            with_commas(tokens));
}

std::string checkpointing(const ShardingPlan& plan, const ModelGraph* model) {
  if (plan.checkpointed.empty()) return "no activation checkpointing";
  const std::size_t count = plan.checkpointed.size();
  const std::string modules = fmt::format("{} module{}", count, count == 1 ? "" : "s");
  if (model != nullptr)
    if (const auto policy = checkpointing_policy(plan, *model))
      return "activation checkpointing " + *policy + " (" + modules + ")";
  return "activation checkpointing of " + modules +
         (plan.checkpoint_policy == CheckpointPolicy::selective_op ? " (selective-op)"
          : plan.reentrant                                         ? " (reentrant)"
                                                                   : "");
}

std::string times(std::int64_t n) { return n == 1 ? "once" : n == 2 ? "twice" : with_commas(n) + " times"; }

std::string reshard(const ShardingPlan& plan) {
  if (plan.units.empty()) return "reshard -";
  const Reshard first = plan.units.front().reshard_after_forward;
  const bool equal = std::all_of(plan.units.begin(), plan.units.end(),
                                 [&](const Unit& u) { return u.reshard_after_forward == first; });
  return "reshard " + (equal ? std::string(name(first)) : std::string("per unit"));
}

// Offloaded buffers that the limit is held against: those of CPU ranks, which are in the same memory.
Bytes offloaded_in_total(const Prediction& p) { return p.peak_total - p.peak_reserved_estimate - p.fixed; }

// From allocated to what the limit is held against.
std::vector<std::vector<std::string>> on_top(const Prediction& p) {
  const Bytes kept = p.peak_reserved_estimate - p.peak_allocated;
  const double share =
      static_cast<double>(kept.count()) / static_cast<double>(std::max<std::int64_t>(1, p.peak_allocated.count()));
  std::vector<std::vector<std::string>> rows{{"+ kept by the allocator beside it", human(kept), percent(share)},
                                             {"+ context and communicators", human(p.fixed), ""}};
  if (const Bytes offloaded = offloaded_in_total(p); offloaded > Bytes(0))
    rows.push_back({"+ offloaded, in the same memory", human(offloaded), ""});
  rows.push_back({"= peak total", human(p.peak_total), ""});
  return rows;
}

std::string made_of(const Prediction& p) {
  std::vector<std::pair<std::int64_t, int>> parts;
  for (int k = 0; k < kBufferKinds; ++k) {
    const std::int64_t bytes = p.peak_made_of[static_cast<std::size_t>(k)];
    if (bytes > 0) parts.emplace_back(bytes, k);
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::vector<std::string>> rows;
  for (const auto& [bytes, kind] : parts) {
    rows.push_back({std::string(name(static_cast<BufferKind>(kind))), human(Bytes(bytes)),
                    percent(static_cast<double>(bytes) / static_cast<double>(p.peak_allocated.count()))});
  }
  rows.push_back({"= allocated at the peak", human(p.peak_allocated), ""});
  for (auto& row : on_top(p)) rows.push_back(std::move(row));
  return fitting_table({"what the peak is made of", ">bytes", ">share"}, rows);
}

}  // namespace

std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

// The attention of a model whose kernel in 16 bits is a fused one, and which has none in the plan's dtype.
static bool loses_fused_attention(const ShardingPlan& plan, const ModelGraph& model, const Implementation& i) {
  const auto kernel = [&](const Op& op, std::int64_t bytes) {
    return facts(i, op, {1, plan.seq_len, bytes}).attention;
  };
  return !i.of_traces && size_of(plan.param_dtype) > 2 &&
         std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& op) {
           return op.kind == OpKind::attention && kernel(op, 2) != AttentionKernel::math &&
                  kernel(op, size_of(plan.param_dtype)) == AttentionKernel::math;
         });
}

std::string caution(const ShardingPlan& plan, const ModelGraph& model, const Implementation& implementation) {
  std::string text;
  if (model.max_seq_len && plan.seq_len > *model.max_seq_len)  // learned positions refuse such a plan
    text += fmt::format("note: {} tokens per sequence are predicted as asked; {} says that it is for at most {}\n",
                        with_commas(plan.seq_len), model.name, with_commas(*model.max_seq_len));
  if (plan.optimizer.kind == OptimizerKind::adamw_8bit)
    text +=
        "note: the time of a step of adamw-8bit stands on torchao's code and on processors' times (0.4 ms for each "
        "parameter tensor), and has not been compared with a GPU; its memory is torchao's to the byte\n";
  if (loses_fused_attention(plan, model, implementation))
    text += fmt::format(
        "note: attention in {} whose heads share keys has no fused kernel on GPUs: PyTorch writes the scores of each "
        "layer out and keeps them for backward; bf16 has one\n",
        name(plan.param_dtype));
  if (implementation.memory != MemorySource::arena) text += adapter_notes(plan, model);
  if (plan.offload && plan.loop.host_threads == 0 && plan.ranks() > 1 && implementation.memory != MemorySource::arena)
    text +=
        "note: where a node has several ranks each steps its offloaded shards with one thread, as torchrun starts it; "
        "OMP_NUM_THREADS gives it more (--host-threads N predicts that)\n";
  if (plan.dialect == Dialect::ddp && implementation.memory != MemorySource::arena) {  // docs/limits.md
    std::int64_t trained = 0;
    for (const Parameter& p : model.parameters) trained += p.trainable ? p.numel() : 0;
    text += fmt::format(
        "note: ddp's memory is that of gradient_as_bucket_view and lazy_bucket_allocation (PyTorch 2.15); without them "
        "DistributedDataParallel holds up to {} more, and twice that in its second step\n",
        human(Bytes(trained * size_of(plan.kept_dtype(/*trained=*/true)))));
  }
  return text;
}

std::string optimizer_text(const Optimizer& o) {
  return std::string(name(o.kind)) + (o.momentum != 0 ? fmt::format(" with momentum {}", o.momentum) : "");
}

static std::string_view offload(const ShardingPlan& plan) {
  if (plan.offload_optimizer) return ", optimizer states in host memory";
  return plan.offload ? ", offload" : "";
}

// What few plans choose, and only where this one does.
static std::string rare_choices(const ShardingPlan& plan) {
  const auto any = [&](auto&& chosen) { return std::any_of(plan.units.begin(), plan.units.end(), chosen); };
  std::string text;
  if (plan.loss_chunks > 1) text += fmt::format(", {} loss chunks", plan.loss_chunks);
  if (const std::size_t n = plan.offload_activations.size(); n > 0)
    text += fmt::format(", inputs of {} of them in host memory", n);
  if (plan.grad_sync != GradSync::every) text += fmt::format(", gradient sync {}", name(plan.grad_sync));
  if (any([](const Unit& u) { return !u.reshard_after_backward; })) text += ", gathered between micro-batches";
  if (any([](const Unit& u) { return !u.unshard_in_backward; })) text += ", embedding not gathered for backward";
  const auto own = std::count_if(plan.units.begin(), plan.units.end(), [](const Unit& u) {
    return u.param_dtype || u.reduce_dtype || u.output_dtype || !u.cast_forward_inputs;
  });
  if (own > 0) text += fmt::format(", {} of the units with dtypes of their own", own);
  if (plan.forward_prefetch > 0) text += fmt::format(", forward prefetch {}", plan.forward_prefetch);
  if (plan.reduce_scatter_buffers > 1) text += fmt::format(", {} reduce-scatter buffers", plan.reduce_scatter_buffers);
  if (plan.separate_reduce_scatter) text += ", own communicator for reduce-scatter";
  if (plan.own_shard() > 0)
    text += fmt::format(", {} groups over {} ranks",
                        std::count_if(plan.units.begin(), plan.units.end(), [](const Unit& u) { return u.shard > 0; }),
                        plan.own_shard());
  if (plan.loop != LoopPlan{}) text += ", " + loop_text(plan.loop);
  const Float8Plan& float8 = plan.float8;
  if (float8.recipe != Float8Recipe::none)
    text += fmt::format(", linear layers in 8 bits ({}{}{})", name(float8.recipe),
                        float8.all_gather ? ", gathered in 8 bits" : "",
                        float8.precomputed_scales ? ", precomputed scales" : "");
  return text;
}

std::string plan_label(const ShardingPlan& plan, const ModelGraph* model) {
  return fmt::format(
      "{}, wrap {} ({} unit{}{}), {}, {}{}{}{}, {}, mesh {} replica{} x {} shard{}{}", dialect_text(plan),
      plan.wrap.empty() ? "as listed" : plan.wrap, plan.units.size(), plan.units.size() == 1 ? "" : "s",
      plan.share_comm_context ? ", several roots" : "", reshard(plan), checkpointing(plan, model), offload(plan),
      plan.optimizer.kind == OptimizerKind::adamw ? "" : ", " + optimizer_text(plan.optimizer), rare_choices(plan),
      batch(plan), plan.replicate(), plan.replicate() == 1 ? "" : "s", plan.shard(), plan.shard() == 1 ? "" : "s",
      plan.tensor() == 1 ? "" : fmt::format(" x {} tensor ranks", plan.tensor()));
}

// "; a node needs 400 GiB of its 2.00 TiB for what is offloaded".
static std::string host_text(const HostMemory& host) {
  const auto bytes = [](double n) { return human(Bytes(static_cast<std::int64_t>(n))); };
  if (host.available_bytes == 0)
    return fmt::format(
        "; a node needs {} of host memory for what is offloaded, which is not checked: the cluster does not say "
        "host_memory",
        bytes(host.needed_bytes));
  if (host.fits())
    return fmt::format("; a node needs {} of its {} for what is offloaded", bytes(host.needed_bytes),
                       bytes(host.available_bytes));
  return fmt::format("; for what is offloaded a node needs {} of host memory and has {}", bytes(host.needed_bytes),
                     bytes(host.available_bytes));
}

std::string verdict_line(const Prediction& p) {
  const Bytes spare = p.memory_limit - p.peak_total;
  std::string room = spare.count() >= 0 ? human(spare) + " to spare" : human(Bytes(-spare.count())) + " too much";
  if (p.verdict == Verdict::tight && p.alloc_retries > 0)
    room += fmt::format(" unless the allocator gives memory back, {} a step", times(p.alloc_retries));
  else if (p.verdict == Verdict::tight) {
    room +=
        " unless the allocator gives memory back or has expandable segments "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)";
  }
  if (p.host) room += host_text(*p.host);
  std::string verdict(name(p.verdict));
  verdict[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(verdict[0])));
  const auto whole = [](double x) { return with_commas(std::llround(x)); };
  const std::string mfu = p.mfu > 0 ? ", MFU " + percent(p.mfu) : "";
  return fmt::format("{}: step {}, {} tokens/s ({} per GPU){}, peak {} of {}, {}.\n", verdict, human(p.step_time),
                     whole(p.tokens_per_s),
                     whole(p.tokens_per_s / static_cast<double>(std::max<std::int64_t>(1, p.ranks))), mfu,
                     human(p.peak_total), human(p.memory_limit), room);
}

// Empty: the allocator gives nothing back in a steady step.
static std::string retry_line(const Prediction& p) {
  if (!p.retry_stall || p.retry_stall->per_step < 0.05) return "";
  const RetryStall& r = *p.retry_stall;
  return fmt::format(
      "Retries: the allocator stops all ranks about {:.1f} times a step, for {} ({} to {}) that the step above does "
      "not "
      "hold.\n",
      r.per_step, human(r.likely), human(r.low), human(r.high));
}

std::string doubt_line(const Prediction& p) {
  if (!p.doubt) return retry_line(p);
  const Doubt& d = *p.doubt;
  const auto bytes = [](double n) { return human(Bytes(std::llround(n))); };
  const std::string lost = d.out_of_memory < 0.01 ? "below 1 %" : fmt::format("{:.0f} %", 100 * d.out_of_memory);
  std::string usable = d.usable_bytes > 0 ? fmt::format(" of {} usable", bytes(d.usable_bytes)) : "";
  // Where the peak may be more than there is, what the allocator cannot give back decides.
  const double allocated = static_cast<double>((p.peak_allocated + p.fixed).count());
  if (d.usable_bytes > 0 && d.peak_bytes.high > d.usable_bytes && allocated < d.peak_bytes.low)
    usable = fmt::format(" ({} of it allocated at once)", bytes(allocated)) + usable;
  return fmt::format("Likely (80 %): step {} to {}, peak {} to {}{}, out of memory {}: {}.\n",
                     human(Seconds(d.step_time_s.low)), human(Seconds(d.step_time_s.high)), bytes(d.peak_bytes.low),
                     bytes(d.peak_bytes.high), usable, lost, fmt::join(d.causes, "; ")) +
         retry_line(p);
}

std::string cost_line(const Prediction& p) {
  if (!p.cost) return "";
  const TrainingCost& c = *p.cost;
  return fmt::format("Cost: {} per 10^9 tokens; {} a day for {} GPU{} at {} per GPU hour.\n",
                     money(c.per_billion_tokens, c.price.currency), money(c.per_day, c.price.currency),
                     with_commas(c.gpus), c.gpus == 1 ? "" : "s", text_of(c.price));
}

std::string distribution_line(const StepTimeDistribution& d, std::int64_t ranks, const Costs& costs) {
  const std::string which = d.seed ? fmt::format("{} steps of the cluster of seed {}", with_commas(d.samples), *d.seed)
                                   : std::string("over clusters and steps");
  return fmt::format(
      "Steps: mean {}, p50 {}, p95 {}, p99 {}: the slowest of {} GPUs, whose products are {} apart for good and whose "
      "compute {} from step to step; {}.\n",
      human(d.mean), human(d.p50), human(d.p95), human(d.p99), with_commas(ranks), percent(costs.gpu_spread),
      percent(costs.step_jitter), which);
}

std::string workload(const std::string& model, std::int64_t seq_len, std::int64_t ranks, const std::string& cluster) {
  const char* what = cluster == "host" ? "rank" : "GPU";
  return fmt::format("{}, {} tokens per sequence, on {} {}{} of {}", model, with_commas(seq_len), with_commas(ranks),
                     what, ranks == 1 ? "" : "s", cluster);
}

std::string basis(const Prediction& p, const ShardingPlan& plan, const Costs& costs) {
  std::string text = fmt::format("{}; {} implementation; costs: {}.\n",
                                 workload(p.provenance.model, plan.seq_len, p.ranks, p.provenance.cluster),
                                 p.provenance.implementation, costs.source);
  if (plan.dialect == Dialect::ddp && plan.param_dtype == DType::f32 && p.mfu > 0)
    text += "ddp trains in fp32, as PyTorch's DDP of a plain model does; MFU is of the fp32 peak.\n";
  if (costs.threads && p.ranks > costs.threads->cores)
    text +=
        fmt::format("{} share {}: they take turns.\n", counted(p.ranks, "rank"), counted(costs.threads->cores, "core"));
  if (costs.collective_ranks && *costs.collective_ranks != p.ranks)
    text +=
        fmt::format("Note: these costs were measured with {} at once; times hold better with `calibrate --ranks {}`.\n",
                    counted(*costs.collective_ranks, "rank"), p.ranks);
  return text;
}

std::string prediction_report(const Prediction& p) {
  std::string out = "\nwhere the step goes\n" + time_bar(p.where, p.step_time, chart_width(12), chart_style());
  if (!p.memory.steady_step.points.empty()) {
    out += "\nallocated memory over a steady step\n" +
           memory_chart(p.memory.steady_step, p.memory_limit, chart_width(18), 10, chart_style());
    out += "  peak at: " + p.peak_at + "\n";
  }
  out += "\n" + made_of(p);
  if (!p.critical_path.empty()) {
    out += "\nthe longest chain\n";
    for (const std::string& part : p.critical_path) out += "  " + part + "\n";
  }
  return out;
}

std::string memory_text(const MemoryReport& r, const Prediction& p) {
  constexpr std::size_t kItems = 12;
  // The first step differs from the steady one only where something is made in it: shown if the peak is there.
  std::vector<std::size_t> shown;
  for (std::size_t m = 0; m < r.moments.size(); ++m)
    if (m == r.peak || !r.moments[m].phase.starts_with("first step")) shown.push_back(m);
  std::vector<std::string> header = {"allocated at the peak of"};
  for (std::size_t m : shown) header.push_back(">" + r.moments[m].phase);
  std::vector<std::vector<std::string>> rows;
  for (int part = 0; part < kMemoryParts; ++part) {
    std::vector<std::string> row = {std::string(name(static_cast<MemoryPart>(part)))};
    bool any = false;
    for (std::size_t m : shown) {
      const std::int64_t bytes = r.moments[m].bytes[static_cast<std::size_t>(part)];
      any = any || bytes > 0;
      row.push_back(bytes > 0 ? human(Bytes(bytes)) : "-");
    }
    if (any) rows.push_back(std::move(row));
  }
  std::vector<std::string> total = {"= allocated"};
  for (std::size_t m : shown) total.push_back(human(Bytes(r.moments[m].total)));
  rows.push_back(std::move(total));
  std::string out = "\n" + fitting_table(header, rows) + "\n";
  for (std::size_t m : shown) out += fmt::format("  {} peaks at {}\n", r.moments[m].phase, r.moments[m].at);
  std::vector<std::vector<std::string>> items;
  for (std::size_t i = 0; i < std::min(kItems, r.items.size()); ++i)
    items.push_back({r.items[i].what, std::to_string(r.items[i].count), human(Bytes(r.items[i].bytes)),
                     percent(static_cast<double>(r.items[i].bytes) /
                             static_cast<double>(std::max<std::int64_t>(1, p.peak_allocated.count())))});
  out += "\n" + fitting_table({"largest at the highest peak", ">buffers", ">bytes", ">share"}, items);
  for (const KnownDifference& d : r.differences)
    out += fmt::format("\nPyTorch may have up to {} {}: {}.\n", human(Bytes(d.bytes)),
                       pytorch_has_more(d.kind) ? "more" : "less", text(d.kind));
  if (r.host_peak > 0) out += "\nhost memory of each GPU, as asked for: " + human(Bytes(r.host_peak)) + "\n";
  std::vector<std::vector<std::string>> sums = {{"allocated at the peak", human(p.peak_allocated), ""}};
  for (auto& row : on_top(p)) sums.push_back(std::move(row));
  for (auto& row : sums) row.pop_back();
  return out + "\n" + fitting_table({"on the device", ">bytes"}, sums);
}

std::string snapshot_line(const std::string& file) {
  return "\nmemory snapshot: " + file + " (open it in pytorch.org/memory_viz)\n";
}

std::string trace_line(const std::string& file, const Step& steady) {
  const auto cut = trace_cut(steady);
  return "\ntrace: " + file + " (open it in ui.perfetto.dev" + (cut ? "; " + describe(*cut) : "") + ")\n";
}

}  // namespace fsdp::cli
