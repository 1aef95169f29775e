#include "cli/questions/size_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/predict.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "models/units.h"
#include "planner/search.h"
#include "planner/search/scorer.h"
#include "planner/search/turning_point.h"

namespace fsdp::cli {
namespace {

struct SizeRow {
  const char* name;
  const char* flag;
  Text Flags::*value;
  bool largest;  // --max; else --min
};
constexpr SizeRow kSizeRows[] = {
    {"seq-len", "--seq-len", &Flags::seq_len, true},
    {"micro-batch", "--micro-batch", &Flags::micro_batch, true},
    {"gpus", "--gpus", &Flags::gpus, false},
};

std::vector<std::string> names_of(bool largest) {
  std::vector<std::string> names;
  for (const SizeRow& row : kSizeRows)
    if (row.largest == largest) names.emplace_back(row.name);
  return names;
}
std::vector<std::string> largest_names() { return names_of(true); }
std::vector<std::string> fewest_names() { return names_of(false); }

const SizeRow& row_of(const SizeQuestion& q) {
  const std::string& name = q.max ? *q.max : *q.min;
  for (const SizeRow& row : kSizeRows)
    if (row.name == name && row.largest == q.max.has_value()) return row;
  throw InputError(q.max ? "--max" : "--min", "'" + printable(name) + "' is no size that can be searched",
                   suggestion(name, names_of(q.max.has_value())));
}

// Of a joint search for any plan that fits; the answer's own search goes on to 1,500.
constexpr std::int64_t kMostTries = 200;

// What a search with this size says: nothing where it is fine.
struct Outcome {
  bool fits = false;
  std::string why_not;
  Score score;  // of the best plan, or of the one that needs least
  std::optional<InputError> refused;
  // The first tight one, or else what needs least, is nearest to fitting.
  [[nodiscard]] auto distance() const {
    const bool tight = score.verdict == Verdict::tight;
    return std::tuple(!fits, refused.has_value(), !tight, tight ? Bytes(0) : score.peak_total);
  }
};

Outcome outcome_of(const PlanResult& result) {
  const Verdict verdict = result.best ? result.best->score.verdict : Verdict::does_not_fit;
  return {verdict == Verdict::fits, std::string(name(verdict)), (result.best ? *result.best : *result.least).score,
          std::nullopt};
}

class Asker {
 public:
  Asker(const Flags& flags, const SizeRow& row, const SearchHow& how) : flags_(flags), row_(row), how_(how) {}

  const Outcome& ask(std::int64_t size) {
    const auto known = outcomes_.find(size);
    if (known != outcomes_.end()) return known->second;
    progress_.say(fmt::format("plan: search {}, {} {}", outcomes_.size() + 1, row_.flag, size));
    return outcomes_[size] = search_with(size);
  }
  [[nodiscard]] int searches() const { return static_cast<int>(outcomes_.size()); }
  // Of the sizes that were asked, the first with a tight plan, or else the one that needs least. Throws what refused
  // all.
  [[nodiscard]] std::int64_t nearest() const {
    const auto best = std::min_element(outcomes_.begin(), outcomes_.end(), [](const auto& a, const auto& b) {
      return a.second.distance() < b.second.distance();
    });
    if (best->second.refused) throw *best->second.refused;
    return best->first;
  }
  [[nodiscard]] Flags flags_with(std::int64_t size) const {
    Flags flags = flags_;
    flags.*(row_.value) = std::to_string(size);
    return flags;
  }

