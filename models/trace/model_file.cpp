#include "models/trace/model_file.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "models/graph/op_ranges.h"
#include "models/index.h"
#include "models/input/limits.h"
#include "models/input/suggest.h"
#include "models/trace/check_trace.h"
#include "models/trace/kinds.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostIds = std::int64_t{1} << 30;

class Reading {
 public:
  Reading(JsonObject& document, std::string_view where) : root_(document), where_(where) {}

  ModelGraph graph() {
    g_.name = root_.text("name");
    g_.family = "exported";
    root_.ignore("torch");
    g_.trace.seq_len = root_.integer("seq_len", kSeqLen.least, kSeqLen.most);
    g_.trace.dtype = parse_dtype(root_.text("dtype"), root_.where("dtype"));
    g_.max_seq_len = g_.trace.seq_len;
    for (const JsonValue& item : root_.array("batch")) g_.trace.batch.push_back(read_scaled(item));
    if (root_.has("notes")) g_.notes = root_.texts("notes");
    modules();
    parameters();
    for (const JsonValue& item : root_.array("kinds")) {
      JsonObject kind = item.object();
      KindOfOp op;
      g_.trace.kinds.push_back(read_kind(kind, op));
      op.shape.traced = static_cast<std::int32_t>(kinds_.size());
      op.shape.opaque_flops_per_token =
          model_flops_per_sequence(g_.trace.kinds.back()) / 3 / static_cast<double>(g_.trace.seq_len);
      op.shape.opaque_saved_bytes_per_token = g_.trace.kinds.back().saved.per_sequence / g_.trace.seq_len;
      kinds_.push_back(std::move(op));
    }
    for (const JsonValue& item : root_.array("ops")) op(item);
    root_.finish();
    if (g_.ops.empty()) root_.refuse("ops", "are none");
    settle_trace(g_, where_);
    tensors();
    set_op_ranges(g_);
    check_graph(g_, where_);
    return std::move(g_);
  }

 private:
  void modules() {
    for (const JsonValue& item : root_.array("modules")) {
      const std::vector<JsonValue> parts = item.array();
      if (parts.size() != 3) item.refuse("must be [name, class, flags]");
      Module m;
      m.name = parts[0].text();
      m.class_name = parts[1].text();
      const std::int64_t flags = parts[2].integer(0, 3);
      m.container = (flags & 1) != 0;
      m.block = (flags & 2) != 0;
      if (!g_.modules.empty()) {
        const std::size_t dot = m.name.rfind('.');
        const auto parent = module_.find(dot == std::string::npos ? "" : m.name.substr(0, dot));
        if (parent == module_.end()) item.refuse("stands before the module that it is in");
        m.parent = parent->second;
      }
      module_.emplace(m.name, static_cast<std::int32_t>(g_.modules.size()));
      g_.modules.push_back(std::move(m));
    }
  }

  std::int32_t owner(const std::string& name, const JsonValue& item) const {
    const std::size_t dot = name.rfind('.');
    const auto found = module_.find(dot == std::string::npos ? "" : name.substr(0, dot));
    if (found == module_.end()) item.refuse("'" + printable(name) + "' is of no module");
    return found->second;
  }

  void parameters() {
    for (const JsonValue& item : root_.array("parameters")) {
      JsonObject o = item.object();
      Parameter p;
      p.name = o.text("name");
      p.shape = o.integers("shape", 1, kMostIds << 10);
      if (o.has("aliases")) p.aliases = o.texts("aliases");
      p.trainable = !o.optional_boolean("frozen").value_or(false);
      o.finish();
      p.modules.push_back(owner(p.name, item));
      for (const std::string& alias : p.aliases) p.modules.push_back(owner(alias, item));
      g_.parameters.push_back(std::move(p));
    }
  }

  std::vector<std::int32_t> ids(const JsonValue& list, std::size_t below) const {
    std::vector<std::int32_t> found;
    for (const std::int64_t id : list.integers(0, static_cast<std::int64_t>(below) - 1))
      found.push_back(static_cast<std::int32_t>(id));
    return found;
  }

