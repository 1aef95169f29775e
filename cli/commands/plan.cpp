// fsdp-plan plan: picks a plan and says why.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/brief_json.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/named.h"
#include "cli/options.h"
#include "cli/pages/pages.h"
#include "cli/predict.h"
#include "cli/questions/comparison.h"
#include "cli/questions/compiled.h"
#include "cli/questions/interrupt.h"
#include "cli/questions/questions.h"
#include "cli/questions/remedies.h"
#include "cli/report/emit_report.h"
#include "cli/report/report.h"
#include "cli/report/rivals_report.h"
#include "cli/report/sizes_report.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/bound/space_bound.h"
#include "planner/bound/tensor_sizes.h"
#include "planner/emit.h"
#include "planner/search.h"
#include "viz/viz.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanFlags {
  Flags shared;
  Questions questions;
  Text effort, target, output, emit, emit_to;
  ReportFlag report;
  JsonForm json = JsonForm::none;
};

std::vector<std::string> efforts() { return {"joint", "uniform"}; }

Effort effort_of(const PlanFlags& f) {
  if (!f.effort) return Effort::joint;
  if (*f.effort == "uniform") return Effort::uniform;
  if (*f.effort == "joint") return Effort::joint;
  throw InputError("--search", "'" + printable(*f.effort) + "' is no way to search", suggestion(*f.effort, efforts()));
}

// Only plans that a target can say: that of --target, also in what flags fix; or else of what --emit writes, which says
// itself what flags fixed and it loses.
SearchHow how_of(const PlanFlags& f) {
  const std::string target = f.target ? *f.target : f.emit.value_or("");
  return {effort_of(f), target.empty() || emits_tensor_plans(target), target, f.target.has_value()};
}

std::string target_line(const SearchHow& how) {
  return how.target.empty() ? "" : "Target: only plans that " + how.target + " can say.\n";
}

// Makes a search say how far it is. `progress` outlives it.
void say_progress(SearchOptions& options, Progress& progress) {
  const std::int64_t tensor = options.base.tensor();
  const std::string what = tensor > 1 ? fmt::format("plan, tensor {}", tensor) : "plan";
  options.progress = [&progress, what](std::int64_t done, std::int64_t total) {
    progress.say(fmt::format("{}: {} of {} candidates", what, done, total));
  };
  options.joint_progress = [&progress, what](std::int64_t simulated, double better) {
    progress.say(
        fmt::format("{}: {} more simulated one choice at a time, {:.1f} % faster", what, simulated, 100 * better));
  };
}

// `how` is changed where nothing can be searched as it says.
SizesResult search_with_progress(SearchHow& how, const Flags& flags, const Setup& setup, const Stop& stop,
                                 const ScoreFunction& score) {
  Progress progress;
  const auto options = [&](std::int64_t tensor) {
    SearchOptions o = options_of(flags, setup, how, tensor);
    o.stop = stop;
    say_progress(o, progress);
    return o;
  };
  try {
    return search_sizes(tensor_tried(flags, setup, how), options, setup.model, setup.cluster, *setup.implementation,
                        setup.costs, score);
  } catch (const InputError& e) {
    if (e.field() != "target" || how.strict) throw naming_given_flags(e, flags);
    // The file is not the plan in any case, which --emit says.
    how = {.effort = Effort::uniform, .splits = false};
    return search_with_progress(how, flags, setup, stop, score);
  }
}

std::string next_command(const PlanFlags& f, const Setup& setup) {
  const std::string plan = shell_word(f.output.value_or("plan.json"));
  const std::string first = f.output ? "" : "add `-o plan.json` to keep the plan, then ";
  if (setup.cluster.host)
    return fmt::format("\nnext: {}`fsdp-plan run --plan {} --model {}{} --backend host`\n", first, plan,
                       shell_word(*f.shared.model), model_details(f.shared));
  return fmt::format("\nnext: {}`fsdp-plan simulate --plan {} {} --trace trace.json`\n", first, plan,
                     flags_beside_the_plan(f.shared));
}

Json result_json(const PlanResult& result, const Prediction* prediction, const PlanFlags& f, const Setup& setup) {
  Json rivals = Json::array();
  for (const Candidate& rival : result.rivals) rivals.push_back(candidate_json(rival));
  Json out = {{"schema", "fsdp-plan/plan-result/1"},
              {"verdict", std::string(name(result.best ? result.best->score.verdict : Verdict::does_not_fit))},
              {"plan", nullptr},
              {"prediction", nullptr},
              {"naive", candidate_json(result.naive)},
              {"rivals", rivals},
              {"considered", result.considered},
              {"pruned", result.pruned},
              {"scored", result.scored},
              {"searched", result.searched}};
  for (const Candidate& c : result.scored_plans) out["scored_plans"].push_back(candidate_json(c));
  if (result.uniform) out["uniform"] = candidate_json(*result.uniform);
  if (result.fastest) out["fastest"] = candidate_json(*result.fastest);
  out["simulated_jointly"] = result.simulated_jointly;
  if (result.stopped) out["stopped"] = true;
  if (result.without_retries) out["without_retries"] = candidate_json(*result.without_retries);
  if (result.best && prediction != nullptr) {
    out["plan"] = Json::parse(to_json_text(file_of(result.best->plan, f.shared, setup)));
    out["prediction"] = Json::parse(to_json_text(*prediction));
  } else {
    out["why_none"] = result.why_none;
  }
  return out;
}

// Costs of the file's plan beside those of the chosen one.
std::string predicted_as_written(const Emitted& emitted, const Prediction& chosen, Setup setup) {
  if (!emitted.predictable()) return "What the file as written takes is not predicted.\n";
  const std::int64_t tokens = emitted.written.tokens_per_step();
  const auto words = [alike = tokens == chosen.tokens_per_step](Seconds step, double rate, Bytes peak,
                                                                Verdict verdict) {
    return fmt::format("step {}, {}peak {}, {}", human(step),
                       alike ? "" : with_commas(std::llround(rate)) + " tokens/s, ", human(peak), name(verdict));
  };
  try {
    const Implementation& planned = *setup.implementation;
    if ((planned.compiled && !emitted.compiled) || (planned.async_tensor && !emitted.async_tensor))
      setup.implementation = &find_implementation(planned.name, emitted.compiled, "implementation");
    check(emitted.written, setup.model);
    const Score written = score_plan(emitted.written, setup);
    const double rate = static_cast<double>(tokens) / written.step.count();
    return fmt::format("The file as written: {}. The plan: {} (of {}).\n",
                       words(written.step, rate, written.peak_total, written.verdict),
                       words(chosen.step_time, chosen.tokens_per_s, chosen.peak_total, chosen.verdict),
                       human(chosen.memory_limit));
  } catch (const InputError&) {  // a plan that no run of ours could have
    return "What the file as written takes is not predicted.\n";
  }
}

// The script or config: to --emit-to, or to standard output (the report then goes to standard error). False: the file
// is another plan than the one that was predicted.
bool emit_plan(const PlanFlags& f, const Prediction& prediction, const ShardingPlan& plan, const Setup& setup) {
  EmitContext context{setup.implementation, std::nullopt};
  if (!setup.cluster.host) context.gpus_per_node = setup.cluster.gpus_per_node;
  const Emitted emitted = emit(*f.emit, plan, setup.model, context);
  print(stderr, inexact_lines(*f.emit, emitted, plan, setup.model, context));
  if (emitted.changes_prediction()) print(stderr, predicted_as_written(emitted, prediction, setup));
  if (f.emit_to) write_file(*f.emit_to, emitted.text);
  else print(stdout, emitted.text);
  return !emitted.changes_prediction();
}

void check_flags(const PlanFlags& f) {
  const auto formats = emit_formats();
  const auto targets = emit_targets();
  if (f.target && std::find(targets.begin(), targets.end(), *f.target) == targets.end()) {
    const bool written = std::find(formats.begin(), formats.end(), *f.target) != formats.end();
    throw InputError(
        "--target", "'" + printable(*f.target) + (written ? "' can say no units" : "' is no target"),
        written ? "write what it can say of a plan with --emit " + *f.target : suggestion(*f.target, targets));
  }
  if (f.emit && std::find(formats.begin(), formats.end(), *f.emit) == formats.end())
    throw InputError("--emit", "'" + *f.emit + "' is not a format", fmt::format("give {}", fmt::join(formats, ", ")));
  if (f.emit_to && !f.emit)
    throw InputError("--emit-to", "needs --emit", fmt::format("give --emit {}", fmt::join(formats, " or ")));
  if (f.json != JsonForm::none && f.emit && !f.emit_to)
    throw InputError("--emit", "and --json both print on standard output", "give --emit-to FILE");
}

