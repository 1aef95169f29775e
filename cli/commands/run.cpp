// fsdp-plan run: executes a plan on this machine and reports what the instruments saw; with --prediction, side by side.
#include "executor/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/brief_json.h"
#include "cli/checkpoints.h"
#include "cli/commands.h"
#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/named.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/pages/pages.h"
#include "cli/report/report.h"
#include "cli/report/train_log.h"
#include "cli/run_backend.h"
#include "cli/terminal/terminal.h"
#include "cli/training.h"
#include "executor/mpi_backend.h"
#include "executor/ranks/signals.h"
#include "executor/training/room_for.h"
#include "models/hub/config.h"
#include "models/input/counted.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "simulator/records/compare.h"
#include "viz/trace.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

struct RunFlags {
  Flags shared;  // --plan and --model only
  BackendFlags machine;
  Text steps, until_step, warmup, until_noise, max_steps, watchdog, output, trace, prediction;
  ReportFlag report;
  JsonForm json = JsonForm::none;
  bool check = false;
  TrainingFlags training;
  CheckpointFlags checkpoints;
};

constexpr double kShortestWatchdog = 0.1, kLongestWatchdog = 86'400;  // progress is looked at every 20 ms
constexpr const char* kStopping =
    "fsdp-plan: asked to stop: the run ends after this step, at the earliest the second (again: at once)\n";
constexpr int kMostNoiseSteps = 500;  // of --until-noise, unless said

void check_flags(const RunFlags& f) {
  if (!f.shared.plan) throw InputError("--plan", "is missing", "make one with `fsdp-plan plan ... -o plan.json`");
  if (!f.shared.model) throw InputError("--model", "is missing", "give the model that the plan was made for");
  check_backend_flags(f.machine);
  check_training_flags(f.training, f.output);
  if (f.steps && f.until_noise)
    throw InputError("--steps", "has no meaning with --until-noise", "give --max-steps, or one of the two alone");
  if (f.until_step && (f.steps || f.until_noise))
    throw InputError("--until-step", "has no meaning with --steps or --until-noise", "give one of them");
  if (f.check && !f.prediction) throw InputError("--check", "has nothing to compare with", "give --prediction FILE");
  if (f.max_steps && !f.until_noise)
    throw InputError("--max-steps", "has no meaning without --until-noise", "give --steps for a fixed number");
}

std::string measured_line(const Measurement& m, std::int64_t tokens) {
  const double loss = m.losses.empty() ? 0 : m.losses.back();
  std::int64_t peak = 0, undeclared = 0;
  for (const RankMeasurement& r : m.ranks) {
    peak = std::max(peak, r.peak_allocated_bytes);
    undeclared = std::max(undeclared, r.undeclared_bytes);
  }
  return fmt::format(
      "Ran: step {} (median of {}, noise {}), {} tokens/s, peak allocated {}, undeclared {}, loss {:.4f}.\n",
      human(Seconds(m.median_step_seconds)), m.step_seconds.size(),
      m.step_seconds.size() > 1 ? percent(m.noise) : "unknown",
      with_commas(static_cast<std::int64_t>(static_cast<double>(tokens) / m.median_step_seconds)), human(Bytes(peak)),
      human(Bytes(undeclared)), loss);
}

// What `compare` would refuse after the run is refused before it.
void check_prediction(const Prediction& p, const ModelGraph& model, const ShardingPlan& plan,
                      const Implementation& runs, const std::string& file) {
  const char* remedy = "predict the plan that is to run, with `fsdp-plan simulate --cluster host`";
  if (p.provenance.model_digest != model.digest())
    throw InputError(file, "predicts another model, " + p.provenance.model, remedy);
  if (p.provenance.plan_digest != plan.digest())
    throw InputError(file, "predicts another plan, of digest " + p.provenance.plan_digest, remedy);
  if (p.provenance.implementation != runs.name)
    throw InputError(file,
                     fmt::format("predicts the implementation {}, but {} runs", p.provenance.implementation, runs.name),
                     remedy);
  if (p.order.empty()) throw InputError(file + ": order", "is empty", remedy);
}

