#include "simulator/analysis/memory_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/index.h"
#include "simulator/analysis/times.h"
#include "simulator/engine/memory.h"

namespace fsdp {
namespace {

MemoryPart part_of_kind(BufferKind kind) {
  switch (kind) {
    case BufferKind::parameter_shard: return MemoryPart::parameter_shards;
    case BufferKind::optimizer_state: return MemoryPart::optimizer_states;
    case BufferKind::sharded_gradient: return MemoryPart::sharded_gradients;
    case BufferKind::unsharded_parameter:
    case BufferKind::kept_shard: return MemoryPart::gathered_parameters;
    case BufferKind::cast_shard:
    case BufferKind::gather: return MemoryPart::gather_buffers;
    case BufferKind::gradient:
    case BufferKind::gradient_accumulator: return MemoryPart::gradients;
    case BufferKind::reduce_input:
    case BufferKind::reduce_output: return MemoryPart::reduce_buffers;
    case BufferKind::activation:
    case BufferKind::saved: return MemoryPart::activations;
    case BufferKind::activation_gradient: return MemoryPart::activation_gradients;
    case BufferKind::scratch: return MemoryPart::temporaries;
    case BufferKind::batch:
    case BufferKind::scalar:
    case BufferKind::workspace: break;
  }
  return MemoryPart::other;
}

enum class Phase : std::uint8_t { init, first_forward, first_backward, first_optimizer, forward, backward, optimizer };
constexpr int kPhases = 7;
constexpr std::string_view kPhaseNames[kPhases] = {
    "init", "first step: forward", "first step: backward", "first step: optimizer", "forward", "backward", "optimizer"};

class Reporter {
 public:
  Reporter(const Program& program, const ShardingPlan& plan, const ModelGraph& model)
      : program_(program),
        plan_(plan),
        model_(model),
        part_(parts_of_buffers(program, model)),
        live_(program.buffers.size(), 0),
        allocator_(program.buffers.size(), nullptr) {}

  MemoryReport report() {
    const Step* const steps[3] = {&program_.init, &program_.first_step, &program_.steady_step};
    for (int s = 0; s < 3; ++s) replay(*steps[s], s);
    MemoryReport r;
    for (int p = 0; p < kPhases; ++p) {
      if (!moments_[p].op) continue;
      if (best_ == p) r.peak = r.moments.size();
      r.moments.push_back(moment(p));
    }
    r.items = items();
    r.host_peak = replay_memory(program_).host_peak;
    r.differences = known_differences(program_, plan_, model_);
    return r;
  }

 private:
  struct Peak {
    std::int64_t total = -1;
    const Operation* op = nullptr;
    std::array<std::int64_t, kMemoryParts> bytes{};
  };

  Phase phase_of(const Operation& op, int step, Phase before) const {
    if (step == 0) return Phase::init;
    const bool first = step == 1;
    switch (op.action) {
      case Action::load_batch:
      case Action::forward: return first ? Phase::first_forward : Phase::forward;
      case Action::recompute:
      case Action::backward: return first ? Phase::first_backward : Phase::backward;
      case Action::clip_local_norm:
      case Action::fetch_state:
      case Action::optimizer:
      case Action::init_optimizer: return first ? Phase::first_optimizer : Phase::optimizer;
      default: return before;  // what stands between belongs to the phase that it stands in
    }
  }

  void replay(const Step& step, int number) {
    Phase phase = number == 0 ? Phase::init : number == 1 ? Phase::first_forward : Phase::forward;
    for (const Operation& op : step.ops) {
      phase = phase_of(op, number, phase);
      look(op, phase);
      const auto allocate = [&](std::int32_t b) {
        allocator_[at(b)] = &op;
        change(b, 1);
        look(op, phase);
      };
      memory_events(step, op, allocate, [&](std::int32_t b) { change(b, -1); });
    }
  }

  // Is this the highest moment of the phase, or of all?
  void look(const Operation& op, Phase phase) {
    Peak& peak = moments_[static_cast<std::size_t>(phase)];
    if (total_ <= peak.total) return;
    const bool highest = total_ > highest_;
    peak = {total_, &op, now_};
    if (!highest) return;
    highest_ = total_;
    best_ = static_cast<int>(phase);
    at_peak_ = live_;
    allocator_at_peak_ = allocator_;
  }

  void change(std::int32_t b, int sign) {
    live_[at(b)] = sign > 0;
    if (program_.buffers[at(b)].host) return;
    const std::int64_t bytes = sign * program_.buffers[at(b)].bytes;
    total_ += bytes;
    now_[static_cast<std::size_t>(part_[at(b)])] += bytes;
  }

  MemoryMoment moment(int phase) const {
    const Peak& p = moments_[static_cast<std::size_t>(phase)];
    return {std::string(kPhaseNames[phase]), describe(*p.op, program_, plan_, model_), p.total, p.bytes};
  }

