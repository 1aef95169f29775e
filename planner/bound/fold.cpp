#include "planner/bound/fold.h"

#include <algorithm>
#include <iterator>

#include "models/index.h"

namespace fsdp {
namespace {

constexpr std::size_t kFirst = 3, kFewest = 6;  // blocks

// What of a graph belongs to one block. Ids ascend.
struct Block {
  std::int32_t module = kNone, module_end = kNone;
  std::int32_t op_begin = 0, op_end = 0;
  std::vector<std::int32_t> parameters, tensors;  // tensors: what its ops make
};

std::int32_t place(const std::vector<std::int32_t>& ids, std::int32_t id) {
  const auto found = std::find(ids.begin(), ids.end(), id);
  return found == ids.end() ? kNone : static_cast<std::int32_t>(found - ids.begin());
}

std::vector<Block> blocks_of(const ModelGraph& g) {
  std::vector<Block> blocks;
  for (std::size_t m = 0; m < g.modules.size(); ++m) {
    if (!g.modules[m].block) continue;
    Block b{static_cast<std::int32_t>(m),
            static_cast<std::int32_t>(m) + 1,
            g.modules[m].op_begin,
            g.modules[m].op_end,
            {},
            {}};
    while (at(b.module_end) < g.modules.size() && g.modules[at(b.module_end)].parent >= b.module) ++b.module_end;
    for (std::int32_t o = b.op_begin; o < b.op_end; ++o)
      b.tensors.insert(b.tensors.end(), g.ops[at(o)].outputs.begin(), g.ops[at(o)].outputs.end());
    blocks.push_back(std::move(b));
  }
  for (std::size_t p = 0; p < g.parameters.size(); ++p) {
    const std::int32_t owner = g.parameters[p].modules.front();
    const auto after =
        std::upper_bound(blocks.begin(), blocks.end(), owner, [](auto m, const Block& b) { return m < b.module; });
    if (after != blocks.begin() && owner < std::prev(after)->module_end)
      std::prev(after)->parameters.push_back(static_cast<std::int32_t>(p));
  }
  return blocks;
}

class Comparison {
 public:
  explicit Comparison(const ModelGraph& g) : g_(g) {}

  // Is `b`, which runs after `a`, the same, and does it read of `a` what `a` reads of the one before it? (The first
  // block reads something of the rest instead.)
  [[nodiscard]] bool alike(const Block* before, const Block& a, const Block& b) const {
    if (a.module_end - a.module != b.module_end - b.module || a.op_end - a.op_begin != b.op_end - b.op_begin ||
        a.op_end != b.op_begin || a.parameters.size() != b.parameters.size() || a.tensors.size() != b.tensors.size())
      return false;
    for (std::int32_t m = 0; m < a.module_end - a.module; ++m)
      if (!alike(g_.modules[at(a.module + m)], a, g_.modules[at(b.module + m)], b, m == 0)) return false;
    for (std::size_t p = 0; p < a.parameters.size(); ++p)
      if (!alike(g_.parameters[at(a.parameters[p])], a, g_.parameters[at(b.parameters[p])], b)) return false;
    for (std::size_t t = 0; t < a.tensors.size(); ++t)
      if (g_.tensors[at(a.tensors[t])] != g_.tensors[at(b.tensors[t])]) return false;
    for (std::int32_t o = 0; o < a.op_end - a.op_begin; ++o)
      if (!alike(before, g_.ops[at(a.op_begin + o)], a, g_.ops[at(b.op_begin + o)], b)) return false;
    return true;
  }

