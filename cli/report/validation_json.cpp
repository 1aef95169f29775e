#include "cli/report/validation_json.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

Json row_json(const CompareRow& row) {
  return {{"what", row.what},
          {"predicted", row.predicted},
          {"measured", row.measured},
          {"unit", row.unit},
          {"error", row.error()}};
}

}  // namespace

std::string validation_json(const ValidationReport& report, const Tolerances& tolerances) {
  const auto rows = [](const std::vector<CompareRow>& all) {
    Json list = Json::array();
    for (const CompareRow& row : all) list.push_back(row_json(row));
    return list;
  };
  Json findings = Json::array();
  for (const Finding& f : report.findings) findings.push_back({{"text", f.text}, {"seconds", f.seconds}});
  const Json document = {{"schema", "fsdp-plan/validation/1"},
                         {"within", report.within},
                         {"order_equal", report.order_equal},
                         {"memory_equal", report.memory_equal},
                         {"order_compared", report.order_compared},
                         {"time_compared", report.time_compared},
                         {"memory_compared", report.memory_compared},
                         {"time_tolerance", tolerances.time},
                         {"memory_tolerance", tolerances.memory},
                         {"step_time", row_json(report.step_time)},
                         {"peak", row_json(report.peak)},
                         {"memory", rows(report.memory)},
                         {"where", rows(report.where)},
                         {"by_action", rows(report.by_action)},
                         {"by_unit", rows(report.by_unit)},
                         {"by_rank", rows(report.by_rank)},
                         {"differences", report.differences},
                         {"findings", findings},
                         {"not_compared", report.not_compared},
                         {"doubts", report.doubts}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp::cli
