#include "planner/lowering/tape/traced_lives.h"

#include <algorithm>

#include "models/index.h"

namespace fsdp {

std::int32_t named_value(const TracedOp& op, const TracedEvent& e) {
  return e.is_own ? op.first_value + e.index : op.values[at(e.index)];
}

TracedLives traced_lives(const Trace& trace, const std::vector<Region>& regions,
                         const std::vector<std::int32_t>& region_of, const std::vector<char>& kept) {
  TracedLives lives;
  for (std::size_t i = 0; i < trace.ops.size(); ++i)
    lives.made_by.resize(lives.made_by.size() + trace.kinds[at(trace.ops[i].kind)].forward.makes.size(),
                         static_cast<std::int32_t>(i));
  lives.first.resize(lives.made_by.size()), lives.again.resize(lives.made_by.size());
  // The backward runs from the last op to the first: of several needs the one of the lowest op is the last.
  const auto need = [](TracedLife& life, std::int32_t op, bool at_end) {
    if (life.last_backward != kNone && life.last_backward < op) return;
    life.at_its_end = at_end || (life.last_backward == op && life.at_its_end);
    life.last_backward = op;
  };
  for (std::size_t k = 0; k < trace.ops.size(); ++k) {
    const auto i = static_cast<std::int32_t>(k);
    const TracedOp& op = trace.ops[k];
    const TracedKind& kind = trace.kinds[at(op.kind)];
    const std::int32_t region = region_of[k];
    if (kind.backward)
      for (const TracedEvent& e : kind.backward->events) {
        if (!e.of_forward) continue;
        const std::int32_t v = named_value(op, e);
        const bool inside = region != kNone && region_of[at(lives.made_by[at(v)])] == region;
        need(inside && kept[at(lives.made_by[at(v)])] == 0 ? lives.again[at(v)] : lives.first[at(v)], i, false);
      }
    if (region == kNone) continue;
    // A checkpoint holds what its module was called with.
    for (std::int32_t r = 0; r < kind.reads; ++r) {
      const std::int32_t v = op.values[at(r)];
      if (region_of[at(lives.made_by[at(v)])] != region) need(lives.first[at(v)], regions[at(region)].begin, true);
    }
  }
  for (std::size_t v = 0; v < lives.made_by.size(); ++v) {
    const std::int32_t op = lives.made_by[v];
    if (kept[at(op)] != 0 && lives.first[v].last_backward == kNone)
      need(lives.first[v], regions[at(region_of[at(op)])].begin, true);
  }
  return lives;
}

}  // namespace fsdp