// `question`: its flags, without the number of tensor ranks that was chosen.
int nothing_fits(const PlanFlags& f, const Flags& question, const Setup& setup, const SizesResult& sizes,
                 const std::optional<SizeAnswer>& size) {
  const PlanResult& result = *sizes.chosen().result;
  Progress progress;
  std::vector<FlagRemedy> remedies;
  if (!result.stopped) remedies = remedies_of(question, how_of(f), setup, sizes, trials_said(progress));
  Json json = result_json(result, nullptr, f, setup);
  json["least"] = candidate_json(*result.least);
  json["remedies"] = remedies_json(remedies);
  if (size) json["size_question"] = size_json(*size);
  if (sizes.sizes.size() > 1) json["tensor_sizes"] = sizes_json(sizes);
  if (f.json != JsonForm::none) print(stdout, printed(json_lines(json), f.json));
  const std::string searched = result.searched.empty() ? "" : searched_line(result);
  if (f.report.file)
    write_file(*f.report.file, plan_page(f.report.words, result, json_lines(json), searched, nullptr, setup));
  print(stderr, caution(result.least->plan, setup.model, *setup.implementation));
  std::string said = (size ? size->text : "") +
                     (result.stopped ? "Stopped by SIGINT before a plan was found that fits: " : "Does not fit: ") +
                     result.why_none + "\n" +
                     workload(setup.model.name, setup.seq_len, setup.cluster.gpus, setup.cluster.name) +
                     (f.shared.seq_len ? "" : "; --seq-len was not given, so this is what the model allows") + ".\n" +
                     sizes_line(sizes);
  if (!remedies.empty()) said += "What would help that plan, each simulated:\n" + remedies_text(remedies, setup);
  if (!f.questions.compare.empty()) said += "--compare has no plan to compare with.\n";
  if (f.output) {
    write_file(*f.output, to_json_text(file_of(result.least->plan, f.shared, setup)));
    said += fmt::format("{} holds that plan, which does not fit.\n", *f.output);
  }
  print(f.json == JsonForm::none && (!f.emit || f.emit_to) ? stdout : stderr, said);
  return result.stopped ? kStoppedEarly : kAnswerIsNo;
}

// Of a plan that is tight and gives memory back in each step: the fastest that does not.
std::string hint_without_retries(const PlanResult& result) {
  if (!result.without_retries) return "";
  const Candidate& calm = *result.without_retries;
  return fmt::format(
      "\nHint: with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, {} gives no memory back in a step: step {}, peak "
      "{}{}.\n",
      calm.label, human(calm.score.step), human(calm.score.peak_total),
      calm.why_lost.clause.empty() ? "" : " (" + calm.why_lost.clause + ")");
}

// Of a plan that is tight: with what it fits.
std::string fitting(const std::vector<FlagRemedy>& remedies, const Setup& setup) {
  if (remedies.empty()) return "";
  return "\nWhat would make it fit, each simulated:\n" + remedies_text(remedies, setup);
}

// Why nothing is known of all plans that the search could have chosen; empty: a bound on them is derived.
std::string why_no_certificate(const ShardingPlan& plan) {
  if (plan.loop.chunk_head) return "none for an output layer that runs in parts: bounds hold whole logits";
  if (plan.dialect == Dialect::fsdp2) return "";
  return fmt::format("none for {}: the bound on all plans is derived from fsdp2's order of work and what it holds",
                     name(plan.dialect));
}

// What is known of all plans that the search could have chosen; nothing of those that a bound is not derived for.
std::optional<Certificate> certificate_of(const PlanFlags& f, const Setup& setup) {
  if (setup.cluster.host) return std::nullopt;
  const SearchOptions options = search_from_flags(f.shared, setup);
  if (options.chunk_head || !why_no_certificate(options.base).empty()) return std::nullopt;
  const Certificate c = certify(space_of(setup.model, setup.cluster, options), options.memory_limit,
                                *setup.implementation, setup.cluster, setup.costs);
  return c.seconds_per_sequence > 0 ? std::optional(c) : std::nullopt;
}

