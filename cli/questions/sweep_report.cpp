// A sweep as a sentence and a table, as JSON, and as comma-separated values.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/questions/sweep.h"
#include "cli/report/report.h"
#include "cli/terminal/terminal.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string verdict_of(const SweepRow& row) {
  if (row.refused) return "refused";
  return std::string(name(row.best ? row.best->score.verdict : Verdict::does_not_fit));
}

std::string whole(double x) { return with_commas(std::llround(x)); }

// In what the rows are sorted by: "812 USD per 10^9 tokens".
std::string worth_text(const SweepRow& row, SortBy by) {
  const Prediction& p = *row.prediction;
  if (by == SortBy::cost && p.cost)
    return money(p.cost->per_billion_tokens, p.cost->price.currency) + " per 10^9 tokens";
  if (by == SortBy::tokens_per_s_per_gpu) return whole(row.tokens_per_s_per_gpu()) + " tokens/s per GPU";
  return whole(p.tokens_per_s) + " tokens/s";
}

// What the next one is worse by: "13.1 % less than 64 GPUs of p4d, 8,192 tokens per sequence".
std::string ahead(const SweepRow& best, const SweepRow& next, SortBy by) {
  if (by == SortBy::cost && best.prediction->cost && next.prediction->cost)
    return percent(1 - best.prediction->cost->per_billion_tokens / next.prediction->cost->per_billion_tokens) +
           " less than " + next.text();
  const bool per_gpu = by == SortBy::tokens_per_s_per_gpu;
  const double ratio = per_gpu ? best.tokens_per_s_per_gpu() / next.tokens_per_s_per_gpu()
                               : best.prediction->tokens_per_s / next.prediction->tokens_per_s;
  return percent(ratio - 1) + " more than " + next.text();
}

std::string last_column(const SweepRow& row) {
  if (row.refused) return row.why_none;
  const std::string note = row.stopped ? " (its search was stopped)" : "";
  if (row.best) return row.best->label + note;
  if (row.missing > Bytes(0)) return fmt::format("{} are missing for {}{}", human(row.missing), row.least, note);
  return row.why_none + note;
}

std::string csv_word(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string word = "\"";
  for (const char c : text) word += c == '"' ? std::string("\"\"") : std::string(1, c);
  return word + "\"";
}

}  // namespace

std::string sweep_answer(const Sweep& s) {
  const auto done = static_cast<std::int64_t>(s.rows.size());
  const std::string stopped =
      done < s.asked || (!s.rows.empty() && s.rows.back().stopped)
          ? fmt::format("Stopped by SIGINT: {} of {} combinations were searched.\n", done, s.asked)
          : "";
  if (s.first() == nullptr) return stopped + fmt::format("Nothing fits in any of {} combinations.\n", done);
  if (s.sorted == SortBy::given) return stopped;
  const SweepRow& best = s.rows.front();
  std::string text =
      fmt::format("{}: {}{}: {}", s.sorted == SortBy::cost ? "Cheapest" : "Fastest", best.text(),
                  best.best->score.verdict == Verdict::tight ? " (tight)" : "", worth_text(best, s.sorted));
  if (s.rows.size() > 1 && s.rows[1].best) text += ", " + ahead(best, s.rows[1], s.sorted);
  return stopped + text + ".\n";
}

