#include "planner/tensor/split.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/op_ranges.h"
#include "models/index.h"
#include "models/input/error.h"
#include "models/units.h"
#include "planner/tensor/styles.h"

namespace fsdp {
namespace {

// What of a tensor a rank holds.
enum class Part : std::uint8_t {
  whole,
  sequence,  // one part of each sequence
  columns,   // one part of each row
};

class Splitter {
 public:
  Splitter(const ModelGraph& whole, const ShardingPlan& plan, std::string_view where)
      : whole_(whole),
        plan_(plan),
        where_(where),
        n_(plan.tensor()),
        styles_(styles_of_modules(plan.tensor_plan, whole, where)),
        parts_(whole.tensors.size(), Part::whole),
        gathered_(whole.tensors.size(), kNone),
        last_reader_(whole.tensors.size(), kNone) {
    for (std::size_t i = 0; i < whole.ops.size(); ++i)
      for (const std::int32_t in : whole.ops[i].inputs) last_reader_[at(in)] = static_cast<std::int32_t>(i);
    out_ = whole;
    out_.ops.clear();
    out_.ops.reserve(whole.ops.size() * 5 / 4);
    out_.tensor_ranks = n_;
  }

  ModelGraph build() {
    refuse_unknown_modules();
    refuse_heads();
    for (const Op& op : whole_.ops) add(op);
    set_op_ranges(out_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem, const std::string& remedy) const {
    throw InputError({std::string(where_), "tensor_plan"}, problem, remedy);
  }

  const std::string& name_of(std::int32_t module) const { return whole_.modules[at(module)].name; }

  void refuse_unknown_modules() const {
    for (const Parameter& p : whole_.parameters) {
      if (p.modules.size() > 1)
        refuse("'" + p.name + "' is tied ('" + p.aliases.front() + "'), and a tied parameter cannot be split",
               "use tensor 1, or a model whose embedding and head are two parameters");
      if (!p.trainable)
        refuse("'" + p.name + "' is frozen, which is not known with tensor parallelism", "use tensor 1");
      if (!styles_[at(p.modules.front())])
        refuse("says nothing of '" + name_of(p.modules.front()) + "', which holds '" + p.name + "'",
               "add it as colwise, rowwise or sequence");
    }
  }

  // Before the layers that make them, whose features may divide where heads do not.
  void refuse_heads() const {
    for (const Op& op : whole_.ops) {
      if (op.kind != OpKind::attention) continue;
      (void)divided(op.shape.heads, "heads of '" + name_of(op.module) + "'");
      (void)divided(op.shape.kv_heads, "kv heads of '" + name_of(op.module) + "'");
    }
  }

  TensorStyle style_of(const Op& op) const { return *styles_[at(op.module)]; }

  std::int64_t divided(std::int64_t size, const std::string& what) const {
    if (size % n_ != 0)
      throw InputError(
          {std::string(where_), "tensor_plan"},
          "the " + std::to_string(size) + " " + what + " cannot be split over " + std::to_string(n_) + " tensor ranks",
          "use a tensor dimension that divides them");
    return size / n_;
  }

  Tensor& tensor(std::int32_t id) { return out_.tensors[at(id)]; }
  Part part(std::int32_t id) const { return parts_[at(id)]; }

  void set_part(std::int32_t id, Part part) {
    parts_[at(id)] = part;
    if (part == Part::sequence) tensor(id).sequence_parts = n_;
    if (part == Part::columns) tensor(id).width = whole_.tensors[at(id)].width / n_;
  }

  std::int32_t new_tensor(const Tensor& like) {
    out_.tensors.push_back(like);
    return static_cast<std::int32_t>(out_.tensors.size()) - 1;
  }

  // An op that moves `from`'s rows into `to` (or columns).
  void redistribute(Redistribution kind, std::int32_t module, std::int32_t from, std::int32_t to) {
    OpShape shape;
    shape.in = tensor(from).width, shape.out = tensor(to).width;
    shape.redistribution = kind;
    out_.ops.push_back({OpKind::redistribute, module, {from}, {to}, {}, shape});
  }

  // Whole sequences of a tensor: gathered once, by the first module that reads them.
  std::int32_t whole_sequences(const Op& reader) {
    const std::int32_t t = reader.inputs[0];
    if (part(t) == Part::whole) return t;
    if (part(t) == Part::columns)
      refuse("'" + name_of(reader.module) + "' is colwise and reads what is split by columns already",
             "make it rowwise");
    std::int32_t& gathered = gathered_[at(t)];
    if (gathered != kNone) return gathered;
    Tensor like = tensor(t);
    like.sequence_parts = 1;
    gathered = new_tensor(like);
    redistribute(Redistribution::gather, reads_together(reader), t, gathered);
    return gathered;
  }

  // The innermost module around a reader that all readers of its input are in (torchtitan's PrepareModuleInput).
  std::int32_t reads_together(const Op& reader) const {
    std::int32_t m = reader.module;
    while (m > 0 && whole_.modules[at(m)].op_end <= last_reader_[at(reader.inputs[0])])
      m = whole_.modules[at(m)].parent;
    return m;
  }

  void split_parameter(std::int32_t id, std::size_t dim) {
    std::int64_t& size = out_.parameters[at(id)].shape[dim];
    size = divided(size, (dim == 0 ? "rows of '" : "columns of '") + out_.parameters[at(id)].name + "'");
  }

  // Results of a rowwise module: sums over the ranks, each of which keeps its part of the sequence.
  void scatter(Op op) {
    const std::int32_t result = op.outputs[0], module = op.module;
    const std::int32_t sums = new_tensor(tensor(result));
    op.outputs[0] = sums;
    out_.ops.push_back(std::move(op));
    set_part(result, Part::sequence);
    redistribute(Redistribution::scatter, module, sums, result);
  }

  void embedding(Op op) {
    if (style_of(op) != TensorStyle::rowwise)
      refuse("'" + name_of(op.module) + "' is an embedding, and " + std::string(name(style_of(op))), "make it rowwise");
    split_parameter(op.params[0], 0);
    out_.parameters[at(op.params[0])].tensor_gradient = TensorGradient::whole;
    op.shape.vocab = out_.parameters[at(op.params[0])].shape[0];
    op.shape.vocab_parts = n_;
    scatter(std::move(op));
  }

  void norm(Op op) {
    if (style_of(op) != TensorStyle::sequence)
      refuse("'" + name_of(op.module) + "' is a norm, and " + std::string(name(style_of(op))), "make it sequence");
    const Part of = part(op.inputs[0]);
    if (of == Part::whole || (of == Part::columns && op.shape.groups == 1))
      refuse("'" + name_of(op.module) + "' is sequence, and what it reads is not split by tokens or heads",
             "make the module before it rowwise");
    if (of == Part::sequence) op.shape.sequence_parts = n_;
    else op.shape.groups = divided(op.shape.groups, "heads of '" + name_of(op.module) + "'");
    for (const std::int32_t p : op.params) out_.parameters[at(p)].tensor_gradient = TensorGradient::partial;
    set_part(op.outputs[0], of);
    out_.ops.push_back(std::move(op));
  }

  void linear(Op op) {
    const bool transposed = op.shape.transposed;
    if (style_of(op) == TensorStyle::sequence)
      refuse("'" + name_of(op.module) + "' is a linear layer, and sequence", "make it colwise or rowwise");
    if (style_of(op) == TensorStyle::rowwise) {
      if (part(op.inputs[0]) != Part::columns)
        refuse("'" + name_of(op.module) + "' is rowwise, and what it reads is not split by columns",
               "make what it reads colwise");
      if (op.params.size() > 1)
        refuse("'" + name_of(op.module) + "' is rowwise and has a bias, which is not known", "use tensor 1");
      split_parameter(op.params[0], transposed ? 0 : 1);
      op.shape.in = divided(op.shape.in, "inputs of '" + name_of(op.module) + "'");
      return scatter(std::move(op));
    }
    op.inputs[0] = whole_sequences(op);
    for (const std::int32_t p : op.params)
      split_parameter(p, transposed && out_.parameters[at(p)].shape.size() > 1 ? 1 : 0);
    op.shape.out = divided(op.shape.out, "outputs of '" + name_of(op.module) + "'");
    set_part(op.outputs[0], Part::columns);
    out_.ops.push_back(std::move(op));
  }

  // Ops without parameters: each rank computes what it holds.
  void apart(Op op) {
    const Part of = part(op.inputs[0]);
    for (const std::int32_t in : op.inputs)
      if (part(in) != of)
        refuse("the " + std::string(name(op.kind)) + " in '" + name_of(op.module) + "' reads tensors split in two ways",
               "split the modules before it in one way");
    OpShape& s = op.shape;
    const std::string& module = name_of(op.module);
    if (of == Part::sequence) s.sequence_parts = n_;
    else if (of == Part::columns && (op.kind == OpKind::rotary || op.kind == OpKind::attention)) {
      s.heads = divided(s.heads, "heads of '" + module + "'");
      if (op.kind == OpKind::attention) s.kv_heads = divided(s.kv_heads, "kv heads of '" + module + "'");
    } else if (of == Part::columns) {
      s.width = divided(s.width, "channels of '" + module + "'");
    }
    set_part(op.outputs[0], of);
    out_.ops.push_back(std::move(op));
  }

  std::int32_t made_by(std::int32_t tensor) const {  // a module
    std::int32_t module = 0;
    for (const Op& op : whole_.ops)
      for (const std::int32_t out : op.outputs)
        if (out == tensor) module = op.module;
    return module;
  }

  void loss(Op op) {
    if (part(op.inputs[0]) == Part::sequence) refuse("the logits are split by tokens", "make the head colwise");
    if (part(op.inputs[0]) == Part::columns && plan_.tensor_plan.loss_parallel) {
      op.shape.vocab = divided(op.shape.vocab, "tokens of the vocabulary");
      op.shape.vocab_parts = n_;
    } else if (part(op.inputs[0]) == Part::columns) {
      const std::int32_t logits = new_tensor(whole_.tensors[at(op.inputs[0])]);
      redistribute(Redistribution::gather_columns, made_by(op.inputs[0]), op.inputs[0], logits);
      op.inputs[0] = logits;
    }
    out_.ops.push_back(std::move(op));
  }

  void add(const Op& op) {
    switch (op.kind) {
      case OpKind::embedding: return embedding(op);
      case OpKind::rms_norm: return norm(op);
      case OpKind::linear: return linear(op);
      case OpKind::cross_entropy: return loss(op);
      case OpKind::rotary:
      case OpKind::attention:
        if (part(op.inputs[0]) == Part::sequence)
          refuse("'" + name_of(op.module) + "' reads parts of sequences", "make the modules before it colwise");
        [[fallthrough]];
      case OpKind::swiglu:
      case OpKind::gelu:
      case OpKind::geglu:
      case OpKind::add:
        if (!op.shape.packed && op.outputs.size() == 1) return apart(op);
        [[fallthrough]];
      default:
        refuse("the " + std::string(name(op.kind)) + " of '" + whole_.name + "' cannot be split", "use tensor 1");
    }
  }

  const ModelGraph& whole_;
  const ShardingPlan& plan_;
  const std::string_view where_;
  const std::int64_t n_;
  const std::vector<std::optional<TensorStyle>> styles_;
  std::vector<Part> parts_;             // by tensor of the whole model
  std::vector<std::int32_t> gathered_;  // by such a tensor: whole sequences of it; kNone: not yet
  std::vector<std::int32_t> last_reader_;
  ModelGraph out_;
};

}  // namespace

ModelGraph split_over_tensor(const ModelGraph& model, const ShardingPlan& plan, std::string_view where) {
  if (plan.tensor() <= 1) return model;
  return Splitter(model, plan, where).build();
}

}  // namespace fsdp