 private:
  // Is there a plan that fits? Those that treat all blocks alike are tried first, and of the numbers of tensor ranks
  // the one with which something fitted last.
  Outcome search_with(std::int64_t size) {
    const Flags flags = flags_with(size);
    try {
      const Setup setup = resolve_setup(flags, nullptr, Notes::silent);
      const ScoreFunction score = remembering(scored_by(setup));
      std::vector<std::int64_t> tensors = tensor_tried(flags, setup, how_);
      std::stable_partition(tensors.begin(), tensors.end(), [&](std::int64_t t) { return t == tensor_that_fits_; });
      std::optional<Outcome> nearest;
      for (const Effort effort : {Effort::uniform, Effort::joint}) {
        if (effort == Effort::joint && how_.effort == Effort::uniform) break;
        for (const std::int64_t tensor : tensors) {
          Outcome now = search_with(flags, setup, score, effort, tensor);
          if (!nearest || now.distance() < nearest->distance()) nearest = std::move(now);
          if (!nearest->fits) continue;
          tensor_that_fits_ = tensor;
          return *nearest;
        }
      }
      return *nearest;
    } catch (const InputError& e) {
      return refused(e, flags);
    }
  }

  [[nodiscard]] Outcome search_with(const Flags& flags, const Setup& setup, const ScoreFunction& score, Effort effort,
                                    std::int64_t tensor) const {
    try {
      SearchOptions options = options_of(flags, setup, {effort, how_.splits, how_.target, how_.strict}, tensor);
      options.any_that_fits = true;
      options.most_simulations = kMostTries;
      return outcome_of(search(setup.model, setup.cluster, *setup.implementation, options, score));
    } catch (const InputError& e) {
      return refused(e, flags);
    }
  }

  [[nodiscard]] static Outcome refused(const InputError& e, const Flags& flags) {
    const InputError named = naming_given_flags(e, flags);
    return {false, named.problem(), {}, named};
  }

  const Flags& flags_;
  const SizeRow& row_;
  const SearchHow how_;
  std::int64_t tensor_that_fits_ = 1;
  std::map<std::int64_t, Outcome> outcomes_;
  Progress progress_;
};

std::vector<std::int64_t> steps(std::int64_t step, std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = step; size <= most; size += step) sizes.push_back(size);
  return sizes;
}

constexpr std::int64_t kMostGpus = 65'536;
constexpr std::int64_t kLongStep = 1024, kShortStep = 64;  // tokens
constexpr std::int64_t kMostTokens = std::int64_t{1} << 50;

std::int64_t tokens_of_step(const Flags& flags) {  // 0: not given
  return flags.global_batch_tokens ? parse_tokens(*flags.global_batch_tokens, {"global_batch_tokens", 1, kMostTokens})
                                   : 0;
}
std::int64_t sequences_of_step(const Flags& flags, const Setup& setup) {
  if (flags.global_batch) return parse_count(*flags.global_batch, "--global-batch", 1, kMostTokens);
  return tokens_of_step(flags) / setup.seq_len;
}

// Can the sequences of a step be divided over the GPUs into equal micro-batches? 0: not given, anything goes.
bool makes_step(std::int64_t sequences, std::int64_t gpus, std::int64_t micro, std::int64_t accum) {
  if (sequences == 0) return true;
  if (micro > 0 && accum > 0) return sequences == gpus * micro * accum;
  return sequences % (gpus * std::max<std::int64_t>(1, std::max(micro, accum))) == 0;
}

// Ascending, those that divide what the flags say of a step.
std::vector<std::int64_t> sizes_of(const SizeRow& row, const Flags& flags, Asker& asker) {
  std::vector<std::int64_t> sizes;
  if (row.value == &Flags::seq_len) {
    const std::int64_t tokens = tokens_of_step(flags);
    sizes = asker.ask(kLongStep).fits ? steps(kLongStep, kSeqLen.most) : steps(kShortStep, kLongStep);
    std::erase_if(sizes, [&](std::int64_t size) { return tokens % size != 0; });
    return sizes;
  }
  const Setup setup = resolve_setup(flags, nullptr, Notes::silent);
  const std::int64_t sequences = sequences_of_step(flags, setup);
  const std::int64_t micro = parse_optional_count(flags.micro_batch, kMicroBatch).value_or(0),
                     accum = parse_optional_count(flags.grad_accum, kGradAccum).value_or(0);
  if (row.value == &Flags::micro_batch) {
    sizes = steps(1, kMicroBatch.most);
    std::erase_if(sizes, [&](std::int64_t size) { return !makes_step(sequences, setup.cluster.gpus, size, accum); });
    return sizes;
  }
  // Nodes come whole.
  const std::int64_t node = setup.cluster.gpus_per_node,
                     replicas = parse_optional_count(flags.replicate, kReplicate).value_or(1);
  sizes = steps(1, node - 1);
  for (const std::int64_t gpus : steps(node, kMostGpus)) sizes.push_back(gpus);
  std::erase_if(sizes,
                [&](std::int64_t size) { return size % replicas != 0 || !makes_step(sequences, size, micro, accum); });
  return sizes;
}

std::string described(const SizeRow& row, const SizeAnswer& a, std::int64_t step) {
  const std::string searches = fmt::format("{} search{}{}", a.searches, a.searches == 1 ? "" : "es",
                                           row.value == &Flags::seq_len ? fmt::format(", by steps of {}", step) : "");
  if (!a.answer) return fmt::format("No {} fits; {}; nearest: {}.\n", row.flag, searches, *(a.flags.*row.value));
  std::string text = fmt::format("{}: {} {} fits", row.largest ? "Largest" : "Fewest", row.flag, *a.answer);
  if (a.next) text += fmt::format(", {} does not ({})", *a.next, a.why_not_next);
  return text + fmt::format("; {}.\n", searches);
}

}  // namespace