std::string sweep_table(const Sweep& s) {
  bool priced = false;
  for (const SweepRow& row : s.rows) priced = priced || (row.prediction && row.prediction->cost);
  std::vector<std::string> header = {"cluster",   ">GPUs",    ">tokens", "verdict", ">step",
                                     ">tokens/s", ">per GPU", ">MFU",    ">peak",   ">limit"};
  if (priced) header.push_back(">per 10^9 tokens");
  header.push_back("plan, or what is missing");
  std::vector<std::vector<std::string>> rows;
  for (const SweepRow& row : s.rows) {
    std::vector<std::string> cells = {row.cluster, row.gpus > 0 ? with_commas(row.gpus) : "-",
                                      row.seq_len > 0 ? with_commas(row.seq_len) : "-", verdict_of(row)};
    if (row.prediction) {
      const Prediction& p = *row.prediction;
      cells.insert(cells.end(), {human(p.step_time), whole(p.tokens_per_s), whole(row.tokens_per_s_per_gpu()),
                                 p.mfu > 0 ? percent(p.mfu) : "-", human(p.peak_total), human(row.limit)});
      if (priced) cells.push_back(p.cost ? money(p.cost->per_billion_tokens, p.cost->price.currency) : "-");
    } else {
      cells.insert(cells.end(), {"-", "-", "-", "-", row.refused ? "-" : human(row.limit + row.missing),
                                 row.refused ? "-" : human(row.limit)});
      if (priced) cells.push_back("-");
    }
    cells.push_back(last_column(row));
    rows.push_back(std::move(cells));
  }
  return fitting_table(header, rows);
}

nlohmann::ordered_json sweep_json(const Sweep& s) {
  Json rows = Json::array();
  for (const SweepRow& row : s.rows) {
    Json r = {{"cluster", row.cluster}, {"gpus", row.gpus}, {"seq_len", row.seq_len}, {"verdict", verdict_of(row)}};
    if (row.prediction) {
      const Prediction& p = *row.prediction;
      r["step_time_s"] = p.step_time.count();
      r["tokens_per_s"] = p.tokens_per_s;
      r["tokens_per_s_per_gpu"] = row.tokens_per_s_per_gpu();
      r["mfu"] = p.mfu;
      r["peak_total_bytes"] = p.peak_total.count();
      r["memory_limit_bytes"] = row.limit.count();
      if (p.cost)
        r["cost"] = {{"price_per_gpu_hour", p.cost->price.per_gpu_hour},
                     {"currency", p.cost->price.currency},
                     {"per_day", p.cost->per_day},
                     {"per_1e9_tokens", p.cost->per_billion_tokens}};
      r["label"] = row.best->label;
      r["plan"] = Json::parse(to_json_text(*row.plan));
    } else {
      if (!row.refused) {
        r["memory_limit_bytes"] = row.limit.count();
        r["missing_bytes"] = row.missing.count();
      }
      r["why_none"] = row.why_none;
    }
    r["stopped"] = row.stopped;
    rows.push_back(std::move(r));
  }
  return {{"schema", "fsdp-plan/sweep/1"},
          {"sorted_by", std::string(name(s.sorted))},
          {"asked", s.asked},
          {"rows", std::move(rows)}};
}

std::string sweep_csv(const Sweep& s) {
  std::string text =
      "cluster,gpus,seq_len,verdict,step_time_s,tokens_per_s,tokens_per_s_per_gpu,mfu,peak_total_bytes,"
      "memory_limit_bytes,cost_per_1e9_tokens,currency,plan,why_none\n";
  for (const SweepRow& row : s.rows) {
    text += fmt::format("{},{},{},{},", csv_word(row.cluster), row.gpus, row.seq_len, verdict_of(row));
    if (row.prediction) {
      const Prediction& p = *row.prediction;
      text += fmt::format("{},{},{},{},{},{},", p.step_time.count(), p.tokens_per_s, row.tokens_per_s_per_gpu(), p.mfu,
                          p.peak_total.count(), row.limit.count());
      text += p.cost ? fmt::format("{},{},", p.cost->per_billion_tokens, csv_word(p.cost->price.currency)) : ",,";
      text += csv_word(row.best->label) + ",\n";
    } else if (row.refused) {
      text += ",,,,,,,,," + csv_word(row.why_none) + "\n";
    } else {
      text += fmt::format(",,,,{},{},,,,{}\n", (row.limit + row.missing).count(), row.limit.count(),
                          csv_word(row.why_none));
    }
  }
  return text;
}

}  // namespace fsdp::cli
