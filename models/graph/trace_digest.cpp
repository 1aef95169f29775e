#include "models/graph/trace_digest.h"

namespace fsdp {
namespace {

void add(Digest& d, std::string_view key, const Scaled& s) {
  d.add(key, s.fixed);
  d.add(key, s.per_sequence);
}

void add(Digest& d, const TracedWork& w) {
  add(d, "bytes", w.bytes);
  d.add("launches", w.launches);
  for (const TracedProduct& p : w.products)
    for (const std::int64_t extent : {p.m, p.n, p.k, p.count}) d.add("product", extent);
  if (!w.attention) return;
  const TracedAttention& a = *w.attention;
  for (const std::int64_t extent : {a.sequences, a.heads, a.kv_heads, a.head_dim, a.queries, a.keys})
    d.add("attention", extent);
  d.add("masks", (a.causal ? 1 : 0) + (a.masked ? 2 : 0));
  add(d, "attention_bytes", a.bytes);
}

void add(Digest& d, const TracedPass& p) {
  for (const TracedValue& v : p.makes) {
    add(d, "makes", v.bytes);
    d.add("dtype", name(v.dtype));
  }
  for (const TracedEvent& e : p.events) {
    d.add("event", static_cast<int>(e.what) + (e.is_own ? 8 : 0) + (e.of_forward ? 16 : 0));
    d.add("index", e.index);
    d.add("ended", e.ended);
  }
  add(d, p.work);
}

}  // namespace

void add_trace(Digest& d, const Trace& trace) {
  if (trace.empty()) return;
  d.add("traced_seq_len", trace.seq_len);
  d.add("traced_dtype", name(trace.dtype));
  for (const Scaled& s : trace.batch) add(d, "batch", s);
  for (const TracedKind& k : trace.kinds) {
    d.add("reads", k.reads);
    d.add("kept_until", k.kept_until);
    d.add("differentiable", k.differentiable);
    add(d, "saved", k.saved);
    add(d, k.forward);
    d.add("backward", k.backward.has_value());
    if (k.backward) add(d, *k.backward);
  }
  for (const TracedOp& op : trace.ops) {
    d.add("kind", op.kind);
    for (const std::int32_t g : op.gradients) d.add("gradient", g);
    for (const std::int32_t v : op.values) d.add("value", v);
    for (const std::int32_t v : op.gradient_values) d.add("gradient_value", v);
  }
}

}  // namespace fsdp
