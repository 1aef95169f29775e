// fsdp-plan simulate: predicts one plan, given as a file or by flags.
#include <memory>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/predict.h"
#include "cli/report.h"
#include "planner/lower.h"
#include "simulator/memory_report.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

struct SimulateFlags {
  Flags shared;
  Text output, trace;
  bool json = false, memory = false;
};

int simulate_command(const SimulateFlags& f) {
  check_output(f.output);
  check_output(f.trace);
  ShardingPlan plan;
  if (f.shared.plan) plan = plan_from_file(f.shared);
  const Setup setup = resolve_setup(f.shared, f.shared.plan ? &plan : nullptr);
  if (f.shared.plan) check(plan, setup.model, *f.shared.plan);
  else plan = plan_from_flags(f.shared, setup);
  const Program program = lower(setup.model, plan, *setup.implementation);
  const Prediction prediction = predict_program(program, plan, setup);
  if (f.output) write_file(*f.output, to_json_text(prediction));
  if (f.trace) write_file(*f.trace, trace_json(program.steady_step, program, plan, setup.model, &prediction, nullptr));
  if (f.json) {
    print(stdout, f.memory ? to_json_text(memory_report(program, plan, setup.model)) : to_json_text(prediction));
  } else {
    print(stdout, bold(stdout, verdict_line(prediction)));
    print(stdout, "Plan: " + plan_label(plan) + "\n" + basis(prediction, plan, setup.costs));
    if (f.memory) print(stdout, memory_text(memory_report(program, plan, setup.model), prediction));
    else print(stdout, prediction_report(prediction));
    if (f.trace) print(stdout, "\ntrace: " + *f.trace + " (open it in ui.perfetto.dev)\n");
  }
  return prediction.verdict == Verdict::does_not_fit ? kAnswerIsNo : kDone;
}

}  // namespace

void add_simulate(CLI::App& app, Work& chosen) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* command = app.add_subcommand("simulate", "predict one plan: time, memory, timeline");
  add_setup_flags(*command, flags->shared);
  command->add_option("--plan", flags->shared.plan, "plan.json; without it, the naive plan with the flags below")
      ->type_name("FILE");
  add_plan_flags(*command, flags->shared);
  command->add_option("-o,--output", flags->output, "write the prediction here")->type_name("FILE");
  command->add_option("--trace", flags->trace, "write a Perfetto / Chrome trace here")->type_name("FILE");
  command->add_flag("--memory", flags->memory, "what memory is made of, phase by phase, and the largest buffers at the peak");
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags, &chosen] { chosen = [flags] { return simulate_command(*flags); }; });
}

}  // namespace fsdp::cli