// How much longer the plan takes than the bound says that any could.
double gap(const Certificate& c, const ShardingPlan& plan, Seconds step) {
  return step.count() / static_cast<double>(plan.sequences_per_rank()) / c.seconds_per_sequence - 1;
}

std::string certificate_line(const Certificate& c, const ShardingPlan& plan, Seconds step) {
  return fmt::format(
      "Certificate: within {:.1f} % of the best of {:.0e} plans, under this cost model (whose own error comes on top): "
      "none takes less than {} a sequence, this one takes {}.\n",
      100 * gap(c, plan, step), c.plans, human(Seconds(c.seconds_per_sequence)),
      human(Seconds(step.count() / static_cast<double>(plan.sequences_per_rank()))));
}

Json certificate_json(const Certificate& c, const ShardingPlan& plan, Seconds step) {
  return {{"bound_seconds", c.seconds_per_sequence * static_cast<double>(plan.sequences_per_rank())},
          {"gap", gap(c, plan, step)},
          {"plans", c.plans},
          {"seconds_per_sequence", c.seconds_per_sequence},
          {"kind_at_the_bound", c.kind},
          {"assumptions", {"this cost model, whose own error comes on top", "the plans that docs/search.md lists"}}};
}

int plan_command(PlanFlags asked) {
  check_flags(asked);
  asked.shared = for_target(asked.shared, how_of(asked).target);
  const auto search_with = [&](const Flags& flags, const Setup& setup, const Stop& stop, const ScoreFunction& score) {
    SearchHow how = how_of(asked);
    return *search_with_progress(how, flags, setup, stop, score).chosen().result;
  };
  const AnswerTo to{asked.output, asked.emit, asked.report.file, asked.json, asked.effort};
  if (const auto code = answer_with_table(asked.questions, asked.shared, to, how_of(asked), search_with)) return *code;
  PlanFlags f = asked;
  for (const Text& output : {f.output, f.emit_to, f.report.file})
    check_apart_from_compared(output, f.questions.compare);
  check_output("-o", f.output, {f.shared.model, f.shared.cluster, f.shared.costs, f.emit_to});
  check_output("--emit-to", f.emit_to, {f.shared.model, f.shared.cluster, f.shared.costs});
  check_output("--report", f.report.file, {f.shared.model, f.shared.cluster, f.shared.costs, f.output, f.emit_to});
  const std::optional<SizeAnswer> size = answer_size_question(f.questions.size, f.shared, how_of(f));
  if (size) f.shared = size->flags;
  const Setup setup = resolve_setup(f.shared);
  const Interrupt interrupt;
  const Stop stop = [&] { return interrupt.asked(); };
  SearchHow how = how_of(f);
  const SizesResult sizes = search_with_progress(how, f.shared, setup, stop, scored_by(setup));
  const PlanResult& result = *sizes.chosen().result;
  const Flags question = f.shared;
  if (sizes.chosen().tensor > 1) f.shared.tensor = std::to_string(sizes.chosen().tensor);
  if (!result.best) return nothing_fits(f, question, setup, sizes, size);
  const ShardingPlan& plan = result.best->plan;
  Programs programs = programs_of(plan, setup);
  const Prediction prediction = priced(predict(programs, setup.costs, setup.options), setup);
  const std::optional<Certificate> certificate = certificate_of(f, setup);
  const std::string none = setup.cluster.host ? "" : why_no_certificate(plan);
  print(stderr, caution(plan, setup.model, *setup.implementation));
  if (f.output) write_file(*f.output, to_json_text(file_of(plan, f.shared, setup)));
  const bool written = !f.emit || emit_plan(f, prediction, plan, setup);
  const int code = result.stopped ? kStoppedEarly : written && (!size || size->answer) ? kDone : kAnswerIsNo;
  std::vector<ComparedPlan> compared;
  if (!result.stopped)
    compared = compare_plans(f.questions.compare, f.shared, setup, result, [&](const Flags& flags) {
      FoundPlan found{flags, resolve_setup(flags, nullptr, Notes::silent), {}};
      found.result = search_with(flags, found.setup, stop, scored_by(found.setup));
      return found;
    });
  std::optional<CompiledAnswer> compiled;
  if (!result.stopped) compiled = compiled_answer(f.shared, setup, how, *result.best, stop);
  std::vector<FlagRemedy> remedies;
  Progress progress;
  if (result.best->score.verdict == Verdict::tight && !result.stopped)
    remedies = try_remedies(question, how, setup, *result.best, trials_said(progress));
  Json json;
  if (f.json != JsonForm::none || f.report.file) {
    json = result_json(result, &prediction, f, setup);
    if (!compared.empty()) json["compared"] = comparison_json(compared);
    if (!remedies.empty()) json["remedies"] = remedies_json(remedies);
    if (!how.target.empty()) json["target"] = how.target;
    if (compiled) json["compiled"] = compiled_json(*compiled);
    if (size) json["size_question"] = size_json(*size);
    if (sizes.sizes.size() > 1) json["tensor_sizes"] = sizes_json(sizes);
    if (certificate) json["certificate"] = certificate_json(*certificate, plan, prediction.step_time);
    if (!none.empty()) json["no_certificate"] = none;
  }
  const std::string searched =
      result.searched.empty() ? "" : searched_line(result) + target_line(how) + sizes_line(sizes);
  if (f.report.file)
    write_file(*f.report.file, plan_page(f.report.words, result, json_lines(json), searched, &prediction, setup));
  if (f.json != JsonForm::none) {
    print(stdout, printed(json_lines(json), f.json));
    return code;
  }
  std::FILE* out = f.emit && !f.emit_to ? stderr : stdout;
  if (size) print(out, size->text);
  print(out, verdict_headline(out, verdict_line(prediction)) + doubt_line(prediction) + cost_line(prediction));
  if (compiled) print(out, compiled_line(*compiled, *result.best));
  print(out, "Choice: " + plan_label(plan, &setup.model) + "\n" + basis(prediction, plan, setup.costs));
  print(out, searched + (certificate ? certificate_line(*certificate, plan, prediction.step_time) : ""));
  if (!none.empty()) print(out, "Certificate: " + none + ".\n");
  print(out, "\n" + rivals_table(result) + comparison_text(compared, *result.best, prediction.memory_limit));
  print(out, fitting(remedies, setup) + hint_without_retries(result) + next_command(f, setup));
  if (f.report.file) print(out, report_line(*f.report.file));
  return code;
}

}  // namespace

