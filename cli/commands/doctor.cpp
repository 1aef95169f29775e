// fsdp-plan doctor: what is on this machine, which backends of `run` work here, and what is missing.
#include <memory>

#include "cli/commands.h"
#include "cli/doctor/examine.h"
#include "cli/doctor/gpus.h"
#include "cli/doctor/report.h"
#include "cli/files.h"
#include "cli/numbers.h"
#include "cli/run_backend.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

struct DoctorFlags {
  Text costs, time_limit;
  bool json = false, ask_gpus = false;
};

constexpr double kTimeLimit = 30, kLongestTimeLimit = 3600;  // seconds

int doctor_command(const DoctorFlags& f) {
  if (f.ask_gpus) {
    print(stdout, gpu_answer() + "\n");
    return kDone;
  }
  if (launched_processes() > 1)
    throw InputError("doctor", "is one of several processes that a launcher started, and tries the launcher itself",
                     "start it without the launcher");
  const double seconds = f.time_limit ? parse_seconds(*f.time_limit, "--time-limit").count() : kTimeLimit;
  if (!(seconds > 0) || seconds > kLongestTimeLimit)
    throw InputError("--time-limit", "is not between 0 and 1 hour", "give the longest time of one trial, such as 30s");
  Examination e;
  {
    Progress progress;
    progress.say("doctor: trying what is here");
    e = examine(f.costs, seconds);
  }
  if (f.json) print(stdout, examination_json(e));
  else print(stdout, bold(stdout, examination_verdict(e)) + "\n" + examination_tables(e));
  return e.can_run() ? kDone : kAnswerIsNo;
}

}  // namespace

void add_doctor(const Command& app) {
  auto flags = std::make_shared<DoctorFlags>();
  const Command command = app.add("doctor", "what works here: backends that were tried, and what is missing");
  command.option("--costs", flags->costs, "is it of this machine? default costs.json, where there is one", "FILE");
  command.option("--time-limit", flags->time_limit, "of each thing that is tried; default 30s", "TIME");
  command.flag("--json", flags->json, "one JSON object");
  command.flag(kAskGpus, flags->ask_gpus, "");
  command.examples({"fsdp-plan doctor", "FSDP_PLAN_PYTHON=~/venv/bin/python fsdp-plan doctor --time-limit 120s",
                    "fsdp-plan doctor --json"});
  command.runs([flags] { return doctor_command(*flags); });
}

}  // namespace fsdp::cli
