// fsdp-plan calibrate: micro-benchmarks of this machine, logs of nccl-tests, a fit to runs that others published, or to
// the user's own, to costs.json.
#include "executor/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "cli/calibration/nccl_tests.h"
#include "cli/calibration/own_measurements.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/named.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/terminal/terminal.h"
#include "executor/cuda_backend.h"
#include "executor/training/machine.h"
#include "models/catalog.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "simulator/published/fit_runs.h"
#include "simulator/records/measurement.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

struct CalibrateFlags {
  Text backend, budget, type, output, runs;
  NcclTestsFlags nccl;  // with --ranks, which --backend shares
  OwnMeasurements own;  // with --cluster and --costs, which --nccl-tests shares
  bool json = false;
};

constexpr double kGpuSeconds = 100;
constexpr DType kKernelTypes[] = {DType::f64, DType::f32, DType::bf16};

void check_flags(const CalibrateFlags& f) {
  if (!f.own.measurements.empty()) {
    for (const auto& [name, value] : {std::pair{"--backend", &f.backend},
                                      {"--budget", &f.budget},
                                      {"--dtype", &f.type},
                                      {"--runs", &f.runs},
                                      {"--ranks", &f.nccl.ranks},
                                      {"--ranks-per-node", &f.nccl.ranks_per_node}})
      if (*value) throw InputError(name, "has no meaning with --from", "leave it out");
    if (!f.nccl.logs.empty()) throw InputError("--nccl-tests", "has no meaning with --from", "leave it out");
    return;
  }
  if (!f.own.plans.empty()) throw InputError("--plan", "has no meaning without --from", "leave it out");
  if (f.own.shared.model) throw InputError("--model", "has no meaning without --from", "leave it out");
  if (!f.nccl.logs.empty()) {
    for (const auto& [name, value] :
         {std::pair{"--backend", &f.backend}, {"--budget", &f.budget}, {"--dtype", &f.type}, {"--runs", &f.runs}})
      if (*value) throw InputError(name, "has no meaning with --nccl-tests", "leave it out");
    return;
  }
  const bool cuda = f.backend && *f.backend == "cuda";
  for (const auto& [name, value] : {std::pair{"--ranks-per-node", &f.nccl.ranks_per_node},
                                    {"--cluster", &f.nccl.cluster},
                                    {"--costs", &f.nccl.costs}})
    if (*value && !(cuda && value == &f.nccl.cluster))
      throw InputError(name, "has no meaning without --nccl-tests", "leave it out");
  if (f.runs) {
    for (const auto& [name, value] : {std::pair{"--backend", &f.backend},
                                      {"--ranks", &f.nccl.ranks},
                                      {"--budget", &f.budget},
                                      {"--dtype", &f.type}})
      if (*value) throw InputError(name, "has no meaning with --runs", "leave it out");
    return;
  }
  if (!f.backend)
    throw InputError("--backend", "is missing",
                     "give --backend host or cuda, --from MEASUREMENT, --nccl-tests LOG or --runs RUNS.csv");
  if (*f.backend == "mpi")
    throw InputError("--backend", "'mpi' computes as host does; its collectives are not measured", "give host");
  if (!cuda && *f.backend != "host")
    throw InputError("--backend", "'" + printable(*f.backend) + "' is not a backend", "give host or cuda");
  if (cuda && !f.nccl.cluster)
    throw InputError("--cluster", "is missing: the costs are for predictions of one cluster's GPU",
                     "name the cluster or GPU that this is, such as dgx-h100");
}

std::string name_of(const std::string& source, const std::string& generation) {
  return source.empty() ? "pooled" : source + (generation.empty() ? "" : ", " + generation);
}

// Every constant with its error, per GPU and platform.
std::string constants_table(const CalibratedRuns& fitted) {
  std::vector<std::vector<std::string>> lines;
  for (const auto* list : {&fitted.costs.gpus, &fitted.costs.platforms})
    for (const FittedPlatform& p : *list)
      for (const FittedConstant& c : p.constants)
        lines.push_back({p.gpu, name_of(p.source, p.software_generation), c.name, fmt::format("{:.4g}", c.value),
                         fmt::format("{:.2g}", c.standard_error), std::to_string(c.rows)});
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; });
  return fitting_table({"GPU", "platform", "constant", ">value", ">std. error", ">rows"}, lines);
}

