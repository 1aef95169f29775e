// Every invariant that graph.h promises, one function per part.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "models/graph.h"
#include "models/graph/four_bits.h"
#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/units.h"

namespace fsdp {
namespace {

// A tensor that an op reads or makes: rows are tokens unless it says slots.
struct Form {
  enum Rows : std::uint8_t { tokens, slots };
  std::int64_t width = 0;
  Rows rows = tokens;
  bool ids = false;
};
using Extents = std::vector<std::int64_t>;

// One op against the table over OpKind. Optional biases are the last entry of `params`.
struct Signature {
  std::vector<Form> inputs, outputs;
  std::vector<Extents> params;
  bool optional_last_param = false;
  bool other_params = false;  // any, which the op does not read
};

Signature signature(const Op& op) {
  const OpShape& s = op.shape;
  const std::int64_t heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, all = s.width * s.groups;
  const Form id{1, Form::tokens, true}, slot_ids{s.experts.top_k, Form::tokens, true};
  const Form width{s.width}, in{s.in}, out{s.out}, slot_in{s.in, Form::slots}, slot_out{s.out, Form::slots};
  const Form slot_rows{s.width, Form::slots}, weights{s.experts.top_k};
  const auto of = [](Form::Rows r, std::int64_t w) { return Form{w, r}; };
  const Form::Rows either = s.experts.count > 0 ? Form::slots : Form::tokens;
  switch (op.kind) {
    case OpKind::embedding: return {{id}, {width}, {{s.vocab, s.width}}};
    case OpKind::position_embedding: return {{width}, {width}, {{s.positions, s.width}}};
    case OpKind::rms_norm: return {{{s.in > 0 ? s.in : all}}, {{all}}, {{s.width}}};
    case OpKind::layer_norm: return {{width}, {width}, {{s.width}, {s.width}}, true};
    case OpKind::linear:
      if (s.four_bits != FourBits::none) return {{in}, {out}, {{s.in * s.out / kFourBitsPacked, 1}, {s.out}}, true};
      return {{in}, {out}, {s.transposed ? Extents{s.in, s.out} : Extents{s.out, s.in}, {s.out}}, true};
    case OpKind::rotary:
      if (s.packed) return {{{heads + 2 * kv}}, {{heads + kv}}, {}};
      if (s.in > 0) return {{{heads}, {s.in}}, {{heads}, {s.rotated}}, {}};
      if (op.inputs.size() == 2) return {{{heads}, {kv}}, {{heads}, {kv}}, {}};
      return {{{heads}}, {{heads}}, {}};
    case OpKind::attention:
      if (s.sinks) return {{{heads}, {kv}, {kv}}, {{heads}}, {{s.heads}}};
      if (s.packed && op.inputs.size() == 2) return {{{heads + kv}, {heads + 2 * kv}}, {{heads}}, {}};
      if (s.packed) return {{{heads + 2 * kv}}, {{heads}}, {}};
      if (s.v_head_dim > 0)
        return {{{heads}, {s.heads * (s.head_dim - s.rotated + s.v_head_dim)}, {s.rotated}},
                {{s.heads * s.v_head_dim}},
                {}};
      return {{{heads}, {kv}, {kv}}, {{heads}}, {}};
    case OpKind::swiglu:
      if (s.packed) return {{of(either, 2 * s.width)}, {of(either, s.width)}, {}};
      return {{of(either, s.width), of(either, s.width)}, {of(either, s.width)}, {}};
    case OpKind::add: return {{of(either, s.width), of(either, s.width)}, {of(either, s.width)}, {}};
    case OpKind::geglu: return {{width, width}, {width}, {}};
    case OpKind::scale: return {{of(either, s.width)}, {of(either, s.width)}, {}, false, /*other_params=*/true};
    case OpKind::gelu:
    case OpKind::cast:
    case OpKind::soft_cap: return {{width}, {width}, {}};
    case OpKind::redistribute: return {{in}, {out}, {}};
    case OpKind::cross_entropy: return {{{s.vocab}, id}, {{1}}, {}};
    case OpKind::moe_route: return {{{s.experts.count}}, {weights, slot_ids}, {}};
    case OpKind::moe_dispatch: return {{width, slot_ids}, {slot_rows}, {}};
    case OpKind::expert_linear: {
      const std::int64_t n = s.experts.count;
      if (s.experts.alone) return {{slot_in}, {slot_out}, {{s.out, s.in}}};
      return {
          {slot_in}, {slot_out}, {s.transposed ? Extents{n, s.in, s.out} : Extents{n, s.out, s.in}, {n, s.out}}, true};
    }
    case OpKind::moe_combine:
      if (op.inputs.size() == 4) return {{slot_rows, weights, slot_ids, width}, {width}, {}};
      return {{slot_rows, weights, slot_ids}, {width}, {}};
    case OpKind::opaque: return {};
  }
  return {};
}

class Checker {
 public:
  Checker(const ModelGraph& g, std::string_view where) : g_(g), where_(where) {}

