// fsdp-plan calibrate: micro-benchmarks of this machine, to costs.json.
#include "executor/calibrate.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "models/error.h"

namespace fsdp::cli {
namespace {

struct CalibrateFlags {
  Text backend, ranks, budget, type, output, nccl_tests, runs;
  bool json = false;
};

void check_flags(const CalibrateFlags& f) {
  if (f.nccl_tests) throw InputError("--nccl-tests", "reading nccl-tests logs is not built yet", "use --backend host");
  if (f.runs) throw InputError("--runs", "fitting costs to published runs is not built yet", "use --backend host");
  if (!f.backend) throw InputError("--backend", "is missing", "give --backend host");
  if (*f.backend == "mpi" || *f.backend == "cuda")
    throw InputError("--backend", "'" + *f.backend + "' is not built in", "give host");
  if (*f.backend != "host") throw InputError("--backend", "'" + *f.backend + "' is not a backend", "give host");
}

int calibrate_command(const CalibrateFlags& f) {
  check_flags(f);
  check_output(f.output);
  CalibrateOptions options;
  if (f.ranks) options.ranks = parse_count(*f.ranks, "--ranks", 1, 1024);
  if (f.budget) options.seconds_budget = parse_seconds(*f.budget, "--budget").count();
  if (f.type) options.type = parse_dtype(*f.type, "--dtype");
  if (!(options.seconds_budget > 0))
    throw InputError("--budget", "is zero", "give the time that calibration may take, such as 20s");
  Costs costs;
  {
    Progress progress;
    options.progress = [&](const std::string& what) { progress.say("calibrate: " + what); };
    costs = calibrate_host(options);
  }
  const std::string text = to_json_text(costs);
  if (f.output) write_file(*f.output, text);
  if (f.json || !f.output) print(stdout, text);
  else print(stdout, fmt::format("{}: costs of '{}' ({})\n", *f.output, costs.platform, costs.source));
  return kDone;
}

}  // namespace

void add_calibrate(CLI::App& app, Work& chosen) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = app.add_subcommand("calibrate", "measure this machine's kernels and collectives: costs.json");
  command->add_option("--backend", flags->backend, "host")->type_name("BACKEND");
  command->add_option("--ranks", flags->ranks, "ranks that work at once, as a run will have; default 2")->type_name("N");
  command->add_option("--budget", flags->budget, "about how long it may take; default 20s")->type_name("SECONDS");
  command->add_option("--dtype", flags->type, "of the kernels: fp32 (default), fp64, bf16")->type_name("TYPE");
  command->add_option("-o,--output", flags->output, "write the costs here")->type_name("FILE");
  command->add_option("--nccl-tests", flags->nccl_tests)->group("");
  command->add_option("--runs", flags->runs)->group("");
  command->add_flag("--json", flags->json, "print the costs, one JSON object");
  command->callback([flags, &chosen] { chosen = [flags] { return calibrate_command(*flags); }; });
}

}  // namespace fsdp::cli
