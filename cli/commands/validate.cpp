// fsdp-plan validate: predicted beside measured.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/report/report.h"
#include "models/input/error.h"
#include "simulator/records/compare.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ValidateFlags {
  std::string prediction, measurement;
  Text time, memory;
  bool json = false;
};

Json row_json(const CompareRow& row) {
  return {{"what", row.what},
          {"predicted", row.predicted},
          {"measured", row.measured},
          {"unit", row.unit},
          {"error", row.error()}};
}

Json report_json(const ValidationReport& report, const Tolerances& tolerances) {
  const auto rows = [](const std::vector<CompareRow>& all) {
    Json list = Json::array();
    for (const CompareRow& row : all) list.push_back(row_json(row));
    return list;
  };
  Json findings = Json::array();
  for (const Finding& f : report.findings) findings.push_back({{"text", f.text}, {"seconds", f.seconds}});
  return {{"schema", "fsdp-plan/validation/1"},
          {"within", report.within},
          {"order_equal", report.order_equal},
          {"memory_equal", report.memory_equal},
          {"time_tolerance", tolerances.time},
          {"memory_tolerance", tolerances.memory},
          {"step_time", row_json(report.step_time)},
          {"peak", row_json(report.peak)},
          {"where", rows(report.where)},
          {"by_action", rows(report.by_action)},
          {"by_unit", rows(report.by_unit)},
          {"by_rank", rows(report.by_rank)},
          {"differences", report.differences},
          {"findings", findings},
          {"not_compared", report.not_compared},
          {"doubts", report.doubts}};
}

// "prediction: order: ..." and "measurement: plan: ..." name the files.
ValidationReport compare_files(const ValidateFlags& f, const Prediction& prediction, const Measurement& measurement,
                               const Tolerances& tolerances) {
  try {
    return compare(prediction, measurement, tolerances);
  } catch (const InputError& e) {
    if (e.file() == "prediction") throw e.at({f.prediction, e.field()});
    if (e.file() == "measurement") throw e.at({f.measurement, e.field()});
    throw;
  }
}

int validate_command(const ValidateFlags& f) {
  Tolerances tolerances;
  if (f.time) tolerances.time = parse_percent(*f.time, "--time-tolerance");
  if (f.memory) tolerances.memory = parse_percent(*f.memory, "--memory-tolerance");
  const Prediction prediction = parse_prediction(read_file(f.prediction), f.prediction);
  const Measurement measurement = parse_measurement(read_file(f.measurement), f.measurement);
  const ValidationReport report = compare_files(f, prediction, measurement, tolerances);
  if (f.json) print(stdout, report_json(report, tolerances).dump(2) + "\n");
  else print(stdout, validation_report(report, tolerances));
  return report.within ? kDone : kAnswerIsNo;
}

}  // namespace

void add_validate(const Command& app) {
  auto flags = std::make_shared<ValidateFlags>();
  const Command command = app.add("validate", "compare a prediction with a measurement; exit 1 outside tolerance");
  command.required("prediction", flags->prediction, "prediction.json of `simulate -o`", "PREDICTION");
  command.required("measurement", flags->measurement, "measurement.json of `run -o`", "MEASUREMENT");
  command.option("--time-tolerance", flags->time, "of the step time; default 15%", "PERCENT");
  command.option("--memory-tolerance", flags->memory, "of the peak; default 1%", "PERCENT");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan validate prediction.json measurement.json",
                    "fsdp-plan validate prediction.json measurement.json --time-tolerance 5% --json"});
  command.runs([flags] { return validate_command(*flags); });
}

}  // namespace fsdp::cli