BackendOptions backend_options(const RunFlags& f) {
  BackendOptions options;
  if (f.watchdog) options.watchdog_seconds = parse_seconds(*f.watchdog, "--watchdog").count();
  if (options.watchdog_seconds < kShortestWatchdog || options.watchdog_seconds > kLongestWatchdog) {
    throw InputError("--watchdog", "is not between 100 ms and 24 hours",
                     "give the longest time without progress, such as 60s");
  }
  return options;
}

std::int64_t until_step(const RunFlags& f) {
  return f.until_step ? parse_count(*f.until_step, "--until-step", 1, kMostSteps) : 0;
}

// `done`: steps of the checkpoint that it goes on from.
RunOptions run_options(const RunFlags& f, std::int64_t done) {
  RunOptions options;
  options.training.steps_done = done;
  options.steps = f.steps ? static_cast<int>(parse_count(*f.steps, "--steps", 1, 1'000'000)) : kFewestForInterval;
  if (f.until_noise) {
    options.until_noise = parse_percent(*f.until_noise, "--until-noise");
    options.steps = f.max_steps ? static_cast<int>(parse_count(*f.max_steps, "--max-steps", kFewestToSettle, 1'000'000))
                                : kMostNoiseSteps;
  }
  if (f.warmup) options.warmup_steps = static_cast<int>(parse_count(*f.warmup, "--warmup", 0, 1000));
  if (const std::int64_t left = until_step(f) - done; f.until_step && left > 0) {
    options.warmup_steps = static_cast<int>(std::clamp<std::int64_t>(left - 1, 1, std::max(1, options.warmup_steps)));
    options.steps = static_cast<int>(left) - options.warmup_steps;
    options.single = left == 1;
  }
  return options;
}

RanksHere ranks_here(const ShardingPlan& plan, const Launch* others) {
  return others != nullptr ? RanksHere{others->ranks_here(), 1} : RanksHere{plan.ranks(), plan.ranks()};
}

// Without what libraries do at exit.
[[noreturn]] void end_at_once(Launch* others, int status) {
  std::fflush(nullptr);
  if (others != nullptr) others->end(status);
  ::_exit(status);
}

// What was asked for and cannot be, without a measurement: "; measurement.json is not written".
std::string without_measurement(const RunFlags& f) {
  std::string text;
  if (f.output) text += fmt::format("; {} is not written", printable(*f.output));
  if (f.trace) text += fmt::format("; {} is not written", printable(*f.trace));
  if (f.json != JsonForm::none) text += "; --json has nothing to print";
  if (f.check) text += "; --check has nothing to compare";
  return text;
}

