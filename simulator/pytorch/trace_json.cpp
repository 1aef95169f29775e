// "fsdp-plan/trace-view/1".
#include <nlohmann/json.hpp>

#include "simulator/pytorch/trace.h"
#include "simulator/traced/traced_fields.h"

namespace fsdp {

std::string to_json_text(const RecordedTrace& trace) {
  FieldWriter<nlohmann::ordered_json> writer;
  writer("schema", std::string("fsdp-plan/trace-view/1"));
  writer("steps", trace.steps);
  writer("marked", trace.marked);
  writer("rank", trace.rank);
  writer("ranks", trace.ranks);
  writer("step", trace.step);
  return writer.take().dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp
