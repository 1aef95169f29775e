// The questions about plans that have an answer of their own: a table of several plans.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/questions/found_plan.h"
#include "cli/questions/search_how.h"
#include "cli/questions/size_question.h"
#include "cli/questions/sweep.h"
#include "planner/search.h"

namespace fsdp::cli {

struct Questions {
  SizeQuestion size;  // --max, --min
  SweepFlags sweep;
  Text pareto;
  std::vector<std::string> compare;
};
void add_questions(const Command&, Questions&);

// Where an answer goes, of the flags of `plan`.
struct AnswerTo {
  Text output, emit, report;
  JsonForm json = JsonForm::none;
  Text effort;  // of --search, for the next command
};

// The search of `plan`: for these flags, under the setup's memory limit, by this score.
using SearchWith = std::function<PlanResult(const Flags&, const Setup&, const Stop&, const ScoreFunction&)>;

// Answers with a table where that was asked for, and returns the exit code; nullopt: the question is about one plan.
// Throws InputError where the flags contradict each other.
[[nodiscard]] std::optional<int> answer_with_table(const Questions&, const Flags&, const AnswerTo&, const SearchHow&,
                                                   const SearchWith&);

}  // namespace fsdp::cli
