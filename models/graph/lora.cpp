// A model with adapters is made in one pass over the model without them: modules, parameters and ops are copied in
// their order, and each adapted layer's are followed by those of its adapter.
#include "models/graph/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "models/graph/four_bits.h"
#include "models/graph/op_ranges.h"
#include "models/graph/output_layer.h"
#include "models/input/split.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::int64_t kMostRank = 65'536;  // far above what adapters are for
constexpr std::string_view kForm =
    "write it as rank=16 or rank=16,alpha=32,targets=q_proj+v_proj,dropout=0.05,base=nf4,prepared";
constexpr std::array<std::pair<std::string_view, FourBits>, 2> kBases{
    {{"nf4", FourBits::nf4}, {"nf4-double", FourBits::nf4_double}}};

template <class List>
auto& at(List& list, std::int32_t id) {
  return list[static_cast<std::size_t>(id)];
}

double number(std::string_view text, double most, const Origin& where) {
  double value = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && stopped == text.data() + text.size() && value > 0 && value <= most) return value;
  throw InputError(where, fmt::format("\"{}\" is no number above 0 and at most {:g}", printable(text), most),
                   std::string(kForm));
}

// nn.Linear, its subclasses and GPT-2's Conv1D: what peft adapts. A router of experts is a parameter to it.
bool is_layer(const ModelGraph& model, const Op& op) {
  const std::string& name = at(model.modules, op.module).class_name;
  return op.kind == OpKind::linear && (name.ends_with("Linear") || name == "Conv1D");
}

bool named(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

// Per op: 1 if its layer gets an adapter.
std::vector<char> adapted_ops(const ModelGraph& model, const LoraSpec& spec, const Origin& where) {
  std::vector<char> adapted(model.ops.size(), 0);
  std::vector<char> found(spec.targets.size(), 0);
  const std::int32_t head = logits_op(model);
  std::vector<std::string> known;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    const bool expert = op.kind == OpKind::expert_linear;
    if (!is_layer(model, op) && !expert) continue;
    const std::string& module = at(model.modules, op.module).name;
    if (const std::string leaf = module.substr(module.rfind('.') + 1);
        !expert && std::find(known.begin(), known.end(), leaf) == known.end())
      known.push_back(leaf);
    bool wanted = spec.targets.empty() && static_cast<std::int32_t>(i) != head;
    for (std::size_t t = 0; t < spec.targets.size(); ++t)
      if (named(module, spec.targets[t])) wanted = true, found[t] = 1;
    if (!wanted) continue;
    if (expert)
      throw InputError(where, "adapters of experts (" + module + ") are not modelled",
                       "name the layers to adapt, such as targets=" + join(known, "+"));
    if (at(model.parameters, op.params[0]).modules.size() > 1)
      throw InputError(where, "\"" + module + "\" shares its weight with another layer", "leave it out of the targets");
    adapted[i] = 1;
  }
  for (std::size_t t = 0; t < spec.targets.size(); ++t)
    if (found[t] == 0)
      throw InputError(where, "\"" + printable(spec.targets[t]) + "\" is no linear layer of " + model.name,
                       suggestion(spec.targets[t], known));
  if (std::find(adapted.begin(), adapted.end(), 1) == adapted.end())
    throw InputError(where, model.name + " has no linear layer to adapt");
  return adapted;
}

// The children that peft gives an adapted layer, in its order. `outer`: which of them is the parent, -1: the layer.
struct Child {
  std::string_view name, class_name;
  int outer;
  bool container;
};
constexpr std::array kChildren{Child{"base_layer", "", -1, false},
                               Child{"lora_dropout", "ModuleDict", -1, true},
                               Child{"default", "Identity", 1, false},  // Dropout, if there is any
                               Child{"lora_A", "ModuleDict", -1, true},
                               Child{"default", "Linear", 3, false},
                               Child{"lora_B", "ModuleDict", -1, true},
                               Child{"default", "Linear", 5, false},
                               Child{"lora_embedding_A", "ParameterDict", -1, true},
                               Child{"lora_embedding_B", "ParameterDict", -1, true},
                               Child{"lora_magnitude_vector", "ModuleDict", -1, true}};
constexpr std::int32_t kBase = 0, kDropout = 2, kDown = 4, kUp = 6;

class Adapter {
 public:
  Adapter(const ModelGraph& from, const LoraSpec& spec, std::vector<char> adapted)
      : from_(from), spec_(spec), adapted_(std::move(adapted)) {}

