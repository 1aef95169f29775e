// plan over several clusters, numbers of GPUs and sequence lengths: the best plan of each combination, in one table.
//
//   const Sweep s = sweep(flags, shared, find, stop);    // rows best first
//   s.rows.front().found()->label, s.rows.front().prediction->cost
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/questions/found_plan.h"
#include "simulator/records/prediction.h"

namespace fsdp::cli {

struct SweepFlags {
  Text sort, csv;
};
void add_sweep(const Command&, SweepFlags&);

// Do --cluster, --gpus or --seq-len list several values, or do flags ask for a table?
[[nodiscard]] bool asks_for_sweep(const SweepFlags&, const Flags&);

enum class SortBy : std::uint8_t { cost, tokens_per_s, tokens_per_s_per_gpu, given };
inline constexpr int kSortBys = static_cast<int>(SortBy::given) + 1;
[[nodiscard]] std::string_view name(SortBy);  // "cost", "tokens-per-s", "tokens-per-s-per-gpu", "given"

struct SweepRow {
  Flags flags;  // of this combination
  std::string cluster;
  std::int64_t gpus = 0, seq_len = 0;    // 0: refused before they were known
  std::optional<Candidate> best;         // none: nothing fits
  std::optional<Prediction> prediction;  // of the best, with its cost, without its timeline
  std::optional<PlanFile> plan;          // the best as its file has it
  Bytes limit;
  // Where there is no best: what is missing, and of what plan; or the rule that the combination breaks.
  Bytes missing;
  std::string least, why_none;
  bool refused = false;
  bool stopped = false;  // its search was: there may be better

  [[nodiscard]] double tokens_per_s_per_gpu() const;
  [[nodiscard]] std::string text() const;  // "64 GPUs of dgx-h100, 8,192 tokens per sequence"
};

struct Sweep {
  std::vector<SweepRow> rows;  // plans that fit before tight ones before what does not fit; by `sorted` within these
  SortBy sorted = SortBy::given;
  std::int64_t asked = 0;  // combinations; more than rows where the user ended it

  [[nodiscard]] const SweepRow* first() const;  // with a plan; null: nothing fits
};

// Searches them one after the other. Refuses more combinations than anyone waits for, values that are listed twice,
// and prices that do not say which cluster they are of, before any search. A combination that breaks a rule is a row
// that says so; where all do, the first one's error is thrown.
[[nodiscard]] Sweep sweep(const SweepFlags&, const Flags&, const FindPlan&, const Stop&);

// The answer in a sentence, and the table.
[[nodiscard]] std::string sweep_answer(const Sweep&);
[[nodiscard]] std::string sweep_table(const Sweep&);
[[nodiscard]] nlohmann::ordered_json sweep_json(const Sweep&);
[[nodiscard]] std::string sweep_csv(const Sweep&);

}  // namespace fsdp::cli