struct Trained {
  RunResult result;
  std::int64_t steps_before = 0;  // of the checkpoint that it went on from
  Programs programs;
  bool measured = true;
};
// Nothing: no step is left to run.
std::optional<Trained> execute(const RunFlags& f, const ModelGraph& model, const ShardingPlan& plan, Launch* others) {
  const bool reports = others == nullptr || others->rank() == 0;
  // Ranks on processors that have no room are refused before anything is opened.
  std::optional<Programs> programs;
  const std::optional<ClusterSpec> processors = processors_of(f.machine, plan);
  if (processors) {
    programs.emplace(resolve(model, plan, implementation_of(f.machine), *processors));
    check_room(*programs, ranks_here(plan, others), *f.shared.plan);
  }
  const BackendOptions watchdog = backend_options(f);
  const std::shared_ptr<const Checkpoint> resumes = checkpoint_to_resume(f.checkpoints, model, plan);
  RunOptions options = run_options(f, resumes ? resumes->manifest().step : 0);
  TrainingFlags flags = f.training;
  const bool goes_on = resumes && f.checkpoints.fresh_if_none && flags.init_from;
  if (goes_on) {
    flags.init_from.reset();
    flags.init_adapters.reset();
  }
  TrainingSetup training = apply_training_flags(flags, model, plan, options);
  if (goes_on) training.notes.push_back("note: --init-from is not read: the weights are the checkpoint's");
  const ModelSource source =
      f.checkpoints.save || flags.init_from ? source_from_flags(f.shared, model, plan.seq_len) : ModelSource{};
  if (flags.init_from && !source.config.empty())
    if (const std::string text = differs_from_transformers(source.config, model); !text.empty())
      training.notes.push_back("note: " + text);
  std::optional<TrainLog> log;
  if (f.training.log && reports)
    log.emplace(*f.training.log, "--log", resumes ? std::optional(resumes->manifest().step) : std::nullopt);
  if (log && log->replaced_lines() > 0)
    training.notes.push_back(fmt::format("note: --log: lines of steps after {} are replaced: {}",
                                         options.training.steps_done, log->replaced_lines()));
  const auto [backend, cluster] = make_backend(f.machine, *f.shared.model, plan, processors, watchdog);
  if (!programs) programs.emplace(resolve(model, plan, backend->implementation(), cluster));
  Progress progress;
  options.progress = [&](const StepReport& s) {
    if (s.done == 1)  // not before: a run that is refused says one sentence
      for (const std::string& note : training.notes) print(stderr, note + "\n");
    const double speed = static_cast<double>(plan.tokens_per_step()) / s.seconds;
    progress.say(fmt::format("run: step {} of {}, loss {:.4f}, {} tokens/s", s.done, s.total, s.loss,
                             with_commas(static_cast<std::int64_t>(speed))));
    const std::int64_t step = options.training.steps_done + s.done;
    if (log) log->add({step, s.loss, training.rate(step - 1), speed, s.seconds});
  };
  note_signals();
  ask_before_ending({others == nullptr, reports ? kStopping : nullptr});
  options.asked_to_stop = [] { return asked_signal() == 0 ? std::string() : signal_name(asked_signal()); };
  const RunCheckpoints checkpoints =
      apply_checkpoint_flags(f.checkpoints, resumes, model, source, plan, *backend, options);
  if (f.until_step && options.training.steps_done >= until_step(f)) {
    if (reports)
      print(stderr, fmt::format("nothing is left to run: {} has {}, --until-step asks for {}{}\n", checkpoints.resumed,
                                counted(options.training.steps_done, "step"), until_step(f), without_measurement(f)));
    return std::nullopt;
  }
  if (reports && !checkpoints.resumed.empty())
    print(stderr,
          fmt::format("going on from {}, after {}, on {}, at {}\n", checkpoints.resumed,
                      counted(options.training.steps_done, "step"),
                      f.training.data ? printable(*f.training.data) : "synthetic tokens (--data trains on others)",
                      options.training.learning_rate ? training.rate.describe()
                                                     : fmt::format("the plan's learning rate, {}", plan.optimizer.lr)));
  try {
    RunResult result = run(*programs, *backend, options);
    return Trained{std::move(result), options.training.steps_done, std::move(*programs), !options.single};
  } catch (const RankFailure& e) {
    rethrow_damage(checkpoints);
    if (may_exit_after_failure(*backend)) throw;
    if (others == nullptr || others->is_reporter()) std::fprintf(stderr, "fsdp-plan: %s\n", e.what());
    end_at_once(others, kMachineFailed);
  }
}

// What a run of ten or more steps looks like.
std::string trained_text(const Measurement& m, const ShardingPlan& plan) {
  if (m.losses.size() < 10) return "";
  const std::size_t steps = m.losses.size();
  return fmt::format(
      "\n{}Trained {} steps ({} of them warm-up of the measurement), {} tokens: loss {:.4f} at the first, {:.4f} at "
      "the last.\n",
      loss_chart(m.losses, chart_width(12), 8, chart_style()), steps, steps - m.step_seconds.size(),
      with_commas(static_cast<std::int64_t>(steps) * plan.tokens_per_step()), m.losses.front(), m.losses.back());
}

