#include "simulator/published/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "models/input/error.h"
#include "simulator/published/reading/cells.h"
#include "simulator/published/software/run_software.h"

namespace fsdp {
namespace {

constexpr std::int64_t kLarge = 128;     // GPUs above which pairs are summed up apart
constexpr std::size_t kMostValues = 64;  // of one knob, all of which are paired with one another

// What can differ. Numbers are ordered as numbers, words as words.
struct Value {
  std::int64_t number = 0;
  std::string text;
  friend auto operator<=>(const Value&, const Value&) = default;
};
struct Field {
  const char* name;
  Value value;
};

std::int64_t per_gpu(const PublishedRun& r) { return *r.global_batch / *r.gpus; }

std::string sharding_of(const PublishedRun& r) {
  const std::string s = lower_case(r.strategy);
  if (lower_case(r.framework) == "ddp" || s == "ddp" || s == "no_shard") return "none";
  return *r.dp_replicate > 1 ? fmt::format("hybrid of {}", *r.dp_shard) : "full";
}

bool keeps_parameters(const PublishedRun& r) {
  const std::string reshard = lower_case(r.reshard);
  return says(r.strategy, "shard_grad_op") || reshard == "false" || reshard == "never";
}

Value number(const std::optional<std::int64_t>& n) { return {n.value_or(0), n ? fmt::format("{}", *n) : "not stated"}; }
Value text(const std::string& cell) { return {0, cell.empty() ? "not stated" : lower_case(cell)}; }

// The knobs of a run, by the names that people read.
std::vector<Field> knobs_of(const PublishedRun& r) {
  const std::string clip = r.clip_norm ? fmt::format("{:g}", *r.clip_norm) : "not stated";
  return {{"sharding", {0, sharding_of(r)}},
          {"GPUs", number(r.gpus)},
          {"micro-batch", number(r.micro_batch)},
          {"accumulation", number(r.grad_accum)},
          {"sequence", number(r.seq_len)},
          {"checkpointing", text(r.activation_checkpointing)},
          {"compile", text(r.compile)},
          {"reshard", {0, keeps_parameters(r) ? "kept after forward" : text(r.reshard).text}},
          {"types", {0, lower_case(fmt::format("{}, reduced in {}, {}", r.param_dtype, r.reduce_dtype, r.precision))}},
          {"float8", text(r.float8)},
          {"attention", text(r.attention)},
          {"optimizer", text(r.optimizer)},
          {"offload", text(r.cpu_offload)},
          {"backward prefetch", text(r.backward_prefetch)},
          {"gradient sync", text(r.grad_sync)},
          {"clipping", {0, clip}},
          {"loss", text(r.loss)},
          {"wrap", text(r.wrap)},
          {"expandable segments", text(r.expandable_segments)},
          {"framework", text(r.framework)}};
}

// What no pair differs in. The parameters of a model with learned positions depend on the sequence, so that they count
// only where the architecture is not stated.
std::string setting_of(const PublishedRun& r) {
  const std::int64_t params = r.layers && r.hidden ? 0 : r.params.value_or(0);
  std::string out = fmt::format("{}\n{}\n{}\n{}\n{}\n", r.source, r.gpu, r.model, r.software, r.software_generation);
  for (const auto& n : {r.layers, r.hidden, r.heads, r.kv_heads, r.ffn, r.vocab, r.gpus_per_node})
    out += fmt::format("{},", n.value_or(-1));
  return out + fmt::format("{},{},{}", params, r.fabric_gbps_per_gpu.value_or(-1), month_of(r).value_or(-1));
}

// A configuration, and the means of what was measured and predicted for it.
struct Configuration {
  const PublishedRun* run = nullptr;
  std::vector<std::string> ids;
  bool trusted = true;
  double measured = 0, predicted = 0;  // seconds per token and GPU
};

std::vector<Configuration> configurations(const AccuracyReport& report) {
  std::vector<Configuration> out;
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const AccuracyRow& row = report.rows[i];
    const PublishedRun& run = report.runs[i];
    if (!row.measured_step_time_s || !row.predicted_step_time_s) continue;
    std::string key = setting_of(run);
    for (const Field& f : knobs_of(run)) key += fmt::format("\n{}", f.value.text);
    const auto [at, added] = known.try_emplace(key + fmt::format("\n{}", *run.global_batch), out.size());
    if (added) out.push_back({&run, {}, true, 0, 0});
    Configuration& c = out[at->second];
    const double tokens = static_cast<double>(per_gpu(run)) * static_cast<double>(*run.seq_len);
    c.ids.push_back(row.id);
    c.trusted = c.trusted && row.trust == "A";
    c.measured += *row.measured_step_time_s / tokens;
    c.predicted += *row.predicted_step_time_s / tokens;
  }
  for (Configuration& c : out) {
    const auto n = static_cast<double>(c.ids.size());
    c.measured /= n, c.predicted /= n;
  }
  return out;
}

// A way in which two runs differ: the knobs that may, and a sum that must not.
struct Knob {
  const char* name;
  std::vector<const char*> fields;  // the first one's value names the run
  enum class Same { nothing, batch_per_gpu, global_batch } same = Same::nothing;
};

std::vector<Knob> all_knobs(const PublishedRun& any) {
  std::vector<Knob> out;
  for (const Field& f : knobs_of(any)) {
    out.push_back({f.name, {f.name}});
    if (f.name == std::string_view("GPUs"))
      out.push_back({"GPUs, same global batch", {"GPUs", "accumulation"}, Knob::Same::global_batch});
    if (f.name == std::string_view("micro-batch"))
      out.push_back({"micro-batch, same global batch", {"micro-batch", "accumulation"}, Knob::Same::batch_per_gpu});
  }
  return out;
}

// All but the knob; empty where the pair is another knob's as well.
std::string rest_of(const PublishedRun& r, const Knob& knob) {
  std::string key = setting_of(r);
  for (const Field& f : knobs_of(r))
    if (std::find_if(knob.fields.begin(), knob.fields.end(),
                     [&](const char* name) { return std::string_view(name) == f.name; }) == knob.fields.end())
      key += "\n" + f.value.text;
  if (knob.same == Knob::Same::batch_per_gpu) key += fmt::format("\n{}", per_gpu(r));
  if (knob.same == Knob::Same::global_batch) key += fmt::format("\n{}", *r.global_batch);
  return key;
}

Value value_of(const PublishedRun& r, const Knob& knob) {
  for (Field& f : knobs_of(r))
    if (std::string_view(f.name) == knob.fields[0]) return std::move(f.value);
  return {};
}

RunPair pair_of(const Knob& knob, const Configuration& from, const Configuration& to) {
  const PublishedRun &a = *from.run, &b = *to.run;
  RunPair p;
  p.knob = knob.name;
  p.from = value_of(a, knob).text, p.to = value_of(b, knob).text;
  p.from_rows = from.ids, p.to_rows = to.ids;
  p.source = a.source, p.model = a.model, p.gpu = a.gpu;
  p.trust = from.trusted && to.trusted ? "A" : "B";
  p.gpus = std::max(*a.gpus, *b.gpus);
  p.measured = to.measured / from.measured - 1;
  p.predicted = to.predicted / from.predicted - 1;
  return p;
}

void add_pairs(std::vector<RunPair>& out, const Knob& knob, std::span<const Configuration> all) {
  std::map<std::string, std::vector<const Configuration*>> groups;
  std::vector<std::vector<const Configuration*>*> in_order;
  for (const Configuration& c : all) {
    auto& group = groups[rest_of(*c.run, knob)];
    if (group.empty()) in_order.push_back(&group);
    group.push_back(&c);
  }
  for (auto* const group : in_order) {
    std::stable_sort(group->begin(), group->end(), [&](const Configuration* a, const Configuration* b) {
      return value_of(*a->run, knob) < value_of(*b->run, knob);
    });
    const std::size_t reach = group->size() > kMostValues ? 1 : group->size();
    for (std::size_t i = 0; i < group->size(); ++i)
      for (std::size_t j = i + 1; j < std::min(group->size(), i + 1 + reach); ++j) {
        const Configuration &a = *(*group)[i], &b = *(*group)[j];
        // Where accumulation does not follow, the pair is the plain knob's.
        const bool plain = knob.fields.size() > 1 && a.run->grad_accum == b.run->grad_accum;
        if (!plain && value_of(*a.run, knob) != value_of(*b.run, knob)) out.push_back(pair_of(knob, a, b));
      }
  }
}

PairGroup group_of(std::string name, const std::vector<RunPair>& pairs, const auto& belongs) {
  PairGroup g;
  g.name = std::move(name);
  std::vector<double> errors;
  std::vector<std::string> ids;
  for (const RunPair& p : pairs) {
    if (!belongs(p)) continue;
    errors.push_back(p.error());
    ids.push_back(p.from_rows[0] + ", " + p.to_rows[0]);
    g.clear += p.clear() ? 1 : 0;
    g.sign_right += p.clear() && p.sign_right() ? 1 : 0;
  }
  g.error = summarize_errors(errors, ids);
  return g;
}

}  // namespace

PairReport pair_up(const AccuracyReport& report) {
  if (report.runs.size() != report.rows.size()) throw InternalError("pairs of a report that did not keep its runs");
  PairReport out;
  const std::vector<Configuration> all = configurations(report);
  if (all.empty()) return out;
  const std::vector<Knob> knobs = all_knobs(*all[0].run);
  for (const Knob& k : knobs) add_pairs(out.pairs, k, all);
  const auto add_group = [&](std::string name, const auto& belongs) {
    PairGroup g = group_of(std::move(name), out.pairs, belongs);
    if (g.error.rows > 0) out.groups.push_back(std::move(g));
  };
  add_group("all", [](const RunPair&) { return true; });
  add_group("trust A", [](const RunPair& p) { return p.trust == "A"; });
  add_group(fmt::format("over {} GPUs", kLarge), [](const RunPair& p) { return p.gpus > kLarge; });
  for (const Knob& k : knobs) {
    add_group(k.name, [&](const RunPair& p) { return p.knob == k.name; });
    if (k.name == std::string_view("sharding"))
      add_group(fmt::format("sharding, over {} GPUs", kLarge),
                [&](const RunPair& p) { return p.knob == k.name && p.gpus > kLarge; });
  }
  return out;
}

}  // namespace fsdp
