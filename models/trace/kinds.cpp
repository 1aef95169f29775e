#include "models/trace/kinds.h"

#include <array>
#include <cmath>
#include <string>

#include "models/dtype.h"
#include "models/input/limits.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostExtent = std::int64_t{1} << 40, kMostLaunches = 1'000'000, kMostEnded = 10'000;

// Extents of sequences are negative.
double extent(std::int64_t e) { return std::abs(static_cast<double>(e)); }

TracedValue read_value(const JsonValue& item) {
  const std::vector<JsonValue> parts = item.array();
  if (parts.size() != 3) item.refuse("must be [bytes, bytes per sequence, dtype]");
  return {{parts[0].integer(0, kMostOpBytes), parts[1].integer(0, kMostOpBytes)}, read_traced_dtype(parts[2])};
}

TracedProduct read_product(const JsonValue& item) {
  const std::vector<std::int64_t> e = item.integers(-kMostExtent, kMostExtent);
  if (e.size() != 4) item.refuse("must be [m, n, k, count]");
  return {e[0], e[1], e[2], e[3]};
}

TracedAttention read_attention(JsonObject o) {
  TracedAttention a;
  a.sequences = o.integer("sequences", -kMostExtent, kMostExtent);
  a.heads = o.integer("heads", 1, kMaxHeads);
  a.kv_heads = o.integer("kv_heads", 1, kMaxHeads);
  a.head_dim = o.integer("head_dim", 1, kMaxWidth);
  a.queries = o.integer("queries", 1, kMostExtent);
  a.keys = o.integer("keys", 1, kMostExtent);
  a.causal = o.optional_boolean("causal").value_or(false);
  a.masked = o.optional_boolean("masked").value_or(false);
  if (const auto bytes = o.find("bytes")) a.bytes = read_scaled(*bytes);
  o.finish();
  return a;
}

TracedWork read_work(JsonObject o) {
  TracedWork w;
  if (const auto bytes = o.find("bytes")) w.bytes = read_scaled(*bytes);
  w.launches = o.optional_integer("launches", 0, kMostLaunches).value_or(0);
  if (const auto products = o.find("products"))
    for (const JsonValue& item : products->array()) w.products.push_back(read_product(item));
  if (auto attention = o.optional_object("attention")) w.attention = read_attention(*attention);
  o.finish();
  return w;
}

// Pairs of what happens and an index. 0: an own value appears. Forward, with e modules that have returned: 1 + 2 e: an
// own value goes; 2 + 2 e: one of the op's `values`. Backward: 1: an own one goes; 2: one of `gradient_values`; 3: an
// own value of the forward; 4: one of `values`. The last two say that autograd lets go of it, too.
std::vector<TracedEvent> read_events(const JsonValue& list, bool backward) {
  const std::vector<std::int64_t> codes = list.integers(0, kMostExtent);
  if (codes.size() % 2 != 0) list.refuse("must be pairs");
  std::vector<TracedEvent> events;
  events.reserve(codes.size() / 2);
  for (std::size_t i = 0; i < codes.size(); i += 2) {
    const std::int64_t code = codes[i];
    if (code > (backward ? 4 : 2 + 2 * kMostEnded) || codes[i + 1] > kMaxWidth) list.refuse("holds an unknown event");
    TracedEvent e;
    e.index = static_cast<std::int32_t>(codes[i + 1]);
    e.is_own = code % 2 == 1 || code == 0;
    e.of_forward = !backward || code >= 3;
    e.what = code == 0               ? TracedEvent::What::appears
             : backward && code >= 3 ? TracedEvent::What::is_let_go
                                     : TracedEvent::What::goes;
    if (!backward && code > 0) e.ended = static_cast<std::int32_t>((code - 1) / 2);
    events.push_back(e);
  }
  return events;
}

TracedPass read_pass(JsonObject& o, bool backward) {
  const std::string prefix = backward ? "backward_" : "";
  TracedPass pass;
  for (const JsonValue& item : o.array(prefix + "makes")) pass.makes.push_back(read_value(item));
  pass.events = read_events(o.at(backward ? "backward" : "forward"), backward);
  pass.work = read_work(o.object(backward ? "backward_work" : "forward_work"));
  return pass;
}

OpKind read_op_kind(const JsonValue& value) {
  const std::string text = value.text();
  for (int k = 0; k < kOpKinds; ++k)
    if (name(static_cast<OpKind>(k)) == text) return static_cast<OpKind>(k);
  value.refuse("'" + text + "' is no kind of op");
}

OpShape read_shape(JsonObject o) {
  OpShape s;
  const auto size = [&](std::string_view key, std::int64_t& to) {
    to = o.optional_integer(key, 0, kMostExtent).value_or(to);
  };
  size("in", s.in), size("out", s.out), size("width", s.width), size("vocab", s.vocab);
  s.transposed = o.optional_boolean("transposed").value_or(false);
  o.finish();
  return s;
}

double product_flops(const TracedWork& w) {
  double flops = 0;
  for (const TracedProduct& p : w.products) flops += 2 * extent(p.m) * extent(p.n) * extent(p.k) * extent(p.count);
  return flops;
}

}  // namespace

std::int64_t Scaled::at(std::int64_t sequences) const {
  constexpr std::string_view kWhat = "a tensor of the exported model";
  return checked_add(fixed, checked_mul(per_sequence, sequences, kWhat), kWhat);
}

Scaled read_scaled(const JsonValue& value) {
  const std::vector<std::int64_t> parts = value.integers(0, kMostOpBytes);
  if (parts.size() != 2) value.refuse("must be [bytes, bytes per sequence]");
  return {parts[0], parts[1]};
}

DType read_traced_dtype(const JsonValue& value) {
  const std::string text = value.text();
  if (text == "other") return DType::f32;  // no type that anything is computed in
  for (int t = 0; t < kDTypes; ++t)
    if (static_cast<DType>(t) != DType::f8 && name(static_cast<DType>(t)) == text) return static_cast<DType>(t);
  value.refuse("'" + text + "' is no element type");
}

TracedKind read_kind(JsonObject& o, KindOfOp& op) {
  op.kind = read_op_kind(o.at("kind"));
  op.shape = read_shape(o.object("shape"));
  TracedKind k;
  k.reads = static_cast<std::int32_t>(o.integer("reads", 0, kMaxWidth));
  k.differentiable = o.boolean("differentiable");
  k.saved = read_scaled(o.at("saved_bytes"));
  k.forward = read_pass(o, false);
  k.kept_until =
      static_cast<std::int32_t>(o.integer("kept_until", -1, static_cast<std::int64_t>(k.forward.events.size())));
  if (o.has("backward")) k.backward = read_pass(o, true);
  o.finish();
  return k;
}

double model_flops_per_sequence(const TracedKind& k) {
  double flops = product_flops(k.forward.work) + (k.backward ? product_flops(k.backward->work) : 0);
  if (const auto& a = k.forward.work.attention)
    flops += (k.backward ? 12.0 : 4.0) * extent(a->sequences) * static_cast<double>(a->heads * a->head_dim) *
             static_cast<double>(a->queries) * static_cast<double>(a->keys);
  return flops;
}

}  // namespace fsdp
