// fsdp-plan validate: predicted beside measured.
#include <memory>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/pages/pages.h"
#include "cli/report/report.h"
#include "cli/report/validation_json.h"
#include "models/input/error.h"
#include "simulator/records/compare.h"

namespace fsdp::cli {
namespace {

struct ValidateFlags {
  std::string prediction, measurement;
  Text time, memory;
  ReportFlag report;
  bool json = false;
};

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
  check_output("--report", f.report.file, {f.prediction, f.measurement});
  Tolerances tolerances;
  if (f.time) tolerances.time = parse_percent(*f.time, "--time-tolerance");
  if (f.memory) tolerances.memory = parse_percent(*f.memory, "--memory-tolerance");
  const Prediction prediction = parse_prediction(read_file(f.prediction), f.prediction);
  const Measurement measurement = parse_measurement(read_file(f.measurement), f.measurement);
  const ValidationReport report = compare_files(f, prediction, measurement, tolerances);
  if (f.report.file)
    write_file(*f.report.file, validate_page(f.report.words, report, tolerances, prediction, measurement));
  if (f.json) print(stdout, validation_json(report, tolerances));
  else print(stdout, validation_report(report, tolerances) + (f.report.file ? report_line(*f.report.file) : ""));
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
  add_report_flag(command, flags->report, "write the comparison as a page here (HTML)");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan validate prediction.json measurement.json",
                    "fsdp-plan validate prediction.json measurement.json --time-tolerance 5% --json"});
  command.runs([flags] { return validate_command(*flags); });
}

}  // namespace fsdp::cli