 private:
  [[nodiscard]] static bool alike(const Module& m, const Block& a, const Module& n, const Block& b, bool top) {
    const bool no_ops = m.op_begin == m.op_end && n.op_begin == n.op_end;
    return m.class_name == n.class_name && m.container == n.container &&
           (no_ops ||
            (m.op_begin - a.op_begin == n.op_begin - b.op_begin && m.op_end - a.op_begin == n.op_end - b.op_begin)) &&
           (top ? m.parent == n.parent : m.parent - a.module == n.parent - b.module);
  }
  [[nodiscard]] static bool alike(const Parameter& p, const Block& a, const Parameter& q, const Block& b) {
    return p.modules.size() == 1 && q.modules.size() == 1 && p.modules[0] - a.module == q.modules[0] - b.module &&
           p.shape == q.shape && p.trainable == q.trainable && p.tensor_gradient == q.tensor_gradient;
  }
  [[nodiscard]] bool alike(const Block* before, const Op& x, const Block& a, const Op& y, const Block& b) const {
    if (x.kind != y.kind || !(x.shape == y.shape) || x.module - a.module != y.module - b.module ||
        x.inputs.size() != y.inputs.size() || x.outputs.size() != y.outputs.size() ||
        x.params.size() != y.params.size())
      return false;
    for (std::size_t i = 0; i < x.outputs.size(); ++i)
      if (place(a.tensors, x.outputs[i]) != place(b.tensors, y.outputs[i])) return false;
    for (std::size_t i = 0; i < x.params.size(); ++i) {
      const std::int32_t p = place(a.parameters, x.params[i]);
      if (p == kNone || p != place(b.parameters, y.params[i])) return false;
    }
    for (std::size_t i = 0; i < x.inputs.size(); ++i) {
      const std::int32_t inside = place(b.tensors, y.inputs[i]), carried = place(a.tensors, y.inputs[i]);
      const bool same = inside != kNone     ? place(a.tensors, x.inputs[i]) == inside
                        : carried == kNone  ? x.inputs[i] == y.inputs[i]  // read by all blocks
                        : before != nullptr ? place(before->tensors, x.inputs[i]) == carried
                                            : g_.tensors[at(x.inputs[i])] == g_.tensors[at(y.inputs[i])];
      if (!same) return false;
    }
    return true;
  }

  const ModelGraph& g_;
};

// Everything of a graph but some modules, parameters, tensors and ops, numbered anew.
class Without {
 public:
  // Stays: so many blocks at the front, and the last one.
  Without(const ModelGraph& g, const std::vector<Block>& blocks, std::size_t first) : g_(g) {
    const Block &kept = blocks[first - 1], &last = blocks.back();
    std::vector<char> module(g.modules.size(), 1), parameter(g.parameters.size(), 1), tensor(g.tensors.size(), 1),
        op(g.ops.size(), 1);
    for (std::size_t b = first; b + 1 < blocks.size(); ++b) {
      std::fill(module.begin() + blocks[b].module, module.begin() + blocks[b].module_end, 0);
      std::fill(op.begin() + blocks[b].op_begin, op.begin() + blocks[b].op_end, 0);
      for (const std::int32_t p : blocks[b].parameters) parameter[at(p)] = 0;
      for (const std::int32_t t : blocks[b].tensors) tensor[at(t)] = 0;
    }
    modules_ = numbers(module), parameters_ = numbers(parameter), tensors_ = numbers(tensor), ops_ = numbers(op);
    const Block& gone = blocks[blocks.size() - 2];  // the last block reads of the third what it read of this
    for (std::size_t t = 0; t < gone.tensors.size(); ++t) carried_.push_back({gone.tensors[t], kept.tensors[t]});
    last_begin_ = last.op_begin, last_end_ = last.op_end;
  }

