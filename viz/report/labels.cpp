#include "viz/report/labels.h"

#include <map>
#include <nlohmann/json.hpp>

#include "planner/program.h"
#include "viz/report/json_columns.h"

namespace fsdp {

void Labels::write(JsonColumns& out, std::int64_t streams) const {
  std::vector<std::string> lane_names;
  for (std::int64_t s = 0; s < streams; ++s) lane_names.emplace_back(name(static_cast<Stream>(s)));
  lane_names.emplace_back("host");
  out.add("lanes", nlohmann::ordered_json(lane_names));
  out.add("kinds", nlohmann::ordered_json(kDrawnAs));
  std::vector<std::string> texts, shapes;  // distinct shapes; the first one is the empty text
  std::map<std::string, std::int64_t> known{{"", 0}};
  shapes.emplace_back();
  std::vector<std::int64_t> lanes, kinds, units, shape_of, communicators;
  for (const LabelRow& row : rows) {
    texts.push_back(row.text);
    lanes.push_back(row.lane);
    kinds.push_back(static_cast<std::int64_t>(row.kind));
    units.push_back(row.unit);
    communicators.push_back(static_cast<std::int64_t>(row.communicator));
    const auto [it, fresh] = known.try_emplace(row.shape, static_cast<std::int64_t>(shapes.size()));
    if (fresh) shapes.push_back(row.shape);
    shape_of.push_back(it->second);
  }
  out.add("label_text", nlohmann::ordered_json(texts));
  out.add("label_lane", lanes);
  out.add("label_kind", kinds);
  out.add("label_unit", units);
  out.add("label_communicator", communicators);
  out.add("shapes", nlohmann::ordered_json(shapes));
  out.add("label_shape", shape_of);
  out.add("label", of);
  out.add("micro_batch", micro_batches);
}

}  // namespace fsdp
