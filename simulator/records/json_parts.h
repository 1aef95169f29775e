// The parts that both records share on disk. For prediction_json.cpp and measurement_json.cpp alone.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "models/input/json.h"
#include "simulator/records/prediction.h"

namespace fsdp::records {

using Json = nlohmann::ordered_json;

inline constexpr double kMaxSeconds = 1e9;
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 24;

[[nodiscard]] Json json_of(const Provenance&);
[[nodiscard]] Json json_of(const std::vector<ActionTime>&);
[[nodiscard]] Json json_of(const std::vector<UnitTime>&);
[[nodiscard]] Json json_of(const Breakdown&);
[[nodiscard]] Json json_of(const Timeline&);        // {"duration_s", "spans_s": [start, end, start, end, ...]}
[[nodiscard]] Json json_of(const MemoryTimeline&);  // {"start_bytes", "points_bytes": [at, after, at, after, ...]}

[[nodiscard]] Provenance provenance(JsonObject);
[[nodiscard]] std::vector<ActionTime> action_times(const std::vector<JsonValue>&);
[[nodiscard]] std::vector<UnitTime> unit_times(const std::vector<JsonValue>&);
[[nodiscard]] Breakdown breakdown(JsonObject);
[[nodiscard]] Timeline timeline(JsonObject);
[[nodiscard]] MemoryTimeline memory_timeline(JsonObject);
[[nodiscard]] Bytes bytes(JsonObject&, std::string_view key);
[[nodiscard]] Seconds seconds(JsonObject&, std::string_view key);

}  // namespace fsdp::records
