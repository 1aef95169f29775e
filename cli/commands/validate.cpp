// fsdp-plan validate: predicted beside measured, or beside what PyTorch's own tools recorded.
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/pages/pages.h"
#include "cli/report/report.h"
#include "cli/report/validation_json.h"
#include "models/input/error.h"
#include "simulator/pytorch/compare_recordings.h"
#include "simulator/pytorch/compare_traced.h"
#include "simulator/records/compare.h"

namespace fsdp::cli {
namespace {

struct ValidateFlags {
  std::string prediction;
  Text measurement, snapshot, trace, time, memory;
  ReportFlag report;
  bool json = false;
};

// "prediction: order: ..." and "measurement: plan: ..." name the files.
ValidationReport compare_files(const ValidateFlags& f, const Prediction& prediction,
                               const std::optional<Measurement>& measurement, const Tolerances& tolerances) {
  Recordings recordings;
  if (f.snapshot) recordings.memory = read_snapshot(read_file(*f.snapshot), *f.snapshot);
  if (f.trace) recordings.trace = read_trace(read_file(*f.trace), *f.trace);
  try {
    if (!measurement) return compare_recordings(prediction, recordings, tolerances);
    ValidationReport report = compare(prediction, *measurement, tolerances);
    compare_profiles(prediction, *measurement, report);
    return report;
  } catch (const InputError& e) {
    if (e.file() == "prediction") throw e.at({f.prediction, e.field()});
    if (e.file() == "measurement") throw e.at({*f.measurement, e.field()});
    if (e.file() == "trace") throw e.at({*f.trace, e.field()});
    throw;
  }
}

void check_sources(const ValidateFlags& f) {
  const char* recording = f.snapshot ? "--snapshot" : f.trace ? "--trace" : nullptr;
  if (f.measurement && recording != nullptr)
    throw InputError({recording}, "contradicts MEASUREMENT", "compare with one of them at a time");
  if (!f.measurement && recording == nullptr)
    throw InputError({"MEASUREMENT"}, "is missing",
                     "give measurement.json of `run -o`, or --snapshot or --trace of a run of PyTorch");
}

int validate_command(const ValidateFlags& f) {
  check_output("--report", f.report.file, {f.prediction, f.measurement, f.snapshot, f.trace});
  check_sources(f);
  Tolerances tolerances;
  if (f.time) tolerances.time = parse_percent(*f.time, "--time-tolerance");
  if (f.memory) tolerances.memory = parse_percent(*f.memory, "--memory-tolerance");
  const Prediction prediction = parse_prediction(read_file(f.prediction), f.prediction);
  std::optional<Measurement> measurement;
  if (f.measurement) measurement = parse_measurement(read_file(*f.measurement), *f.measurement);
  const ValidationReport report = compare_files(f, prediction, measurement, tolerances);
  if (f.report.file)
    write_file(*f.report.file,
               validate_page(f.report.words, report, tolerances, prediction, measurement ? &*measurement : nullptr));
  if (f.json) print(stdout, validation_json(report, tolerances));
  else print(stdout, validation_report(report, tolerances) + (f.report.file ? report_line(*f.report.file) : ""));
  return report.within ? kDone : kAnswerIsNo;
}

}  // namespace

void add_validate(const Command& app) {
  auto flags = std::make_shared<ValidateFlags>();
  const Command command = app.add("validate", "compare a prediction with a measurement; exit 1 outside tolerance");
  command.required("prediction", flags->prediction, "prediction.json of `simulate -o`", "PREDICTION");
  command.option("measurement", flags->measurement, "measurement.json of `run -o`", "MEASUREMENT");
  command.option("--snapshot", flags->snapshot, "what torch.cuda.memory._dump_snapshot wrote, instead", "FILE");
  command.option("--trace", flags->trace, "what torch.profiler's export_chrome_trace wrote, instead", "FILE");
  command.option("--time-tolerance", flags->time, "of the step time; default 15%", "PERCENT");
  command.option("--memory-tolerance", flags->memory, "of the peak; default 1%", "PERCENT");
  add_report_flag(command, flags->report, "write the comparison as a page here (HTML)");
  command.flag("--json", flags->json, "one JSON object");
  command.examples({"fsdp-plan validate prediction.json measurement.json",
                    "fsdp-plan validate prediction.json measurement.json --time-tolerance 5% --json",
                    "fsdp-plan validate prediction.json --snapshot snapshot.pickle --trace trace.json"});
  command.runs([flags] { return validate_command(*flags); });
}

}  // namespace fsdp::cli