  void all() {
    modules();
    parameters();
    ops();
    ranges();
  }

 private:
  void require(bool holds, const std::string& what) const {
    if (!holds) throw InputError(where_, "malformed model graph: " + what);
  }
  static bool in(std::int32_t id, std::size_t size) { return id >= 0 && static_cast<std::size_t>(id) < size; }
  const Module& module(std::int32_t id) const { return g_.modules[static_cast<std::size_t>(id)]; }
  const Parameter& parameter(std::int32_t id) const { return g_.parameters[static_cast<std::size_t>(id)]; }
  const Tensor& tensor(std::int32_t id) const { return g_.tensors[static_cast<std::size_t>(id)]; }

  void modules() const {
    require(!g_.modules.empty() && g_.modules[0].name.empty() && g_.modules[0].parent == -1,
            "modules[0] must be the root");
    std::unordered_set<std::string_view> names;
    for (std::size_t i = 0; i < g_.modules.size(); ++i) {
      const Module& m = g_.modules[i];
      require(names.insert(m.name).second, fmt::format("two modules are named \"{}\"", m.name));
      require(!m.class_name.empty(), fmt::format("module \"{}\" has no class", m.name));
      if (i == 0) continue;
      require(m.parent >= 0 && static_cast<std::size_t>(m.parent) < i,
              fmt::format("module \"{}\" stands before its parent", m.name));
      const std::string& parent = module(m.parent).name;
      const std::string prefix = parent.empty() ? "" : parent + ".";
      require(m.name.size() > prefix.size() && m.name.starts_with(prefix) &&
                  m.name.find('.', prefix.size()) == std::string::npos,
              fmt::format("module \"{}\" is no child of \"{}\"", m.name, parent));
      // Pre-order: the one before is the parent or lies below it.
      const Module& before = g_.modules[i - 1];
      require(before.name == parent || before.name.starts_with(prefix),
              fmt::format("module \"{}\" is out of pre-order", m.name));
    }
  }

  void parameters() const {
    std::unordered_set<std::string_view> names;
    std::int32_t last_owner = -1;
    for (const Parameter& p : g_.parameters) {
      require(!p.shape.empty(), fmt::format("parameter \"{}\" has no dimension", p.name));
      for (std::int64_t d : p.shape) require(d > 0, fmt::format("parameter \"{}\" has a dimension of {}", p.name, d));
      (void)checked_mul(p.numel(), 8, where_ + ": " + p.name);
      require(p.modules.size() == p.aliases.size() + 1,
              fmt::format("parameter \"{}\" needs one owner per name", p.name));
      for (std::size_t i = 0; i < p.modules.size(); ++i) {
        const std::string& name = i == 0 ? p.name : p.aliases[i - 1];
        require(names.insert(name).second, fmt::format("two parameters are named \"{}\"", name));
        require(in(p.modules[i], g_.modules.size()), fmt::format("parameter \"{}\" has no owner", name));
        const std::string& owner = module(p.modules[i]).name;
        const std::string prefix = owner.empty() ? "" : owner + ".";
        require(name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos &&
                    name.size() > prefix.size(),
                fmt::format("parameter \"{}\" is not of module \"{}\"", name, owner));
      }
      require(p.modules[0] >= last_owner, fmt::format("parameter \"{}\" is out of named_parameters() order", p.name));
      last_owner = p.modules[0];
    }
    std::int64_t left = kMostParameters;
    for (const Parameter& p : g_.parameters) {
      if (p.numel() > left)
        throw InputError(where_, "the sizes make more than " + with_commas(kMostParameters) + " parameters",
                         "use fewer layers or smaller widths");
      left -= p.numel();
    }
  }