  // nullopt: something else reads what is left out.
  [[nodiscard]] std::optional<ModelGraph> graph() const {
    ModelGraph out = g_;
    out.modules.clear(), out.parameters.clear(), out.tensors.clear(), out.ops.clear();
    for (std::size_t m = 0; m < g_.modules.size(); ++m) {
      if (modules_[m] == kNone) continue;
      Module kept = g_.modules[m];
      if (kept.parent >= 0) kept.parent = modules_[at(kept.parent)];
      kept.op_begin = op_at(kept.op_begin), kept.op_end = op_at(kept.op_end);
      out.modules.push_back(std::move(kept));
    }
    for (std::size_t p = 0; p < g_.parameters.size(); ++p) {
      if (parameters_[p] == kNone) continue;
      Parameter kept = g_.parameters[p];
      for (std::int32_t& m : kept.modules)
        if ((m = modules_[at(m)]) == kNone) return std::nullopt;
      out.parameters.push_back(std::move(kept));
    }
    for (std::size_t t = 0; t < g_.tensors.size(); ++t)
      if (tensors_[t] != kNone) out.tensors.push_back(g_.tensors[t]);
    for (std::size_t o = 0; o < g_.ops.size(); ++o) {
      if (ops_[o] == kNone) continue;
      Op kept = g_.ops[o];
      if (kept.module >= 0) kept.module = modules_[at(kept.module)];
      for (std::int32_t& t : kept.inputs)
        if ((t = read_by(static_cast<std::int32_t>(o), t)) == kNone) return std::nullopt;
      for (std::int32_t& t : kept.outputs) t = tensors_[at(t)];
      for (std::int32_t& p : kept.params)
        if ((p = parameters_[at(p)]) == kNone) return std::nullopt;
      out.ops.push_back(std::move(kept));
    }
    if (out.ids >= 0) out.ids = tensors_[at(out.ids)];
    if (out.targets >= 0) out.targets = tensors_[at(out.targets)];
    return out;
  }

 private:
  static std::vector<std::int32_t> numbers(const std::vector<char>& kept) {
    std::vector<std::int32_t> of(kept.size(), kNone);
    std::int32_t next = 0;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (kept[i]) of[i] = next++;
    return of;
  }
  // The number of the first op that is kept from there on.
  [[nodiscard]] std::int32_t op_at(std::int32_t old) const {
    return static_cast<std::int32_t>(
        std::count_if(ops_.begin(), ops_.begin() + old, [](auto n) { return n != kNone; }));
  }
  [[nodiscard]] std::int32_t read_by(std::int32_t op, std::int32_t tensor) const {
    if (tensors_[at(tensor)] == kNone && op >= last_begin_ && op < last_end_)
      for (const auto& [gone, kept] : carried_)
        if (gone == tensor) return tensors_[at(kept)];
    return tensors_[at(tensor)];
  }

  const ModelGraph& g_;
  std::vector<std::int32_t> modules_, parameters_, tensors_, ops_;  // new numbers; kNone: left out
  std::vector<std::pair<std::int32_t, std::int32_t>> carried_;
  std::int32_t last_begin_ = 0, last_end_ = 0;  // ops of the last block
};

// The model's blocks as they run; none where they are not all alike.
std::vector<Block> equal_blocks(const ModelGraph& g) {
  if (!g.trace.ops.empty()) return {};  // a trace is of all blocks
  std::vector<Block> blocks = blocks_of(g);
  std::stable_sort(blocks.begin(), blocks.end(), [](auto& a, auto& b) { return a.op_begin < b.op_begin; });
  const Comparison compare(g);
  for (std::size_t b = 1; b < blocks.size(); ++b)
    if (!compare.alike(b > 1 ? &blocks[b - 2] : nullptr, blocks[b - 1], blocks[b])) return {};
  return blocks;
}

}  // namespace

std::optional<Folded> fold(const ModelGraph& g) {
  const std::vector<Block> blocks = equal_blocks(g);
  if (blocks.size() < kFewest) return std::nullopt;
  auto folded = Without(g, blocks, kFirst).graph();
  if (!folded) return std::nullopt;
  Folded f{std::move(*folded), std::vector<std::size_t>(blocks.size(), 1)};
  f.stands_for.front() = 0;
  f.stands_for.back() = kFirst;
  return f;
}

std::optional<Folded> fold_units(const ModelGraph& g, std::size_t blocks_together) {
  const std::vector<Block> blocks = equal_blocks(g);
  const std::size_t rest = blocks.size() % blocks_together, last = rest == 0 ? blocks_together : rest;
  const std::size_t stay = 2 * blocks_together + last;
  if (stay >= blocks.size()) return std::nullopt;
  auto folded = Without(g, blocks, stay - 1).graph();
  if (!folded) return std::nullopt;
  Folded f{std::move(*folded), {}};
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::size_t behind = blocks.size() - b;  // this block and those after it
    f.stands_for.push_back(behind <= last        ? stay - behind
                           : b < blocks_together ? b
                                                 : blocks_together + b % blocks_together);
  }
  return f;
}

}  // namespace fsdp
