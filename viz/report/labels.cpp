#include "viz/report/labels.h"

#include "planner/program.h"
#include "viz/report/json_columns.h"

namespace fsdp {

void Labels::write(JsonColumns& out, std::int64_t streams) const {
  std::vector<std::string> lane_names;
  for (std::int64_t s = 0; s < streams; ++s) lane_names.emplace_back(name(static_cast<Stream>(s)));
  lane_names.emplace_back("host");
  out.add("lanes", nlohmann::ordered_json(lane_names));
  out.add("kinds", nlohmann::ordered_json(kDrawnAs));
  out.add("label_text", nlohmann::ordered_json(texts));
  out.add("label_lane", lanes);
  out.add("label_kind", kinds);
  out.add("label_unit", units);
  out.add("label", of);
  out.add("micro_batch", micro_batches);
}

}  // namespace fsdp
