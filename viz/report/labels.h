// What the operations of a step are called and where they run: distinct labels, and which of them each operation has.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "planner/program.h"
#include "viz/drawn_as.h"
#include "viz/report/json_columns.h"

namespace fsdp {

struct Labels {
  nlohmann::ordered_json texts = nlohmann::ordered_json::array();
  Column lanes, kinds, units;  // of each label
  Column of, micro_batches;    // of each operation

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(lanes.size()); }
  void add(std::string text, std::int64_t lane, DrawnAs kind, std::int64_t unit) {
    texts.push_back(std::move(text));
    lanes.push_back(lane);
    kinds.push_back(static_cast<std::int64_t>(kind));
    units.push_back(unit);
  }
  // With lanes for so many streams, and below them the host's.
  void write(JsonColumns& out, std::int64_t streams) const {
    nlohmann::ordered_json lane_names = nlohmann::ordered_json::array();
    for (std::int64_t s = 0; s < streams; ++s) lane_names.push_back(std::string(name(static_cast<Stream>(s))));
    lane_names.push_back("host");
    out.add("lanes", lane_names);
    out.add("kinds", nlohmann::ordered_json(kDrawnAs));
    out.add("label_text", texts);
    out.add("label_lane", lanes);
    out.add("label_kind", kinds);
    out.add("label_unit", units);
    out.add("label", of);
    out.add("micro_batch", micro_batches);
  }
};

}  // namespace fsdp