// The comparison; without --prediction also the command that makes what to compare with.
std::string next_command(const RunFlags& f) {
  const std::string prediction = f.prediction.value_or("prediction.json");
  std::string text = fmt::format("\nnext: `fsdp-plan validate {} {}`", shell_word(prediction), shell_word(*f.output));
  if (!f.prediction)
    text += fmt::format(
        "; prediction.json comes from `fsdp-plan simulate --plan {} --model {}{} --cluster {} --implementation {} "
        "--costs {} -o prediction.json`",
        shell_word(*f.shared.plan), shell_word(*f.shared.model), model_details(f.shared),
        f.machine.cluster.cluster     ? shell_word(*f.machine.cluster.cluster)
        : f.machine.backend == "cuda" ? "CLUSTER"
                                      : "host",
        implementation_of(f.machine).name,
        f.machine.cluster.costs ? shell_word(*f.machine.cluster.costs) : "COSTS.json");
  return text + "\n";
}

// "stopped by SIGUSR1 after 7 of 50 steps; go on with --resume ckpt".
std::string stopped_line(const RunFlags& f, const EarlyStop& stop, std::int64_t steps_before) {
  std::string text =
      fmt::format("stopped by {} after {} of {}", stop.reason, stop.steps_run, counted(stop.steps_asked, "step"));
  if (f.checkpoints.save)
    text += fmt::format("; step {} is saved: go on with --resume {}", steps_before + stop.steps_run,
                        shell_word(*f.checkpoints.save));
  return text + "\n";
}

int run_here(const RunFlags& f, Launch* others) {
  const bool reports = others == nullptr || others->rank() == 0;
  const auto& t = f.training;
  check_output("-o", reports ? f.output : Text(),
               {f.shared.plan, f.shared.model, f.prediction, t.data, t.init_from, t.init_adapters, f.trace});
  check_output("--trace", reports ? f.trace : Text(),
               {f.shared.plan, f.shared.model, f.prediction, t.data, t.init_from, t.init_adapters});
  if (reports)
    check_output("--report", f.report.file, {f.shared.plan, f.shared.model, f.prediction, t.data, f.output, f.trace});
  const ShardingPlan plan = plan_from_file(f.shared).plan;
  const ModelGraph model = model_from_flags(f.shared, plan.seq_len);
  check_executable(plan, model, *f.shared.plan);
  std::optional<Prediction> prediction;
  if (f.prediction) {
    prediction = parse_prediction(read_file(*f.prediction), *f.prediction);
    check_prediction(*prediction, model, plan, implementation_of(f.machine), *f.prediction);
  }
  std::optional<Trained> ran = execute(f, model, plan, others);
  if (!ran) return kDone;
  Trained& trained = *ran;
  if (!trained.measured) {
    if (reports)
      print(stderr, fmt::format("step {}, the last, was the only one left: it has trained, and the first step of a run "
                                "is never measured{}\n",
                                trained.steps_before + 1, without_measurement(f)));
    return kDone;
  }
  const int status = trained.result.early_stop ? kStoppedEarly : kDone;
  if (others != nullptr && status != kDone) others->all_end_with(status);
  const bool first_decides = others != nullptr && status == kDone && f.check;  // it alone has the measurement
  if (!reports) return first_decides ? others->all_end_as_first(status) : status;
  const Measurement& measured = trained.result.measurement;
  const ModelGraph& executed = trained.programs.job().model;  // what one rank computes of it
  if (f.output) write_file(*f.output, to_json_text(measured));
  const Program& program = trained.programs.of(0);
  if (f.trace)
    write_file(*f.trace, trace_json({program, plan, executed, prediction ? &*prediction : nullptr, {}, &measured}));
  if (const auto bad =
          std::find_if(measured.losses.begin(), measured.losses.end(), [](double l) { return !std::isfinite(l); });
      bad != measured.losses.end())
    print(stderr, fmt::format("note: the loss was no number from step {} on: what was timed stands, what was trained "
                              "does not; give a lower --lr\n",
                              trained.steps_before + (bad - measured.losses.begin()) + 1));
  if (measured.early_stop) print(stderr, stopped_line(f, *measured.early_stop, trained.steps_before));
  std::optional<ValidationReport> report;
  if (prediction) report = compare(*prediction, measured);
  if (f.report.file)
    write_file(*f.report.file, run_page(f.report.words, measured, prediction, report, program, plan, executed));
  int code = status == kDone && f.check && !report->within ? kAnswerIsNo : status;
  if (first_decides) code = others->all_end_as_first(code);
  if (f.json != JsonForm::none) {
    print(stdout, printed(to_json_text(measured), f.json));
    if (f.check) print(stderr, validation_line(*report, Tolerances{}));
    return code;
  }
  print(stdout, bold(stdout, measured_line(measured, plan.tokens_per_step())));
  print(stdout, fmt::format("{}, {} backend: {}\n{}", counted(measured.ranks.size(), "rank"), measured.backend,
                            measured.environment, measurement_lines(measured)));
  for (const std::string& doubt : doubts(measured)) print(stderr, "note: " + doubt + "\n");
  print(stdout, trained_text(measured, plan));
  if (report) print(stdout, validation_line(*report, Tolerances{}));
  if (f.trace) print(stdout, trace_line(*f.trace, trained.programs.of(0).steady_step));
  if (f.report.file) print(stdout, report_line(*f.report.file));
  if (f.output) print(stdout, next_command(f));
  return code;
}