  std::string label(std::int32_t id) const {
    const Buffer& b = program_.buffers[at(id)];
    std::string text(name(b.kind));
    if (b.unit >= 0) {
      const Unit& u = plan_.units[at(b.unit)];
      if (u.modules.front().empty()) text += " of the " + modules_text(plan_, b.unit);
      else if (plan_.units.size() > 2) text += " of units";
    }
    const Operation* op = allocator_at_peak_[at(id)];
    if (op != nullptr && op->graph_op >= 0) text += ", " + fsdp::text(action_key(*op, model_));
    return text;
  }

  std::vector<MemoryItem> items() const {
    std::map<std::string, MemoryItem> found;
    for (std::size_t b = 0; b < at_peak_.size(); ++b) {
      if (!at_peak_[b] || program_.buffers[b].host) continue;
      MemoryItem& item = found[label(static_cast<std::int32_t>(b))];
      ++item.count;
      item.bytes += program_.buffers[b].bytes;
    }
    std::vector<MemoryItem> sorted;
    for (auto& [what, item] : found) {
      item.what = what;
      sorted.push_back(std::move(item));
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const MemoryItem& a, const MemoryItem& b) { return a.bytes > b.bytes; });
    return sorted;
  }

  const Program& program_;
  const ShardingPlan& plan_;
  const ModelGraph& model_;
  std::vector<MemoryPart> part_;  // by buffer
  std::vector<char> live_, at_peak_;
  std::vector<const Operation*> allocator_, allocator_at_peak_;  // by buffer: the operation it was allocated for
  std::array<Peak, kPhases> moments_{};
  std::array<std::int64_t, kMemoryParts> now_{};
  std::int64_t total_ = 0, highest_ = -1;
  int best_ = -1;
};

}  // namespace

std::string_view name(MemoryPart p) {
  static constexpr std::array<std::string_view, kMemoryParts> names = {
      "parameter shards",     "optimizer states", "sharded gradients", "gathered parameters",
      "gather buffers",       "gradients",        "reduce buffers",    "activations",
      "activation gradients", "logits and loss",  "temporaries",       "batch, scalars, workspaces"};
  return names[static_cast<std::size_t>(p)];
}

std::string to_json_text(const MemoryReport& r) {
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "fsdp-plan/memory/1"},
               {"peak", r.moments.empty() ? "" : r.moments[r.peak].phase},
               {"moments", Json::array()}};
  for (const MemoryMoment& m : r.moments) {
    Json parts = Json::object();
    for (int p = 0; p < kMemoryParts; ++p)
      if (m.bytes[static_cast<std::size_t>(p)] != 0)
        parts[std::string(name(static_cast<MemoryPart>(p)))] = m.bytes[static_cast<std::size_t>(p)];
    json["moments"].push_back(
        {{"phase", m.phase}, {"at", m.at}, {"allocated_bytes", m.total}, {"parts_bytes", std::move(parts)}});
  }
  json["items_at_peak"] = Json::array();
  for (const MemoryItem& i : r.items)
    json["items_at_peak"].push_back({{"what", i.what}, {"count", i.count}, {"bytes", i.bytes}});
  json["host_peak_bytes"] = r.host_peak;
  json["known_differences"] = Json::array();
  for (const KnownDifference& d : r.differences)
    json["known_differences"].push_back({{"kind", name(d.kind)},
                                         {"bytes", d.bytes},
                                         {"pytorch_has", pytorch_has_more(d.kind) ? "more" : "fewer"},
                                         {"what", text(d.kind)}});
  return json.dump(2) + "\n";
}

// Buffers of the loss are those of the logits' tensor, and what the loss op saves and uses.
std::vector<MemoryPart> parts_of_buffers(const Program& program, const ModelGraph& model) {
  std::vector<MemoryPart> parts;
  parts.reserve(program.buffers.size());
  const auto loss = static_cast<std::int32_t>(model.ops.size()) - 1;
  const std::int32_t logits =
      loss >= 0 && !model.ops[at(loss)].inputs.empty() ? model.ops[at(loss)].inputs.front() : -1;
  for (const Buffer& b : program.buffers)
    parts.push_back(b.tensor >= 0 && b.tensor == logits ? MemoryPart::logits_and_loss : part_of_kind(b.kind));
  for (const Step* step : {&program.first_step, &program.steady_step}) {
    for (const Operation& op : step->ops) {
      if (op.graph_op < 0 || op.graph_op != loss) continue;
      const auto own = [&](std::int32_t b) {
        const BufferKind kind = program.buffers[at(b)].kind;
        if (kind == BufferKind::saved || kind == BufferKind::scratch) parts[at(b)] = MemoryPart::logits_and_loss;
      };
      for (const Arg& a : step->args_of(op))
        if (a.buffer >= 0) own(a.buffer);
      memory_events(*step, op, own, [](std::int32_t) {});
    }
  }
  return parts;
}

MemoryReport memory_report(const Program& program, const ShardingPlan& plan, const ModelGraph& model) {
  return Reporter(program, plan, model).report();
}

}  // namespace fsdp