  ModelGraph build() {
    out_.name = fmt::format("{} with LoRA of rank {}", from_.name, spec_.rank);
    out_.family = from_.family, out_.max_seq_len = from_.max_seq_len, out_.vocab = from_.vocab;
    out_.notes = from_.notes, out_.ids = from_.ids, out_.targets = from_.targets;
    out_.tensors = from_.tensors;
    modules();
    parameters();
    for (std::size_t i = 0; i < from_.ops.size(); ++i) op(from_.ops[i], adapted_[i] != 0);
    set_op_ranges(out_);
    return std::move(out_);
  }

 private:
  void modules() {
    adapted_modules_.resize(from_.modules.size());
    for (std::size_t i = 0; i < from_.ops.size(); ++i)
      if (adapted_[i] != 0) at(adapted_modules_, from_.ops[i].module) = 1;
    for (std::size_t m = 0; m < from_.modules.size(); ++m) {
      moved_.push_back(static_cast<std::int32_t>(out_.modules.size()));
      Module copy = from_.modules[m];
      if (copy.parent >= 0) copy.parent = at(moved_, copy.parent);
      const std::string base_class = copy.class_name;
      if (adapted_modules_[m] != 0) copy.class_name = "Linear";  // peft's class of that name
      out_.modules.push_back(std::move(copy));
      if (adapted_modules_[m] == 0) continue;
      const std::int32_t layer = moved_.back();
      for (const Child& c : kChildren) {
        const std::int32_t parent = c.outer < 0 ? layer : layer + 1 + c.outer;
        out_.modules.push_back({.name = at(out_.modules, parent).name + "." + std::string(c.name),
                                .class_name = c.class_name.empty() ? base_class : std::string(c.class_name),
                                .parent = parent,
                                .container = c.container});
      }
      if (spec_.dropout > 0) at(out_.modules, layer + 1 + kDropout).class_name = "Dropout";
    }
  }

  std::int32_t add_parameter(std::int32_t module, std::vector<std::int64_t> shape) {
    out_.parameters.push_back({.name = at(out_.modules, module).name + ".weight",
                               .aliases = {},
                               .modules = {module},
                               .shape = std::move(shape)});
    return static_cast<std::int32_t>(out_.parameters.size()) - 1;
  }

  // A layer's weight and bias stand together, and its adapter's after them.
  void parameters() {
    adapters_.resize(from_.modules.size());
    shapes_.resize(from_.modules.size());
    for (const Op& o : from_.ops)
      if (o.kind == OpKind::linear) at(shapes_, o.module) = o.shape;
    for (std::size_t i = 0; i < from_.parameters.size(); ++i) {
      Parameter p = from_.parameters[i];
      const std::int32_t owner = p.modules[0];
      p.trainable = false;
      const bool adapted = at(adapted_modules_, owner) != 0;
      if (adapted) p.name.insert(at(from_.modules, owner).name.size(), ".base_layer");
      for (std::int32_t& m : p.modules) m = at(moved_, m);
      if (adapted) p.modules[0] += 1 + kBase;
      out_.parameters.push_back(std::move(p));
      moved_parameter_.push_back(static_cast<std::int32_t>(out_.parameters.size()) - 1);
      const bool last = i + 1 == from_.parameters.size() || from_.parameters[i + 1].modules[0] != owner;
      if (!adapted || !last) continue;
      const OpShape& shape = at(shapes_, owner);
      const std::int32_t layer = at(moved_, owner);
      const std::int32_t down = add_parameter(layer + 1 + kDown, {spec_.rank, shape.in});
      adapters_[static_cast<std::size_t>(owner)] = {down, add_parameter(layer + 1 + kUp, {shape.out, spec_.rank})};
    }
  }

  std::int32_t tensor(std::int64_t width) {
    out_.tensors.push_back({.kind = TensorKind::activation, .width = width});
    return static_cast<std::int32_t>(out_.tensors.size()) - 1;
  }

