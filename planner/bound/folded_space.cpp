#include "planner/bound/folded_space.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "planner/tensor/local_model.h"

namespace fsdp {

LocalSpace local_space(const Space& space, const Implementation& impl) {
  LocalSpace l{space, std::nullopt};
  if (differs_from_local(*space.model, space.base, impl)) l.split = local_model(*space.model, space.base, impl);
  return l;
}

LocalSpace folded_space(const Space& space, const ModelGraph& folded, Grouping grouping, const Implementation& impl) {
  Space few = space;
  few.model = &folded;
  few.base.model_digest = few.digest = folded.digest();
  few.groupings = {std::move(grouping)};
  return local_space(few, impl);
}

std::optional<std::size_t> blocks_together(const Grouping& grouping) {
  const std::string_view wrap = grouping.wrap;
  if (wrap == "block" || wrap == "titan" || wrap.starts_with("class:")) return 1;
  constexpr std::string_view kSeveral = "block:";
  if (!wrap.starts_with(kSeveral)) return std::nullopt;
  std::size_t together = 0;
  const auto [end, error] = std::from_chars(wrap.data() + kSeveral.size(), wrap.data() + wrap.size(), together);
  if (error != std::errc{} || end != wrap.data() + wrap.size() || together == 0) return std::nullopt;
  return together;
}

}  // namespace fsdp
