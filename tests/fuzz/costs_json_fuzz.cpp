// Costs from arbitrary text: an InputError, or costs of one platform or fitted ones that survive the trip through their
// JSON and give every collective a time.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "models/catalog.h"
#include "planner/costs.h"
#include "planner/costs/fitted.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fsdp::ClusterSpec kCluster = fsdp::load_cluster("dgx-h100", 16);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::refuses_politely([&] {
    const auto read = fsdp::parse_any_costs(text, "fuzz");
    if (const auto* fitted = std::get_if<fsdp::FittedCosts>(&read))
      fsdp::fuzz::require(fsdp::parse_fitted_costs(fsdp::to_json_text(*fitted), "fuzz") == *fitted,
                          "parse_fitted_costs(to_json_text(c)) == c");
    const fsdp::Costs costs = std::holds_alternative<fsdp::Costs>(read)
                                  ? std::get<fsdp::Costs>(read)
                                  : fsdp::costs_for(std::get<fsdp::FittedCosts>(read), kCluster);
    fsdp::fuzz::require(fsdp::parse_costs(fsdp::to_json_text(costs), "fuzz") == costs,
                        "parse_costs(to_json_text(c)) == c");
    for (int kind = 0; kind < fsdp::kCollectiveKinds; ++kind)
      for (const double bytes : {1.0, 1e6, 1e10}) {
        const fsdp::CollectiveCall call{static_cast<fsdp::CollectiveKind>(kind), fsdp::Bytes(bytes), 16, 8, 1};
        const double seconds = fsdp::collective_demand(call, kCluster, costs).alone.count();
        fsdp::fuzz::require(std::isfinite(seconds) && seconds >= 0, "a collective takes a time");
      }
  });
  return 0;
}