  void ops() const {
    require(in(g_.ids, g_.tensors.size()) && in(g_.targets, g_.tensors.size()), "ids and targets must be tensors");
    require(tensor(g_.ids).kind == TensorKind::ids && tensor(g_.targets).kind == TensorKind::ids,
            "ids and targets must be of kind ids");
    for (const Tensor& t : g_.tensors) {
      require(t.width > 0, "a tensor has no width");
      require(t.kind != TensorKind::ids || !t.requires_grad, "ids have no gradient");
      experts(t.experts, "a tensor");
    }
    require(tensor(g_.ids).width == 1 && tensor(g_.targets).width == 1, "ids and targets have width 1");
    require(!g_.ops.empty() && g_.ops.back().kind == OpKind::cross_entropy, "the last op must be the loss");
    std::vector<char> made(g_.tensors.size(), 0);
    made[static_cast<std::size_t>(g_.ids)] = made[static_cast<std::size_t>(g_.targets)] = 1;
    for (std::size_t i = 0; i < g_.ops.size(); ++i) one_op(g_.ops[i], i, made);
    for (std::size_t t = 0; t < made.size(); ++t) require(made[t] != 0, fmt::format("nobody makes tensor {}", t));
  }

  void one_op(const Op& op, std::size_t index, std::vector<char>& made) const {
    const std::string label = fmt::format("op {} ({})", index, name(op.kind));
    const bool loss = op.kind == OpKind::cross_entropy;
    require(loss == (index + 1 == g_.ops.size()), label + ": the loss must be the last op, and only that");
    require(loss ? op.module == -1 : in(op.module, g_.modules.size()), label + ": wrong module");
    const bool traced = op.shape.traced != kNone;
    require(!traced || in(op.shape.traced, g_.trace.kinds.size()), label + ": its trace is missing");
    require(traced || joins_experts(op) || (op.inputs.size() <= 8 && op.outputs.size() <= 8),
            label + ": more than 8 inputs or outputs");
    for (std::int32_t t : op.inputs) {
      require(in(t, g_.tensors.size()) && made[static_cast<std::size_t>(t)] != 0,
              label + ": reads a tensor that nobody has made yet");
    }
    for (std::int32_t t : op.outputs) {
      require(in(t, g_.tensors.size()) && made[static_cast<std::size_t>(t)] == 0,
              label + ": writes a tensor that exists already");
      made[static_cast<std::size_t>(t)] = 1;
      require((tensor(t).kind == TensorKind::loss) == loss, label + ": only the loss op makes a loss");
    }
    for (std::int32_t p : op.params) {
      require(in(p, g_.parameters.size()), label + ": unknown parameter");
      bool owned = false;
      for (std::int32_t m : parameter(p).modules) owned = owned || m == op.module;
      require(owned || traced, label + ": uses parameter \"" + parameter(p).name + "\" of another module");
    }
    if (op.kind != OpKind::opaque && !traced) matches(op, label);
  }

  static constexpr bool has_experts(OpKind kind) {
    return kind == OpKind::moe_route || kind == OpKind::moe_dispatch || kind == OpKind::expert_linear ||
           kind == OpKind::moe_combine;
  }
  void experts(const Experts& e, const std::string& label) const {
    if (e.count == 0) return require(e == Experts{}, label + ": without experts there is no choice of them");
    require(e.count > 0 && e.top_k > 0 && e.top_k <= e.count, label + ": top_k must be 1 to the number of experts");
    require(std::isfinite(e.capacity_factor) && e.capacity_factor > 0, label + ": capacity_factor must be positive");
  }

  void forms(const std::vector<std::int32_t>& ids, const std::vector<Form>& want, const Experts& e,
             const std::string& label) const {
    bool same = ids.size() == want.size();
    for (std::size_t i = 0; same && i < ids.size(); ++i) {
      const Tensor& t = tensor(ids[i]);
      same = t.width == want[i].width && t.experts == (want[i].rows == Form::slots ? e : Experts{}) &&
             (t.kind == TensorKind::ids) == want[i].ids;
    }
    require(same, label + " do not match its shape");
  }

