// fsdp-plan simulate: predicts one plan, given as a file or by flags.
#include <memory>

#include "cli/brief_json.h"
#include "cli/commands.h"
#include "cli/commands/goodput.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/pages/pages.h"
#include "cli/predict.h"
#include "cli/report/goodput_report.h"
#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "planner/verdict.h"
#include "simulator/analysis/memory_report.h"
#include "simulator/engine/jitter.h"
#include "simulator/predict/allocation.h"
#include "simulator/records/prediction.h"
#include "viz/snapshot.h"
#include "viz/trace.h"

namespace fsdp::cli {
namespace {

struct SimulateFlags {
  Flags shared;
  Text output, trace, snapshot, svg;
  ReportFlag report;
  Text jitter_seed;
  JsonForm json = JsonForm::none;
  bool memory = false, jitter = false;
  GoodputFlags goodput;
};

// --jitter, --jitter-seed: the step as a distribution.
void add_distribution(Prediction& p, const SimulateFlags& f, const ShardingPlan& plan, const Setup& setup) {
  if (!f.jitter && !f.jitter_seed) return;
  if (setup.cluster.host)
    throw InputError("--jitter", "how unequal the CPU ranks of 'host' are is not known", "leave it out");
  std::optional<std::uint64_t> seed;
  if (f.jitter_seed) seed = static_cast<std::uint64_t>(parse_count(*f.jitter_seed, "--jitter-seed", 0, INT64_MAX));
  Setup equal = setup;
  equal.costs.gpu_spread = 0;
  p.step_time_distribution =
      step_time_distribution(p.step_time, time_plan(plan, equal).step, p.where, p.ranks, setup.costs, seed);
}

// One answer replaces another: not both.
void check_answers(const SimulateFlags& f) {
  if (f.memory && f.json != JsonForm::none && f.shared.price)
    throw InputError("--price", "has no answer in that of --memory, which has no tokens", "give one of them");
  const char* long_run = f.goodput.mtbf ? "--mtbf" : "--cluster-mtbf";
  if (!f.goodput.mtbf && !f.goodput.cluster_mtbf) return;
  if (f.memory)
    throw InputError("--memory", std::string("has no answer beside that of ") + long_run, "give one of them");
  if (f.json == JsonForm::brief)
    throw InputError("--json", std::string("the answer of ") + long_run + " has no brief form", "give --json");
}

int simulate_command(const SimulateFlags& f) {
  check_answers(f);
  const Flags& s = f.shared;
  check_output("-o", f.output, {s.plan, s.model, s.cluster, s.costs, f.trace});
  check_output("--trace", f.trace, {s.plan, s.model, s.cluster, s.costs});
  check_output("--report", f.report.file, {s.plan, s.model, s.cluster, s.costs, f.output, f.trace});
  check_output("--snapshot", f.snapshot, {s.plan, s.model, s.cluster, s.costs, f.output, f.trace, f.report.file});
  check_output("--svg", f.svg, {s.plan, s.model, s.cluster, s.costs, f.output, f.trace, f.report.file, f.snapshot});
  std::optional<PlanFile> file;
  if (f.shared.plan) file = plan_from_file(f.shared);
  const Setup setup = resolve_setup(f.shared, file ? &*file : nullptr);
  const ShardingPlan plan = file ? file->plan : plan_from_flags(f.shared, setup);
  if (!file && f.shared.async_tensor && plan.tensor() == 1)
    throw InputError("--async-tensor", "has nothing to overlap: no layer is split over tensor ranks",
                     "give --tensor, or leave it out");
  if (f.shared.plan) check(plan, setup.model, *f.shared.plan);
  Programs programs = programs_of(plan, setup);
  const Program& program = programs.of(0);
  const ModelGraph& local = programs.job().model;
  Prediction prediction = predict(programs, setup.costs, setup.options);
  add_distribution(prediction, f, plan, setup);
  prediction = priced(std::move(prediction), setup);
  print(stderr, caution(plan, setup.model, *setup.implementation));
  const std::optional<GoodputAnswer> goodput = apply_goodput_flags(f.goodput, prediction, plan, setup);
  if (f.output) write_file(*f.output, to_json_text(prediction));
  const CostContext context{local, plan, *setup.implementation, setup.cluster, setup.costs};
  if (f.trace)
    write_file(*f.trace, trace_json({program, plan, local, &prediction,
                                     demands_of(program.steady_step, program, context), nullptr}));
  if (f.svg) write_file(*f.svg, simulate_svg(prediction, program, plan, setup));
  if (f.snapshot)
    write_file(*f.snapshot,
               memory_snapshot({program, plan, local, allocation_history(program, context, prediction.timeline)}));
  if (f.report.file) write_file(*f.report.file, simulate_page(f.report.words, prediction, program, plan, setup));
  if (f.json != JsonForm::none) {
    print(stdout, goodput    ? goodput_json(*goodput)
                  : f.memory ? to_json_text(memory_report(program, plan, local))
                             : printed(prediction, f.json));
    if (f.trace && trace_cut(program.steady_step)) print(stderr, trace_line(*f.trace, program.steady_step));
  } else {
    print(stdout, verdict_headline(stdout, verdict_line(prediction)) + doubt_line(prediction) + cost_line(prediction));
    if (prediction.step_time_distribution)
      print(stdout, distribution_line(*prediction.step_time_distribution, prediction.ranks, setup.costs));
    print(stdout, "Plan: " + plan_label(plan, &setup.model) + "\n" + basis(prediction, plan, setup.costs));
    if (f.memory) print(stdout, memory_text(memory_report(program, plan, local), prediction));
    else if (goodput) print(stdout, "\n" + goodput_text(*goodput));
    else print(stdout, prediction_report(prediction));
    if (f.trace) print(stdout, trace_line(*f.trace, program.steady_step));
    if (f.svg) print(stdout, "\npicture: " + *f.svg + "\n");
    if (f.snapshot) print(stdout, snapshot_line(*f.snapshot));
    if (f.report.file) print(stdout, report_line(*f.report.file));
  }
  return prediction.verdict == Verdict::does_not_fit ? kAnswerIsNo : kDone;
}

}  // namespace

void add_simulate(const Command& app) {
  auto flags = std::make_shared<SimulateFlags>();
  const Command command = app.add("simulate", "predict one plan: time, memory, timeline");
  add_setup_flags(command, flags->shared);
  command.group("Plan").option("--plan", flags->shared.plan,
                               "plan.json; without it, the naive plan with the flags below", "FILE");
  add_plan_flags(command, flags->shared);
  const Command output = command.group("Output");
  output.option("-o,--output", flags->output, "write the prediction here", "FILE");
  output.option("--trace", flags->trace, "write a Perfetto / Chrome trace here", "FILE");
  output.option("--snapshot", flags->snapshot,
                "write the allocator's history here as PyTorch does, for pytorch.org/memory_viz", "FILE");
  output.option("--svg", flags->svg, "write the timeline and the memory as a picture for documents here", "FILE.svg");
  add_report_flag(output, flags->report, "write a page with the step's timeline and memory here (HTML)");
  output.flag("--jitter", flags->jitter,
              "also the step's distribution: GPUs of unequal speed, steps of unequal length");
  output.option("--jitter-seed", flags->jitter_seed,
                "... of the one cluster that this seed draws; default: over clusters", "N");
  output.flag("--memory", flags->memory, "what memory is made of, phase by phase, and the largest buffers at the peak");
  output.json(flags->json, "one JSON object: the prediction, or what --memory or --mtbf asks for");
  add_goodput_flags(command.group("Long runs"), flags->goodput);
  command.explains_words();
  command.examples({"fsdp-plan simulate --plan plan.json --model llama3-8b --cluster dgx-h100 --trace trace.json",
                    "fsdp-plan simulate --model llama3-8b --cluster dgx-h100 --gpus 16 --seq-len 8k --offload",
                    "fsdp-plan simulate --model llama3-8b --cluster dgx-h100 --seq-len 8k --memory"});
  command.runs([flags] { return simulate_command(*flags); });
}

}  // namespace fsdp::cli