  void op(const JsonValue& item) {
    const std::vector<JsonValue> parts = item.array();
    if (parts.size() != 5) item.refuse("must be [kind, module, parameters, values, gradient values]");
    TracedOp traced;
    traced.kind = static_cast<std::int32_t>(parts[0].integer(0, static_cast<std::int64_t>(kinds_.size()) - 1));
    Op op;
    op.kind = kinds_[at(traced.kind)].kind;
    op.shape = kinds_[at(traced.kind)].shape;
    op.module = static_cast<std::int32_t>(parts[1].integer(-1, static_cast<std::int64_t>(g_.modules.size()) - 1));
    op.params = ids(parts[2], g_.parameters.size());
    for (const std::int32_t p : op.params)
      if (g_.parameters[at(p)].trainable) traced.gradients.push_back(p);
    traced.values = ids(parts[3], kMostIds);
    traced.gradient_values = ids(parts[4], kMostIds);
    if (op.shape.vocab > g_.vocab) g_.vocab = op.shape.vocab;
    g_.trace.ops.push_back(std::move(traced));
    g_.ops.push_back(std::move(op));
  }

  std::int32_t tensor(TensorKind kind, std::int64_t width, bool requires_grad) {
    g_.tensors.push_back({.kind = kind, .width = std::max<std::int64_t>(width, 1), .requires_grad = requires_grad});
    return static_cast<std::int32_t>(g_.tensors.size()) - 1;
  }

  // A value that another op reads is a tensor. An op that makes none has one of its own and one that reads none reads
  // the batch, so that there is a graph.
  void tensors() {
    g_.ids = tensor(TensorKind::ids, 1, false);
    g_.targets = tensor(TensorKind::ids, 1, false);
    std::vector<char> read;
    for (const TracedOp& op : g_.trace.ops) {
      const TracedKind& k = g_.trace.kinds[at(op.kind)];
      read.resize(static_cast<std::size_t>(op.first_value) + k.forward.makes.size(), 0);
      for (std::int32_t i = 0; i < k.reads; ++i) read[at(op.values[at(i)])] = 1;
    }
    std::vector<std::int32_t> tensor_of(read.size(), kNone);
    for (std::size_t i = 0; i < g_.ops.size(); ++i) {
      Op& op = g_.ops[i];
      const TracedOp& traced = g_.trace.ops[i];
      const TracedKind& k = g_.trace.kinds[at(traced.kind)];
      for (std::int32_t v = 0; v < k.reads; ++v) op.inputs.push_back(tensor_of[at(traced.values[at(v)])]);
      if (op.inputs.empty()) op.inputs.push_back(g_.ids);
      for (std::size_t m = 0; m < k.forward.makes.size(); ++m) {
        const std::size_t value = static_cast<std::size_t>(traced.first_value) + m;
        if (read[value] == 0) continue;
        const TracedValue& made = k.forward.makes[m];
        tensor_of[value] =
            tensor(TensorKind::activation, made.bytes.per_sequence / g_.trace.seq_len / size_of(g_.trace.dtype),
                   k.differentiable && made.dtype != DType::i64);
        op.outputs.push_back(tensor_of[value]);
      }
      const bool loss = i + 1 == g_.ops.size();
      if (loss || op.outputs.empty()) {
        op.outputs.clear();
        op.outputs.push_back(tensor(loss ? TensorKind::loss : TensorKind::activation, 1, k.differentiable));
      }
    }
  }

  JsonObject& root_;
  std::string_view where_;
  ModelGraph g_;
  std::unordered_map<std::string, std::int32_t> module_;
  std::vector<KindOfOp> kinds_;
};

}  // namespace

ModelGraph model_from_trace(JsonObject& document, std::string_view where, std::int64_t seq_len) {
  ModelGraph graph = Reading(document, where).graph();
  if (seq_len != 0) require_traced(graph, {.seq_len = seq_len, .element_bytes = size_of(graph.trace.dtype)});
  return graph;
}

void require_traced(const ModelGraph& model, const Workload& w) {
  const Trace& t = model.trace;
  if (t.empty()) return;
  if (w.seq_len != t.seq_len)
    throw InputError(
        setting("seq_len"),
        fmt::format("{}: '{}' was exported for sequences of {} tokens", w.seq_len, printable(model.name), t.seq_len),
        fmt::format("leave it out, or export the model with inputs of {} tokens", w.seq_len));
  if (w.element_bytes != size_of(t.dtype))
    throw InputError(setting("param_dtype"),
                     fmt::format("'{}' was exported in {}", printable(model.name), name(t.dtype)),
                     fmt::format("use {}, or export the model in the other type (--dtype)", name(t.dtype)));
  if (w.loss_chunks != 1)
    throw InputError({"plan", "loss_chunks"},
                     fmt::format("'{}' was exported with the loss that it has", printable(model.name)),
                     "leave it out, or export the model with a loss in parts");
}

}  // namespace fsdp
