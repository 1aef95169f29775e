#include "planner/lowering/tape/lifetimes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/index.h"

namespace fsdp {
namespace {

using Ops = std::vector<std::int32_t>;  // by value: a tape op, -1: none

void place_inner(Tape& tape, std::span<const MemoryEvent> events, Ops& first, Ops& last) {
  for (std::size_t e = 0; e < events.size();) {
    const std::int32_t here = events[e].op;
    TapeOp& op = tape.ops[at(here)];
    op.inner.begin = static_cast<std::uint32_t>(tape.inner.size());
    for (; e < events.size() && events[e].op == here; ++e) {
      const std::int32_t v = events[e].value;
      std::int32_t& end = v >= 0 ? first[at(v)] : last[at(~v)];
      if (end != here) continue;
      end = -1;
      tape.inner.push_back(v);
      ++op.inner.count;
    }
  }
}

// Lists the values of each op, those with a smaller index first.
void bucket(Tape& tape, const Ops& op_of, Slice TapeOp::*slice, std::vector<std::int32_t>& list) {
  for (std::int32_t o : op_of)
    if (o >= 0) ++(tape.ops[at(o)].*slice).count;
  std::uint32_t end = 0;
  for (TapeOp& op : tape.ops) {
    (op.*slice).begin = end;
    end += std::exchange((op.*slice).count, 0u);
  }
  list.resize(end);
  for (std::size_t v = 0; v < op_of.size(); ++v) {
    if (op_of[v] < 0) continue;
    Slice& s = tape.ops[at(op_of[v])].*slice;
    list[s.begin + s.count++] = static_cast<std::int32_t>(v);
  }
}

}  // namespace

void place_lifetimes(Tape& tape, std::span<const Held> held, std::span<const MemoryEvent> events) {
  Ops first(tape.values.size(), -1), last(tape.values.size(), -1);
  const auto touch = [&](std::int32_t value, std::int32_t op) {
    if (op < 0) return;
    if (first[at(value)] < 0 || op < first[at(value)]) first[at(value)] = op;
    last[at(value)] = std::max(last[at(value)], op);
  };
  for (std::size_t o = 0; o < tape.ops.size(); ++o)
    for (const TapeArg& a : tape.args_of(tape.ops[o]))
      if (a.kind == TapeArg::Kind::value) touch(a.id, static_cast<std::int32_t>(o));
  for (const Held& h : held) touch(h.value, h.from), touch(h.value, h.to);
  Ops late(tape.values.size(), -1);
  for (const Held& h : held)
    if (h.scope >= 0 && h.to == last[at(h.value)]) {
      late[at(h.value)] = h.to;
      std::int32_t& scope = tape.values[at(h.value)].scope;
      scope = scope < 0 ? h.scope : std::min(scope, h.scope);
    }
  for (std::size_t v = 0; v < late.size(); ++v)
    if (late[v] >= 0) last[v] = -1;
  Ops after(tape.values.size(), -1);
  for (const Held& h : held)
    if (h.after && h.from == first[at(h.value)]) after[at(h.value)] = std::exchange(first[at(h.value)], -1);
  place_inner(tape, events, first, last);
  bucket(tape, first, &TapeOp::allocs, tape.allocs);
  bucket(tape, last, &TapeOp::frees, tape.frees);
  bucket(tape, after, &TapeOp::late_allocs, tape.late_allocs);
  bucket(tape, late, &TapeOp::late_frees, tape.late_frees);
  for (const TapeOp& op : tape.ops) {  // inner modules return first
    const auto begin = tape.late_frees.begin() + op.late_frees.begin;
    std::stable_sort(begin, begin + op.late_frees.count, [&](std::int32_t a, std::int32_t b) {
      return tape.values[at(a)].scope > tape.values[at(b)].scope;
    });
  }
}

void leave_to_regions(Tape& tape) {
  for (Region& r : tape.regions) {
    if (r.held.empty()) continue;
    const TapeOp& last = tape.ops[at(r.last_backward)];
    const auto begin = tape.frees.begin() + last.frees.begin;
    std::erase_if(r.held, [&](std::int32_t v) {
      return tape.values[at(v)].stays || std::find(begin, begin + last.frees.count, v) == begin + last.frees.count;
    });
    for (const std::int32_t v : r.held) tape.values[at(v)].stays = true;
  }
}

}  // namespace fsdp
