#include "cli/brief_json.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "simulator/records/prediction.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

// Of predictions and measurements: a value per operation, or per rank of a job of any size.
constexpr std::string_view kLong[] = {"order", "issued", "timeline", "points_bytes", "role_of_rank"};

void shorten(Json& value) {
  if (value.is_object()) {
    for (const std::string_view key : kLong) value.erase(std::string(key));
    if (const auto schema = value.find("schema"); schema != value.end() && schema->is_string()) {
      std::string name = schema->get<std::string>();
      const std::size_t slash = name.rfind('/');
      if (name != "fsdp-plan/plan/1" && slash != std::string::npos) *schema = name.insert(slash, "-brief");
    }
  }
  if (value.is_structured())
    for (Json& inner : value) shorten(inner);
}

// What shorten() takes away is not written in the first place: a step may have 10^6 operations.
void clear(ProgramMemory& memory) {
  for (MemoryTimeline* step : {&memory.init, &memory.first_step, &memory.steady_step}) step->points.clear();
}

}  // namespace

std::string json_lines(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string printed(const std::string& document, JsonForm form) {
  if (form != JsonForm::brief) return document;
  Json json = Json::parse(document);
  shorten(json);
  return json_lines(json);
}

std::string printed(const Prediction& prediction, JsonForm form) {
  if (form != JsonForm::brief) return to_json_text(prediction);
  Prediction p = prediction;
  p.order.clear(), p.issued.clear(), p.timeline.spans.clear(), p.timeline.issued.clear();
  clear(p.memory);
  for (ProgramMemory& role : p.other_roles) clear(role);
  return printed(to_json_text(p), form);
}

}  // namespace fsdp::cli