  void op(const Op& from, bool adapted) {
    Op copy = from;
    if (copy.module >= 0) copy.module = at(moved_, copy.module);
    for (std::int32_t& p : copy.params) p = at(moved_parameter_, p);
    if (!adapted) return out_.ops.push_back(std::move(copy));
    const std::int32_t layer = copy.module, result = copy.outputs[0], x = copy.inputs[0];
    const std::int64_t in = from.shape.in, out = from.shape.out;
    const auto [down, up] = at(adapters_, from.module);
    const std::int32_t base = tensor(out), low = tensor(spec_.rank), high = tensor(out), scaled = tensor(out);
    copy.module = layer + 1 + kBase, copy.outputs = {base};
    out_.ops.push_back(std::move(copy));
    const OpShape reads{.in = in, .out = spec_.rank, .dropout = spec_.dropout};
    out_.ops.push_back({OpKind::linear, layer + 1 + kDown, {x}, {low}, {down}, reads});
    out_.ops.push_back({OpKind::linear, layer + 1 + kUp, {low}, {high}, {up}, {.in = spec_.rank, .out = out}});
    const double factor = spec_.alpha.value_or(static_cast<double>(spec_.rank)) / static_cast<double>(spec_.rank);
    out_.ops.push_back({OpKind::scale, layer, {high}, {scaled}, {}, {.width = out, .factor = factor}});
    out_.ops.push_back({OpKind::add, layer, {base, scaled}, {result}, {}, {.width = out}});
  }

  struct Weights {
    std::int32_t down = kNone, up = kNone;
  };
  const ModelGraph& from_;
  const LoraSpec& spec_;
  std::vector<char> adapted_, adapted_modules_;
  std::vector<std::int32_t> moved_, moved_parameter_;  // old id -> new id
  std::vector<Weights> adapters_;                      // per old module
  std::vector<OpShape> shapes_;                        // of its linear layer, per old module
  ModelGraph out_;
};

}  // namespace

LoraSpec parse_lora(std::string_view text, const Origin& where) {
  LoraSpec spec;
  std::vector<std::string> keys;
  for (const std::string& said : split(text, ',')) {
    const std::string part = keys.empty() && said.find('=') == std::string::npos ? "rank=" + said : said;
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string key = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
    if (std::find(keys.begin(), keys.end(), key) != keys.end())
      throw InputError(where, "\"" + printable(key) + "\" stands twice", std::string(kForm));
    keys.push_back(key);
    if (part == "prepared") {
      spec.prepared = true;
    } else if (key == "rank") {
      const double rank = number(value, static_cast<double>(kMostRank), where);
      if (rank != static_cast<double>(static_cast<std::int64_t>(rank)))
        throw InputError(where, "rank " + printable(value) + " is no whole number", std::string(kForm));
      spec.rank = static_cast<std::int64_t>(rank);
    } else if (key == "alpha") {
      spec.alpha = number(value, 1e9, where);
    } else if (key == "targets") {
      if (value == kAllLinear) continue;
      for (const std::string& target : split(value, '+')) {
        if (target.empty()) throw InputError(where, "a target has no name", std::string(kForm));
        spec.targets.push_back(target);
      }
    } else if (key == "dropout") {
      if (!value.empty() && value.find_first_not_of("0.") == std::string::npos && value != ".") continue;  // none
      spec.dropout = number(value, 1, where);
      if (spec.dropout == 1) throw InputError(where, "dropout 1 leaves nothing", std::string(kForm));
    } else if (key == "base") {
      for (const auto& [name, kind] : kBases)
        if (value == name) spec.base = kind;
      if (spec.base == FourBits::none)
        throw InputError(where, "frozen weights are not kept in \"" + printable(value) + "\" here",
                         "use base=nf4, or base=nf4-double for scales in 8 bits");
    } else {
      throw InputError(where, "unknown part \"" + printable(said) + "\"", std::string(kForm));
    }
  }
  if (std::find(keys.begin(), keys.end(), "rank") == keys.end())
    throw InputError(where, "the rank is missing", std::string(kForm));
  if (spec.prepared && spec.base == FourBits::none)
    throw InputError(where, "only models with weights in 4 bits are prepared", "add base=nf4, or leave out prepared");
  return spec;
}

ModelGraph add_lora(ModelGraph model, const LoraSpec& spec, const Origin& where) {
  if (spec.rank < 1 || spec.rank > kMostRank)
    throw InputError(where, fmt::format("a rank of {} is not in 1 to {}", spec.rank, kMostRank));
  if (!model.trace.empty())
    throw InputError(where, printable(model.name) + " is as PyTorch ran it, and takes no adapters afterwards",
                     "put them into the model (peft) and export that");
  for (const Parameter& p : model.parameters)
    if (!p.trainable) throw InputError(where, model.name + " has frozen parameters already");
  ModelGraph adapted = freeze(Adapter(model, spec, adapted_ops(model, spec, where)).build(), {}, where.text());
  adapted = in_four_bits(std::move(adapted), spec.base, where);
  if (spec.prepared) {
    adapted = require_input_gradients(std::move(adapted));
    adapted.name += ", prepared for autocast";
    adapted.prepared = true;
  }
  check_graph(adapted, where.text());
  return adapted;
}

}  // namespace fsdp