  void matches(const Op& op, const std::string& label) const {
    const OpShape& s = op.shape;
    experts(s.experts, label);
    require(s.experts.count > 0 || !has_experts(op.kind), label + ": needs experts");
    const bool either = op.kind == OpKind::swiglu || op.kind == OpKind::add || op.kind == OpKind::scale;
    require(s.experts.count == 0 || has_experts(op.kind) || either, label + ": has no experts");
    if (op.kind == OpKind::attention) {
      require(s.kv_heads > 0 && s.heads % s.kv_heads == 0, label + ": kv_heads must divide heads");
      require(s.v_head_dim == 0 || (s.v_head_dim > 0 && s.kv_heads == s.heads && s.rotated > 0 && !s.packed),
              label + ": latent attention has as many heads of keys as of queries");
      require(s.window >= 0 && (s.causal || s.window == 0), label + ": a window needs causal attention");
    }
    require(op.kind != OpKind::moe_combine || op.inputs.size() != 4 || s.experts.alone,
            label + ": all experts are added to nothing");
    if (op.kind == OpKind::moe_route)
      require(s.groups > 0 && s.chosen_groups > 0 && s.chosen_groups <= s.groups && s.experts.count % s.groups == 0,
              label + ": groups must divide the experts, and some of them are chosen");
    if (op.kind == OpKind::rotary)
      require((s.in > 0 || s.head_dim % 2 == 0) && s.theta > 0,
              label + ": rotary needs an even head_dim and a positive theta");
    if (op.kind == OpKind::rms_norm || op.kind == OpKind::rotary)
      require(s.in >= 0 && (s.in == 0 || s.in >= (op.kind == OpKind::rotary ? s.rotated : s.width + 1)),
              label + ": it reads more than there is");
    require(s.rotated >= 0 && s.rotated <= s.head_dim && s.rotated % 2 == 0,
            label + ": an even number of channels turns, at most all of a head");
    require(std::isfinite(s.factor) && s.cap >= 0 && s.score_factor >= 0 && (s.cap > 0 || op.kind != OpKind::soft_cap),
            label + ": a cap must be positive, a factor finite");
    require(s.eps > 0, label + ": eps must be positive");
    const Signature want = signature(op);
    forms(op.inputs, want.inputs, s.experts, label + ": inputs");
    forms(op.outputs, want.outputs, s.experts, label + ": outputs");
    const std::size_t least = want.params.size() - (want.optional_last_param ? 1 : 0);
    if (want.other_params) return;
    require(op.params.size() >= least && op.params.size() <= want.params.size(),
            label + ": wrong number of parameters");
    for (std::size_t i = 0; i < op.params.size(); ++i) {
      require(parameter(op.params[i]).shape == want.params[i],
              label + ": parameter \"" + parameter(op.params[i]).name + "\" has another shape");
    }
  }

  // Op ranges nest, and an op of a range belongs to the module or to something below it. Between the modules of a list
  // others may run.
  void ranges() const {
    const auto ops = static_cast<std::int32_t>(g_.ops.size());
    std::vector<std::int32_t> first(g_.modules.size(), ops), last(g_.modules.size(), -1), count(g_.modules.size(), 0);
    for (std::int32_t i = 0; i < ops; ++i) {
      for (std::int32_t m = g_.ops[static_cast<std::size_t>(i)].module; m >= 0; m = module(m).parent) {
        const auto at = static_cast<std::size_t>(m);
        first[at] = std::min(first[at], i);
        last[at] = i;
        ++count[at];
      }
    }
    for (std::size_t m = 0; m < g_.modules.size(); ++m) {
      const Module& module = g_.modules[m];
      const std::int32_t size = module.op_end - module.op_begin;
      require((size == count[m] || module.container) &&
                  (size == 0 || (module.op_begin == first[m] && module.op_end == last[m] + 1)),
              fmt::format("module \"{}\": its ops are not exactly ops[{}, {})", module.name, module.op_begin,
                          module.op_end));
    }
  }

  const ModelGraph& g_;
  std::string where_;
};

}  // namespace

void check_graph(const ModelGraph& graph, std::string_view where) { Checker(graph, where).all(); }

}  // namespace fsdp
