#include "cli/questions/questions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/brief_json.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/predict.h"
#include "cli/questions/interrupt.h"
#include "cli/questions/pareto.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"

namespace fsdp::cli {
namespace {

// The best plan of every combination.
int answer_sweep(const Questions& q, const Flags& flags, const AnswerTo& to, const SearchHow& how,
                 const SearchWith& search) {
  for (const auto& [flag, given] : {std::pair{"--emit", &to.emit}, {"--report", &to.report}})
    if (*given)
      throw InputError(flag, "is of one plan, and this is a table of several",
                       "give one cluster, number of GPUs and sequence length");
  const bool csv_printed = q.sweep.csv == "-";
  if (csv_printed && to.json != JsonForm::none)
    throw InputError("--csv", "- and --json both print on standard output", "give --csv FILE");
  check_output("-o", to.output, {flags.model, flags.cluster, flags.costs});
  if (!csv_printed) check_output("--csv", q.sweep.csv, {flags.model, flags.cluster, flags.costs, to.output});
  const Interrupt interrupt;
  const Stop stop = [&] { return interrupt.asked(); };
  const auto find = [&](const Flags& of_row) {
    const std::optional<SizeAnswer> size = answer_size_question(q.size, of_row, how);
    FoundPlan found{size ? size->flags : of_row, {}, {}};
    found.setup = resolve_setup(found.flags, nullptr, Notes::silent);
    found.result = search(found.flags, found.setup, stop, scored_by(found.setup));
    return found;
  };
  const Sweep s = sweep(q.sweep, flags, find, stop);
  if (q.sweep.csv && !csv_printed) write_file(*q.sweep.csv, sweep_csv(s));
  const SweepRow* const first = s.first();
  if (first && to.output) write_file(*to.output, to_json_text(*first->plan));
  if (csv_printed) print(stdout, sweep_csv(s));
  if (to.json != JsonForm::none) {
    print(stdout, printed(json_lines(sweep_json(s)), to.json));
  } else {
    std::FILE* const out = csv_printed ? stderr : stdout;
    print(out, bold(out, sweep_answer(s)) + "\n" + sweep_table(s));
    if (first && to.output) print(out, fmt::format("\n{} holds the plan for {}.\n", *to.output, first->text()));
    else if (first)
      print(out, fmt::format("\nnext: `fsdp-plan plan {}{} -o plan.json`\n", all_given(first->flags),
                             to.effort ? " --search " + *to.effort : ""));
  }
  return stop() ? kStoppedEarly : first ? kDone : kAnswerIsNo;
}

// The best plan at less and less memory.
int answer_pareto(const Questions& q, const Flags& flags, const AnswerTo& to, const SearchWith& search) {
  for (const auto& [flag, given] : {std::pair{"--emit", &to.emit},
                                    {"--report", &to.report},
                                    {"-o", &to.output},
                                    {"--max", &q.size.max},
                                    {"--min", &q.size.min}})
    if (*given) throw InputError(flag, "is of one plan, and --pareto answers with several", "leave out one of the two");
  if (asks_for_sweep(q.sweep, flags))
    throw InputError("--pareto", "is a question about one cluster, number of GPUs and sequence length",
                     "leave out --csv and --sort, and give one of each");
  const Setup setup = resolve_setup(flags);
  const Interrupt interrupt;
  const Stop stop = [&] { return interrupt.asked(); };
  const ParetoAnswer answer = pareto_answer(*q.pareto, setup, [&](const Setup& limited, const ScoreFunction& score) {
    return search(flags, limited, stop, score);
  });
  if (to.json != JsonForm::none) print(stdout, printed(json_lines(pareto_json(answer)), to.json));
  else print(stdout, bold(stdout, pareto_headline(answer)) + pareto_table(answer));
  return answer.front.stopped ? kStoppedEarly : answer.fitting() ? kDone : kAnswerIsNo;
}

}  // namespace

void add_questions(const Command& command, Questions& q) {
  add_size_question(command, q.size);
  add_sweep(command, q.sweep);
  command.option(
      "--compare", q.compare,
      "why not this one: a plan's file, FLAG=VALUE (micro-batch=4), a wrap policy (block:2) or naive; may be "
      "repeated",
      "PLAN");
  command.option("--pareto", q.pareto,
                 "time against memory: the best plans at limits that descend by this size; default: an eighth of the "
                 "limit",
                 {"SIZE", nullptr, "auto"});
}

std::optional<int> answer_with_table(const Questions& q, const Flags& flags, const AnswerTo& to, const SearchHow& how,
                                     const SearchWith& search) {
  if (!q.compare.empty() && (q.pareto || asks_for_sweep(q.sweep, flags)))
    throw InputError("--compare", "is of one plan, and this is a table of several",
                     "give one cluster, number of GPUs and sequence length, and leave out --pareto, --csv and --sort");
  if (q.pareto) return answer_pareto(q, flags, to, search);
  if (asks_for_sweep(q.sweep, flags)) return answer_sweep(q, flags, to, how, search);
  return std::nullopt;
}

}  // namespace fsdp::cli