std::string platforms_table(const CalibratedRuns& fitted) {
  std::vector<std::vector<std::string>> lines;
  for (const PlatformFit& p : fitted.platforms)
    lines.push_back({p.gpu, name_of(p.source, p.software_generation), std::to_string(p.rows),
                     fmt::format("{:.1f} %", 100 * p.before), fmt::format("{:.1f} %", 100 * p.after),
                     join(p.at_bound)});
  return fitting_table({"GPU", "platform", ">rows", ">error before", ">after", "at the end of its range"}, lines);
}

int calibrate_runs(const CalibrateFlags& f) {
  if (f.output) check_apart(*f.output, *f.runs);
  std::error_code error;
  if (std::filesystem::is_directory(*f.runs, error))
    throw InputError("--runs", "'" + *f.runs + "' is a folder", "give a CSV file of runs");
  std::ifstream file(*f.runs, std::ios::binary);
  if (!file) throw InputError("--runs", "'" + *f.runs + "' cannot be read", "give a CSV file of runs");
  CalibratedRuns fitted;
  std::size_t left_out = 0;
  {
    Progress progress;
    FitRunsOptions options;
    options.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
    options.progress = [&](const std::string& what) { progress.say("calibrate: " + what); };
    const FitRuns runs = read_fit_runs(file, *f.runs, options);
    left_out = runs.left_out.size();
    fitted = fit_runs(runs.rows,
                      fmt::format("calibrate --runs {}, {}", std::filesystem::path(*f.runs).filename().string(),
                                  counted(runs.rows.size(), "run")),
                      options);
  }
  const std::string text = to_json_text(fitted.costs);
  if (f.output) write_file(*f.output, text);
  if (f.json || !f.output) {
    print(stdout, text);
  } else {
    print(stdout, constants_table(fitted) + "\nStep time, mean absolute error over the rows of the fit:\n" +
                      platforms_table(fitted));
    print(stdout, fmt::format("\n{}: {}; {} left out (`fsdp-plan accuracy` says why).\n", *f.output,
                              counted(free_constants(fitted.costs), "constant"), counted(left_out, "row")));
  }
  return kDone;
}

int calibrate_nccl_tests(const CalibrateFlags& f) {
  for (const std::string& log : f.nccl.logs)
    if (f.output) check_apart(*f.output, log);
  const NcclTestsResult result = costs_from_nccl_tests(f.nccl);
  const std::string text = to_json_text(result.costs);
  if (f.output) write_file(*f.output, text);
  for (const std::string& note : result.notes) print(stderr, note + "\n");
  if (f.json || !f.output) print(stdout, text);
  else
    print(stdout, result.table +
                      fmt::format("\n{}: costs of '{}' ({})\n", *f.output, result.costs.platform, result.costs.source));
  return kDone;
}

int calibrate_own(CalibrateFlags f) {
  for (const auto* files : {&f.own.measurements, &f.own.plans})
    for (const std::string& path : *files)
      if (f.output) check_apart(*f.output, path);
  f.own.cluster = f.nccl.cluster, f.own.costs = f.nccl.costs;
  const OwnCosts own = costs_from_measurements(f.own);
  const std::string text = to_json_text(own.costs);
  if (f.output) write_file(*f.output, text);
  for (const std::string& note : own.notes) print(stderr, "note: " + note + "\n");
  if (f.json || !f.output) print(stdout, text);
  else
    print(stdout,
          own.tables + fmt::format("\n{}: costs of '{}' ({})\n", *f.output, own.costs.platform, own.costs.source));
  return kDone;
}

