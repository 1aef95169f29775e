// The choices of a design, one row each: which designs lie next to one, and what it is by default.
#include <algorithm>

#include "planner/search/design.h"

namespace fsdp {
namespace {

// The designs with other values from an ordered list: up to `reach` places away, and both ends.
template <class T>
std::vector<Design> near_in(const Design& d, T Design::*field, const std::vector<T>& values, std::ptrdiff_t reach) {
  const auto at = std::find(values.begin(), values.end(), d.*field) - values.begin();
  const auto count = static_cast<std::ptrdiff_t>(values.size());
  std::vector<Design> found;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    if (i == at || (std::abs(i - at) > reach && i != 0 && i != count - 1)) continue;
    found.push_back(d);
    found.back().*field = values[static_cast<std::size_t>(i)];
  }
  return found;
}

std::vector<Design> near_switch(const Design& d, bool Design::*field) {
  Design other = d;
  other.*field = !(d.*field);
  return {other};
}

std::int64_t units_of_blocks(const Design& d, const Space& s) {
  return static_cast<std::int64_t>(s.groupings[d.grouping].units.size()) - 1;
}

std::vector<Design> near_grouping(const Design& d, const Space& s) {
  std::vector<Design> found;
  for (std::size_t g = 0; g < s.groupings.size(); ++g) {
    if (g == d.grouping) continue;
    found.push_back(d);
    found.back().grouping = g;
    found.back().kept = std::min(d.kept, units_of_blocks(found.back(), s));
    found.back().embedding_once = d.embedding_once && s.groupings[g].embedding_apart;
  }
  return found;
}

std::vector<Design> near_reshard(const Design& d, const Space& s) {
  std::vector<Design> found;
  for (const Reshard r : s.reshards) {
    if (r == d.reshard && d.kept == 0) continue;
    found.push_back(d);
    found.back().reshard = r;
    found.back().kept = 0;
  }
  return found;
}

std::vector<Design> near_kept(const Design& d, const Space& s) {
  std::vector<Design> found;
  if (!s.kept_free || d.reshard == Reshard::no) return found;
  const std::int64_t all = units_of_blocks(d, s);
  for (const std::int64_t kept :
       {std::int64_t{0}, d.kept / 2, d.kept - 1, d.kept + 1, 2 * d.kept, (d.kept + all) / 2}) {
    if (kept < 0 || kept > all || kept == d.kept) continue;
    Design next = d;
    next.kept = kept;
    if (std::find(found.begin(), found.end(), next) == found.end()) found.push_back(next);
  }
  return found;
}

std::vector<Design> near_sync(const Design& d, const Space& s) {
  if (d.batch.grad_accum == 1) return {};
  std::vector<Design> found = near_in(d, &Design::grad_sync, s.syncs, 2);
  std::erase_if(found, [](const Design& n) {
    return n.grad_sync == GradSync::reduce_scatter_only && n.replicate == 1;  // the same as every
  });
  return found;
}

std::vector<Design> near_chunks(const Design& d, const Space& s) {
  return near_in(d, &Design::loss_chunks, s.chunks, 1);
}

}  // namespace

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> kKnobs = {
      {"loss chunks", false, near_chunks, [](Design& d, const Space& s) { d.loss_chunks = s.chunks.front(); }},
      {"micro-batch", true, [](const Design& d, const Space& s) { return near_in(d, &Design::batch, s.batches, 3); },
       nullptr},
      {"mesh", true, [](const Design& d, const Space& s) { return near_in(d, &Design::replicate, s.replicas, 2); },
       nullptr},
      {"reshard", true, near_reshard, [](Design& d, const Space& s) { d.reshard = s.reshards.front(), d.kept = 0; }},
      {"wrap", true, near_grouping, nullptr},
      {"units kept gathered", false, near_kept, [](Design& d, const Space&) { d.kept = 0; }},
      {"gradient sync", true, near_sync, [](Design& d, const Space& s) { d.grad_sync = s.base.grad_sync; }},
      {"kept between micro-batches", false,
       [](const Design& d, const Space& s) {
         return s.kept_free && d.batch.grad_accum > 1 ? near_switch(d, &Design::kept_between) : std::vector<Design>{};
       },
       [](Design& d, const Space&) { d.kept_between = false; }},
      {"embedding gathered once", false,
       [](const Design& d, const Space& s) {
         return s.embedding_free && s.groupings[d.grouping].embedding_apart ? near_switch(d, &Design::embedding_once)
                                                                            : std::vector<Design>{};
       },
       [](Design& d, const Space&) { d.embedding_once = false; }},
      {"forward prefetch", true,
       [](const Design& d, const Space& s) { return near_in(d, &Design::forward_prefetch, s.forward_prefetches, 1); },
       [](Design& d, const Space& s) { d.forward_prefetch = s.base.forward_prefetch; }},
      {"reduce-scatter buffers", false,
       [](const Design& d, const Space& s) { return near_in(d, &Design::reduce_scatter_buffers, s.buffers, 1); },
       [](Design& d, const Space& s) { d.reduce_scatter_buffers = s.base.reduce_scatter_buffers; }},
      {"second communicator", false,
       [](const Design& d, const Space& s) {
         return s.second_communicator_free ? near_switch(d, &Design::separate_reduce_scatter) : std::vector<Design>{};
       },
       [](Design& d, const Space&) { d.separate_reduce_scatter = false; }},
  };
  return kKnobs;
}

}  // namespace fsdp
