#include "simulator/analysis/known_differences.h"

#include <algorithm>
#include <array>
#include <string>

#include "models/index.h"

namespace fsdp {
namespace {

// The tables of transformers' rotary embedding (modeling_llama.py, LlamaRotaryEmbedding.forward) while it makes the
// sines: angles of half of the channels, of all of them, cosines, sines, and sines before their factor, in fp32; and
// the positions (int64). GPT-2 has no such tables: most is held where the mask's makers look for packed sequences in
// the positions of B sequences (masking_utils.py, find_packed_sequence_indices): their differences, one more of each,
// where those are not 1, and the sums of that. gpt-oss makes the tables of half of the channels, and before them the
// masks of both kinds of layers, which it holds to the end of its forward, and checkpoints to that of their backward;
// the second mask is made of booleans. DeepSeek-V2's table is of complex numbers, of half of the channels: the angles,
// the numbers, and their product with the factor.
std::int64_t bytes_of_tables(const Program& program, const ShardingPlan& plan, const ModelGraph& model) {
  if (!program.implementation.starts_with("hf")) return 0;
  std::int64_t channels = 0;
  bool positions = false, halves = false, complex = false;
  for (const Op& op : model.ops) {
    if (op.kind == OpKind::rotary) channels = op.shape.rotated > 0 ? op.shape.rotated : op.shape.head_dim;
    halves = halves || op.shape.by_halves;
    complex = complex || (op.shape.wide_angles && op.shape.in > 0);
    positions = positions || op.kind == OpKind::position_embedding;
    if (channels > 0) break;
  }
  const std::int64_t integer = 8, number = 4, boolean = 1, s = plan.seq_len;
  const std::int64_t b = *std::max_element(plan.micro_batches.begin(), plan.micro_batches.end());
  if (halves) {
    const std::int64_t masks = 2 * b * s * s * static_cast<std::int64_t>(size_of(plan.param_dtype));
    return masks + std::max(s * (integer + channels / 2 * number * 4), boolean * s * s + 3 * integer * s);
  }
  if (complex) return s * (integer + channels / 2 * number * 5);
  if (channels > 0) return s * (integer + channels * number * 9 / 2);
  return positions ? s * integer + b * ((s + 1) * integer + s * (boolean + integer)) : 0;
}

// Norms that multiply by their weight in fp32 make its gradient in fp32, which units keep as it is until they reduce it
// (PyTorch 2.15).
std::int64_t bytes_of_wide_gradients(const Program& program, const ShardingPlan& plan, const ModelGraph& model) {
  std::int64_t bytes = 0;
  if (!program.implementation.starts_with("hf") || size_of(plan.param_dtype) != 2) return 0;
  for (const Op& op : model.ops)
    if (op.kind == OpKind::rms_norm && op.shape.wide_weight && model.parameters[at(op.params[0])].trainable)
      bytes += 2 * op.shape.width;
  return bytes;
}

class Replay {
 public:
  Replay(const Program& program, const ShardingPlan& plan, const ModelGraph& model)
      : program_(program), step_(program.steady_step), plan_(plan), model_(model), made_by_(program.buffers.size()) {}

  void run() {
    const std::int64_t before = alive_before();
    std::int64_t total = before, highest = before, highest_by_parts = before;
    bool training = true;
    for (const Operation& op : step_.ops) {
      training = training && op.action != Action::optimizer;
      std::int64_t most = total;
      const auto appear = [&](std::int32_t b) {
        made_by_[at(b)] = &op;
        total += counted(b);
        most = std::max(most, total);
      };
      memory_events(step_, op, appear, [&](std::int32_t b) { total -= counted(b); });
      if (!training) continue;
      highest = std::max(highest, most);
      highest_by_parts = std::max(highest_by_parts, most - made_one_by_one(op));
      if (op.action == Action::gather_copy_out) note_casts(op);
    }
    fewer_at_the_peak_ = highest - highest_by_parts;
  }

  [[nodiscard]] std::int64_t whole_operations() const {
    return std::max(fewer_at_the_peak_, casts_at_once_) + ends_of_rows();
  }
  // What turned of the queries' heads waits in PyTorch until the gradient of the whole is joined; that of the latent is
  // made as large as the latent here.
  [[nodiscard]] std::int64_t latent_parts() const {
    const std::int64_t tokens =
        plan_.seq_len * *std::max_element(plan_.micro_batches.begin(), plan_.micro_batches.end());
    std::int64_t most = 0;
    for (const Op& op : model_.ops) {
      if (op.kind != OpKind::rotary || op.shape.in == 0 || !has_units_inside(op.module)) continue;
      const std::int64_t bytes = size_of(op.shape.dtype.value_or(plan_.param_dtype));
      most = std::max(most, tokens * std::max(op.shape.heads * op.shape.rotated, op.shape.in) * bytes);
    }
    return most;
  }
  [[nodiscard]] std::int64_t adapted() const {
    std::int64_t most = 0;
    for (std::size_t b = 0; b < made_by_.size(); ++b)
      if (made_by_[b] != nullptr && around_adapter(static_cast<std::int32_t>(b)))
        most = std::max(most, program_.buffers[b].bytes);
    return most;
  }

 private:
  [[nodiscard]] std::int64_t counted(std::int32_t b) const {
    return program_.buffers[at(b)].host ? 0 : program_.buffers[at(b)].bytes;
  }