void add_size_question(const Command& command, SizeQuestion& q) {
  command.option("--max", q.max, "the largest with which a plan fits, and that plan: " + join(largest_names()),
                 {"SIZE", largest_names});
  command.option("--min", q.min, "the fewest with which a plan fits, and that plan: " + join(fewest_names()),
                 {"SIZE", fewest_names});
}

std::optional<SizeAnswer> answer_size_question(const SizeQuestion& q, const Flags& asked, const SearchHow& how) {
  if (!q.max && !q.min) return std::nullopt;
  if (q.max && q.min) throw InputError("--min", "and --max are two questions", "ask one of them");
  const SizeRow& row = row_of(q);
  if (asked.*(row.value))
    throw InputError(row.flag, fmt::format("is given, and {} asks for it", q.max ? "--max" : "--min"),
                     "leave out one of the two");
  Flags flags = asked;
  if (row.value == &Flags::micro_batch && !flags.tensor) flags.tensor = "1";  // else it is that of a tensor group
  Asker asker(flags, row, how);
  const std::vector<std::int64_t> sizes = sizes_of(row, flags, asker);
  if (sizes.empty() && !asker.ask(1).fits) (void)asker.nearest();  // throws what the batch's rules say of it
  if (sizes.empty()) throw InputError(row.flag, "no size divides the batch of a step", "give another batch");
  const bool first_fits = asker.ask(sizes.front()).fits;
  std::optional<std::size_t> turn;
  if (first_fits == row.largest)  // else the first is the answer, or none is
    turn = turning_point(sizes, [&](std::size_t i) { return asker.ask(sizes[i]).fits; });
  SizeAnswer a;
  a.flag = row.flag;
  if (turn) a.next = sizes[*turn + (row.largest ? 1 : 0)];
  if (first_fits) a.answer = !row.largest ? sizes.front() : turn ? sizes[*turn] : sizes.back();
  else if (!row.largest && turn) a.answer = sizes[*turn + 1];
  const std::int64_t shown = a.answer ? *a.answer : asker.nearest();
  if (a.next) a.why_not_next = asker.ask(*a.next).why_not;
  a.searches = asker.searches();
  a.flags = asker.flags_with(shown);
  a.text = described(row, a, sizes.front());
  return a;
}

nlohmann::ordered_json size_json(const SizeAnswer& a) {
  nlohmann::ordered_json json = {{"size", a.flag.substr(2)}, {"answer", nullptr}, {"next", nullptr}};
  if (a.answer) json["answer"] = *a.answer;
  if (a.next) json["next"] = *a.next;
  json["why_not_next"] = a.why_not_next;
  json["searches"] = a.searches;
  return json;
}

}  // namespace fsdp::cli