void add_plan(const Command& app) {
  auto flags = std::make_shared<PlanFlags>();
  const Command command = app.add("plan", "pick a plan: the verdict, its rivals and why they lost, the next command");
  add_setup_flags(command, flags->shared);
  add_plan_flags(command, flags->shared);
  add_questions(command.group("Questions"), flags->questions);
  command.group("Questions")
      .option("--search", flags->effort,
              "joint (default): from the best plan that treats all blocks alike on, each choice "
              "by itself | uniform: only such plans",
              {"HOW", efforts});
  const Command output = command.group("Output");
  command.group("Questions")
      .option("--target", flags->target,
              "only plans that this can say: " + join(emit_targets()) + "; default: that of --emit, else any",
              {"FORMAT", emit_targets});
  output.option("-o,--output", flags->output, "write the plan here", "FILE");
  output.option("--emit", flags->emit, "print a script or config: " + join(emit_formats()), {"FORMAT", emit_formats});
  output.option("--emit-to", flags->emit_to, "write what --emit makes here", "FILE");
  add_report_flag(output, flags->report, "write a page with the plan, its rivals and timelines here (HTML)");
  output.json(flags->json, "one JSON object with plan and prediction");
  command.explains_words();
  command.examples({"fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8k -o plan.json",
                    "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 64 --seq-len 8k "
                    "--global-batch-tokens 4M",
                    "fsdp-plan plan --model qwen2.5-7b --cluster dgx-h100 --seq-len 4k --offload --memory-limit 40GiB",
                    "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 8 --max seq-len -o longest.json",
                    "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8k --compare block:2",
                    "fsdp-plan plan --model llama3-70b --cluster dgx-h100,dgx-a100-80,p4d --gpus 64 --seq-len 8k "
                    "--price dgx-h100=2.5,dgx-a100-80=1.4,p4d=1.1",
                    "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --seq-len 8k --wrap titan --emit pytorch"});
  command.runs([flags] { return plan_command(*flags); });
}

}  // namespace fsdp::cli