// Every rank's process comes here and sees the same errors: one of them speaks, and one reports.
int run_among_others(const RunFlags& f) {
  Launch& launch = join_launch();
  try {
    return run_here(f, &launch);
  } catch (const InputError&) {
    if (launch.is_reporter()) throw;
    return kBadInput;
  } catch (const std::exception&) {
    if (launch.is_reporter()) throw;
    return kMachineFailed;
  }
}

int run_command(const RunFlags& f) {
  check_flags(f);
  return among_processes(f.machine) ? run_among_others(f) : run_here(f, nullptr);
}

}  // namespace

void add_run(const Command& app) {
  auto flags = std::make_shared<RunFlags>();
  const Command command = app.add("run", "execute a plan: real training steps, measured by instruments");
  const Command what = command.group("Plan and machine");
  what.option("--plan", flags->shared.plan, "plan.json", "FILE");
  what.option("--model", flags->shared.model, "the model that the plan was made for", {"MODEL", model_names});
  add_model_flags(what, flags->shared);
  add_backend_flags(what, flags->machine);
  const Command measuring = command.group("Measuring");
  measuring.option("--steps", flags->steps, "measured steps of training; default 6", "N");
  measuring.option("--until-step", flags->until_step,
                   "instead of --steps: up to this step of the training, warm-up and the steps of the checkpoint that "
                   "--resume finds included",
                   "N");
  measuring.option("--warmup", flags->warmup,
                   "steps of training before those, not measured; default 2; with --until-noise at least. The first "
                   "step, which allocates, is never measured: 0 is as 1",
                   "N");
  measuring.option("--until-noise", flags->until_noise,
                   "instead of --steps: until the median step is known this well, as 2%", "PERCENT");
  measuring.option("--max-steps", flags->max_steps, "most steps of --until-noise; default 500", "N");
  measuring.option("--watchdog", flags->watchdog, "end a run that makes no progress for this long; default 60s",
                   "TIME");
  measuring.option("--prediction", flags->prediction, "prediction.json to compare with, and to draw in --trace",
                   "FILE");
  measuring.flag("--check", flags->check, "exit code 1 if the run is outside the tolerances of `validate`");
  add_training_flags(command.group("Training"), flags->training);
  add_checkpoint_flags(command.group("Checkpoints"), flags->checkpoints);
  const Command output = command.group("Output");
  output.option("-o,--output", flags->output, "write the measurement here", "FILE");
  output.option("--trace", flags->trace, "write a Perfetto / Chrome trace here", "FILE");
  add_report_flag(output, flags->report, "write what was measured, and predicted, as a page here (HTML)");
  output.json(flags->json, "one JSON object");
  command.examples({"fsdp-plan run --plan plan.json --model tiny-llama --backend host --steps 20 -o measurement.json",
                    "fsdp-plan run --plan plan.json --model tiny-llama --backend host --prediction prediction.json "
                    "--check",
                    "fsdp-plan run --plan plan.json --model llama3-8b --backend cuda --until-noise 2%"});
  command.runs([flags] { return run_command(*flags); });
}

}  // namespace fsdp::cli
