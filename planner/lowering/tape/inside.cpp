#include "planner/lowering/tape/inside.h"

#include <algorithm>

namespace fsdp {

using What = MemoryScript::What;

std::size_t steps_before_saved(const MemoryScript& script) {
  const auto steps = script.steps();
  const auto at = std::find_if(steps.begin(), steps.end(), [](const auto& s) { return s.what == What::saved_read; });
  return at == steps.end() ? 0 : static_cast<std::size_t>(at - steps.begin());
}

std::array<bool, MemoryScript::kTemporaries> there_after(std::span<const MemoryScript::Step> steps) {
  std::array<bool, MemoryScript::kTemporaries> there{};
  for (const MemoryScript::Step& step : steps)
    if (step.what == What::temporary) there[step.index] = step.appears;
  return there;
}

std::vector<MemoryEvent> events_inside(const Inside& in, std::span<const MemoryScript::Step> steps, std::int32_t op,
                                       Temporaries temporaries, const ScriptValues& values,
                                       const std::function<std::int32_t(std::int64_t)>& make) {
  std::vector<MemoryEvent> events;
  const auto say = [&](std::int32_t value, bool appears) {
    if (value >= 0) events.push_back({op, appears ? value : ~value});
  };
  for (const MemoryScript::Step& step : steps) {
    const std::size_t k = step.index;
    switch (step.what) {
      case What::temporary:
        if (step.appears) temporaries[k] = in.bytes[k] > 0 ? make(in.bytes[k]) : kNone;
        say(temporaries[k], step.appears);
        break;
      case What::result:
        if (k < values.results.size()) say(values.results[k], step.appears);
        break;
      case What::all_results:
        for (const std::int32_t r : values.results) say(r, step.appears);
        break;
      case What::extra: say(values.extra, step.appears); break;
      case What::output_gradient:
        if (k < values.output_gradients.size()) say(values.output_gradients[k], step.appears);
        break;
      case What::input:
        if (k < values.inputs.size()) say(values.inputs[k], step.appears);
        break;
      case What::saved_output: say(values.saved_output, step.appears); break;
      case What::saved_read: break;
    }
  }
  return events;
}

}  // namespace fsdp