int calibrate_command(const CalibrateFlags& f) {
  check_flags(f);
  check_output("-o", f.output);
  if (!f.own.measurements.empty()) return calibrate_own(f);
  if (!f.nccl.logs.empty()) return calibrate_nccl_tests(f);
  if (f.runs) return calibrate_runs(f);
  CalibrateOptions options;
  if (f.nccl.ranks) options.ranks = parse_count(*f.nccl.ranks, "--ranks", 1, 1024);
  if (f.budget) options.seconds_budget = parse_seconds(*f.budget, "--budget").count();
  if (f.type) options.type = parse_number_type(*f.type, "--dtype", kKernelTypes);
  if (!(options.seconds_budget > 0))
    throw InputError("--budget", "is zero", "give the time that calibration may take, such as 20s");
  Costs costs;
  std::vector<std::string> notes;
  {
    Progress progress;
    options.progress = [&](const std::string& what) { progress.say("calibrate: " + what); };
    if (*f.backend == "cuda") {
      if (!f.nccl.ranks) options.ranks = 1;
      if (!f.type) options.type = DType::bf16;
      if (!f.budget) options.seconds_budget = kGpuSeconds;
      const auto backend = make_cuda_backend({1, options.ranks});
      costs = calibrate_gpu(options, named_cluster(*f.nccl.cluster).gpu.name, *backend);
    } else {
      const MachineWatch watch;
      costs = calibrate_host(options);
      notes = doubts(watch.finish("", ""), options.ranks);
    }
  }
  for (const std::string& note : notes)
    print(stderr, "note: " + note + "; times of these costs are too long: calibrate again when it is quiet\n");
  const std::string text = to_json_text(costs);
  if (f.output) write_file(*f.output, text);
  if (f.json || !f.output) print(stdout, text);
  else print(stdout, fmt::format("{}: costs of '{}' ({})\n", *f.output, costs.platform, costs.source));
  return kDone;
}

}  // namespace

void add_calibrate(const Command& app) {
  auto flags = std::make_shared<CalibrateFlags>();
  const Command command =
      app.add("calibrate", "costs.json of this machine's kernels, of nccl-tests logs, or fitted to measured runs");
  command.option("--backend", flags->backend, "host, or cuda: this machine's GPUs", "BACKEND");
  command.option("--ranks", flags->nccl.ranks,
                 "ranks that work at once, as a run will have; default 2; cuda: GPUs, default 1", "N");
  command.option(
      "--budget", flags->budget,
      "about how long it may take; default 20s; cuda: 100s. It bounds repetitions: each benchmark runs once whatever "
      "it is, some seconds in all, about a minute with 8 ranks per core",
      "SECONDS");
  command.option("--dtype", flags->type, "of the kernels: fp32 (default), fp64, bf16 (default of cuda)", "TYPE");
  command.option("-o,--output", flags->output, "write the costs here", "FILE");
  command.option("--nccl-tests", flags->nccl.logs,
                 "instead: measured collectives from logs of nccl-tests (--ranks: where they do not say)", "LOG");
  command.option("--ranks-per-node", flags->nccl.ranks_per_node, "of the logs, where they do not say", "N");
  command.option("--cluster", flags->nccl.cluster,
                 "of the logs (default: a cluster of the GPUs that they name), or that this machine's GPU is of; of "
                 "--from (default: the one that the measurement names)",
                 "C");
  command.option("--costs", flags->nccl.costs,
                 "put the logs' curves into these costs, or move these to the measurements; default: the GPU's "
                 "datasheet",
                 "FILE");
  command.option("--runs", flags->runs, "instead: fit a few constants per platform to published runs", "RUNS.csv");
  command.option("--from", flags->own.measurements,
                 "instead: move the costs to these measurement.json of `run -o`, of one plan or of several",
                 "MEASUREMENT");
  command.option("--plan", flags->own.plans, "of --from: the plan.json of each measured plan", "PLAN");
  command.option("--model", flags->own.shared.model, "of --from: the model that was trained", "MODEL");
  command.option("--implementation", flags->own.shared.implementation,
                 "of --from: whose steps were measured; default: the plan's", "NAME");
  command.flag("--compile", flags->own.shared.compile, "of --from: the implementation's compiled variant");
  add_model_flags(command, flags->own.shared);
  command.flag("--json", flags->json, "print the costs, one JSON object");
  command.examples({"fsdp-plan calibrate --backend host --ranks 2 -o costs.json",
                    "fsdp-plan calibrate --nccl-tests all_reduce.log --cluster dgx-h100 -o costs.json",
                    "fsdp-plan calibrate --runs runs.csv -o fitted.json",
                    "fsdp-plan calibrate --from measurement.json --plan plan.json --model llama3-8b -o mine.json"});
  command.runs([flags] { return calibrate_command(*flags); });
}

}  // namespace fsdp::cli