  // What the step frees before it makes it, or never makes.
  [[nodiscard]] std::int64_t alive_before() const {
    std::vector<char> seen(program_.buffers.size(), 0);
    std::int64_t total = 0;
    const auto made = [&](std::int32_t b) { seen[at(b)] = 1; };
    const auto freed = [&](std::int32_t b) {
      total += seen[at(b)] ? 0 : counted(b);
      seen[at(b)] = 1;
    };
    for (const Operation& op : step_.ops) memory_events(step_, op, made, freed);
    for (std::size_t b = 0; b < seen.size(); ++b) {
      const BufferKind kind = program_.buffers[b].kind;
      const bool state = kind == BufferKind::parameter_shard || kind == BufferKind::optimizer_state;
      if (!seen[b] && state) total += counted(static_cast<std::int32_t>(b));
    }
    return total;
  }

  // Bytes of an operation that PyTorch has not yet, or not any more, when it holds most: gradients of parameters, and
  // in a forward whose module runs again what it makes for a backward that will not come.
  [[nodiscard]] std::int64_t made_one_by_one(const Operation& op) const {
    if (op.action != Action::forward && op.action != Action::backward) return 0;
    std::int64_t bytes = 0;
    for (const std::int32_t b : step_.allocs_of(op)) {
      const BufferKind kind = program_.buffers[at(b)].kind;
      const auto frees = step_.frees_of(op);
      const bool unread = kind == BufferKind::saved && std::find(frees.begin(), frees.end(), b) != frees.end();
      if (kind == BufferKind::gradient || (op.action == Action::forward && unread)) bytes += counted(b);
    }
    return bytes;
  }

  // One rank gathers by a copy of the shard's cast. PyTorch casts and copies parameter by parameter.
  void note_casts(const Operation& op) {
    if (op.unit < 0) return;
    const UnitLayout& layout = program_.layouts[at(op.unit)];
    if (layout.shards != 1 || layout.cast_elements() == 0) return;
    std::int64_t all = 0, last = 0;
    for (const ShardedParam& p : layout.params) {
      if (p.kept == layout.param_dtype) continue;
      all += last;
      last = p.padded_shard() * size_of(layout.param_dtype);
    }
    casts_at_once_ = std::max(casts_at_once_, all);
  }

  // Where the rows of a mixture's experts end: made with what else its dispatch saves, and gone with the products.
  [[nodiscard]] std::int64_t ends_of_rows() const {
    std::int64_t most = 0;
    for (const Op& op : model_.ops)
      if (op.kind == OpKind::moe_dispatch) most = std::max(most, 4 * op.shape.experts.count);
    return most;
  }

  [[nodiscard]] bool has_units_inside(std::int32_t module) const {
    const std::string start = model_.modules[at(module)].name + ".";
    return std::any_of(plan_.units.begin(), plan_.units.end(),
                       [&](const Unit& u) { return u.modules.front().starts_with(start); });
  }

  // Does the buffer go into an adapted layer that is a unit of its own, or come out of it?
  [[nodiscard]] bool around_adapter(std::int32_t b) const {
    const Operation& op = *made_by_[at(b)];
    if (op.graph_op < 0 || model_.ops[at(op.graph_op)].kind != OpKind::linear) return false;
    const std::int32_t module = model_.ops[at(op.graph_op)].module;
    if (module < 0) return false;
    const std::string& name = model_.modules[at(module)].name;
    const BufferKind kind = program_.buffers[at(b)].kind;
    const bool in = kind == BufferKind::activation_gradient && op.action == Action::backward;
    const std::size_t end = name.find(in ? ".lora_A." : ".lora_B.");
    if (end == std::string::npos || (!in && kind != BufferKind::activation)) return false;
    return std::any_of(plan_.units.begin(), plan_.units.end(),
                       [&](const Unit& u) { return u.modules.front() == name.substr(0, end); });
  }

  const Program& program_;
  const Step& step_;
  const ShardingPlan& plan_;
  const ModelGraph& model_;
  std::vector<const Operation*> made_by_;  // by buffer
  std::int64_t fewer_at_the_peak_ = 0, casts_at_once_ = 0;
};

}  // namespace

std::string_view name(DifferenceKind k) {
  static constexpr std::array<std::string_view, kDifferenceKinds> names = {
      "tables", "whole operations", "adapted units", "latent parts", "wide gradients"};
  return names[static_cast<std::size_t>(k)];
}

std::string_view text(DifferenceKind k) {
  static constexpr std::array<std::string_view, kDifferenceKinds> texts = {
      "positions, cosines and sines, and masks that are written out, made once for all layers: most while they are "
      "made",
      "what one operation makes is counted for all of it; PyTorch makes and drops one tensor after the other",
      "between the hooks of units that are adapted layers, an activation that goes in or comes out",
      "between the hooks of units inside of latent attention, gradients of parts that wait to be joined",
      "gradients of the weights of norms that multiply by them in fp32, until they are reduced"};
  return texts[static_cast<std::size_t>(k)];
}

std::vector<KnownDifference> known_differences(const Program& program, const ShardingPlan& plan,
                                               const ModelGraph& model) {
  std::vector<KnownDifference> found;
  if (program.implementation == "native") return found;
  Replay replay(program, plan, model);
  replay.run();
  const std::array<std::int64_t, kDifferenceKinds> bytes = {
      bytes_of_tables(program, plan, model), replay.whole_operations(), replay.adapted(), replay.latent_parts(),
      bytes_of_wide_gradients(program, plan, model)};
  for (int k = 0; k < kDifferenceKinds; ++k)
    if (bytes[static_cast<std::size_t>(k)] > 0)
      found.push_back({static_cast<DifferenceKind>(k), bytes[static_cast<std::size_t>(k)]});
  return found;
}

}  // namespace fsdp
