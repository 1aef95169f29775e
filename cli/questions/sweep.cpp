#include "cli/questions/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "cli/field_flags.h"
#include "cli/named.h"
#include "cli/predict.h"
#include "cli/terminal/terminal.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

constexpr std::int64_t kMostCombinations = 1000;  // an hour and more of searching

// A flag whose value may be a list.
struct ListFlag {
  const char* name;
  Text Flags::*value;
};
constexpr ListFlag kLists[] = {
    {"--cluster", &Flags::cluster}, {"--gpus", &Flags::gpus}, {"--seq-len", &Flags::seq_len}};

bool is_list(const ListFlag& flag, const Flags& flags) {
  const Text& text = flags.*(flag.value);
  if (!text || text->find(',') == std::string::npos) return false;
  std::error_code ignored;
  return flag.value != &Flags::cluster || !std::filesystem::exists(*text, ignored);  // a file with such a name
}

// What a list says, each value once; {nullopt} for a flag that is not given.
std::vector<Text> values_of(const ListFlag& flag, const Flags& flags) {
  const Text& text = flags.*(flag.value);
  if (!is_list(flag, flags)) return {text};
  std::vector<Text> values;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text->find(',', begin);
    values.emplace_back(text->substr(begin, end == std::string::npos ? end : end - begin));
    if (values.back()->empty())
      throw InputError(flag.name, "has an empty value between its commas", "separate values by one comma each");
  }
  return values;
}

template <class Value, class Parse>
void refuse_twice(const ListFlag& flag, const std::vector<Text>& values, const Parse& parse) {
  std::set<Value> seen;
  for (const Text& value : values)
    if (value && !seen.insert(parse(*value)).second)
      throw InputError(flag.name, "lists '" + printable(*value) + "' twice", "give each value once");
}

// Every number is one, and every cluster is known; what their files leave out is said once.
void check_values(const std::vector<Text>& clusters, const std::vector<Text>& gpus, const std::vector<Text>& lengths) {
  refuse_twice<std::int64_t>(kLists[1], gpus, [](const std::string& t) { return parse_count(t, kGpus); });
  refuse_twice<std::int64_t>(kLists[2], lengths, [](const std::string& t) { return parse_tokens(t, kSeqLen); });
  refuse_twice<std::string>(kLists[0], clusters, [](const std::string& t) { return t; });
  for (const Text& cluster : clusters)
    if (cluster) (void)named_cluster(*cluster);
}

// The flags of one cluster, with the price that is its own.
Flags of_cluster(Flags flags, const Text& cluster) {
  flags.cluster = cluster;
  if (flags.price) flags.price = text_of(named_price(flags, named_cluster(cluster.value_or(""), 0, Notes::silent)));
  return flags;
}

// Each price is of one of the clusters, and each cluster has one.
void check_prices(const Flags& flags, const std::vector<Text>& clusters) {
  if (!flags.price) return;
  std::set<std::string> known;
  for (const Text& cluster : clusters) {
    (void)of_cluster(flags, cluster);
    known.insert({named_cluster(cluster.value_or(""), 0, Notes::silent).name, cluster.value_or("")});
  }
  std::set<std::string> seen;
  for (const ListedPrice& listed : listed_prices(*flags.price)) {
    if (listed.cluster.empty() && clusters.size() > 1)
      throw InputError("--price", fmt::format("is one price, but there are {} clusters", clusters.size()),
                       fmt::format("say which is whose, such as --price {}={}", *clusters[0], listed.price));
    if (!listed.cluster.empty() && !known.contains(listed.cluster))
      throw InputError("--price", "'" + printable(listed.cluster) + "' is none of the clusters",
                       suggestion(listed.cluster, {known.begin(), known.end()}));
    if (!seen.insert(listed.cluster).second)
      throw InputError("--price", "has two prices for '" + printable(listed.cluster) + "'", "give one of them");
  }
}

std::vector<std::string> sort_words() {
  std::vector<std::string> words;
  for (int i = 0; i < kSortBys; ++i) words.emplace_back(name(static_cast<SortBy>(i)));
  return words;
}

// By cost where every row has one, else by speed.
SortBy sort_of(const SweepFlags& f, const std::vector<SweepRow>& rows) {
  std::set<std::string> currencies;
  bool all = true, any = false;
  for (const SweepRow& row : rows) {
    if (!row.prediction) continue;
    any = any || row.prediction->cost;
    all = all && row.prediction->cost;
    if (row.prediction->cost) currencies.insert(row.prediction->cost->price.currency);
  }
  if (!f.sort) return any && all && currencies.size() == 1 ? SortBy::cost : SortBy::tokens_per_s;
  const auto words = sort_words();
  return static_cast<SortBy>(std::find(words.begin(), words.end(), *f.sort) - words.begin());
}

void check_sort(const SweepFlags& f, const Flags& flags, const std::vector<Text>& clusters) {
  if (!f.sort) return;
  const auto words = sort_words();
  if (std::find(words.begin(), words.end(), *f.sort) == words.end())
    throw InputError("--sort", "'" + printable(*f.sort) + "' is nothing to sort by", suggestion(*f.sort, words));
  if (*f.sort != name(SortBy::cost)) return;
  std::set<std::string> currencies;
  for (const Text& cluster : clusters) {
    const ClusterSpec spec = named_cluster(cluster.value_or(""), 0, Notes::silent);
    if (!flags.price && !spec.price)
      throw InputError("--sort", "cost: no price is known of " + spec.name,
                       "give --price " + spec.name + "=2.1, or the field price in its file");
    const Flags own = of_cluster(flags, cluster);
    currencies.insert(own.price ? parse_price(*own.price, "--price").currency : spec.price->currency);
  }
  if (currencies.size() > 1)
    throw InputError("--sort",
                     fmt::format("cost: the prices are in several currencies ({})", fmt::join(currencies, ", ")),
                     "give all of them in one");
}

int rank(const SweepRow& row) {
  return row.best ? static_cast<int>(row.best->score.verdict) : row.refused ? kVerdicts + 1 : kVerdicts;
}

// Less is better.
double worth(const SweepRow& row, SortBy by) {
  if (!row.prediction) return static_cast<double>(row.missing.count());
  const Prediction& p = *row.prediction;
  if (by == SortBy::cost) return p.cost ? p.cost->per_billion_tokens : 1e300;
  return -(by == SortBy::tokens_per_s ? p.tokens_per_s : row.tokens_per_s_per_gpu());
}

void search_row(SweepRow& row, const FindPlan& find) {
  const FoundPlan found = find(row.flags);
  row.flags = found.flags;
  row.gpus = found.setup.cluster.gpus;
  row.seq_len = found.setup.seq_len;
  row.limit = *found.setup.options.memory_limit;
  row.stopped = found.result.stopped;
  if (!found.result.best) {
    row.missing = found.result.least->score.peak_total - row.limit;
    row.least = found.result.least->label;
    row.why_none = found.result.why_none;
    return;
  }
  row.best = found.result.best;
  PredictOptions options = found.setup.options;
  options.keep_timeline = false;
  Programs programs = programs_of(row.best->plan, found.setup);
  row.prediction = priced(predict(programs, found.setup.costs, options), found.setup);
  row.plan = file_of(row.best->plan, row.flags, found.setup);
}

std::string described(const Flags& flags) {
  return flags.cluster.value_or("") + (flags.gpus ? ", " + *flags.gpus + " GPUs" : "") +
         (flags.seq_len ? ", " + *flags.seq_len + " tokens" : "");
}

}  // namespace

std::string_view name(SortBy by) {
  switch (by) {
    case SortBy::cost: return "cost";
    case SortBy::tokens_per_s: return "tokens-per-s";
    case SortBy::tokens_per_s_per_gpu: return "tokens-per-s-per-gpu";
    case SortBy::given: return "given";
  }
  return {};
}

double SweepRow::tokens_per_s_per_gpu() const {
  return prediction ? prediction->tokens_per_s / static_cast<double>(std::max<std::int64_t>(1, gpus)) : 0;
}

std::string SweepRow::text() const {
  return fmt::format("{} GPU{} of {}, {} tokens per sequence", with_commas(gpus), gpus == 1 ? "" : "s", cluster,
                     with_commas(seq_len));
}

const SweepRow* Sweep::first() const {
  const auto row = std::find_if(rows.begin(), rows.end(), [](const SweepRow& r) { return r.best.has_value(); });
  return row == rows.end() ? nullptr : &*row;
}

void add_sweep(const Command& command, SweepFlags& f) {
  command.option("--sort", f.sort,
                 "of several clusters, GPUs or sequences: cost (default where all have a price) | tokens-per-s "
                 "(default) | tokens-per-s-per-gpu | given",
                 {"BY", sort_words});
  command.option("--csv", f.csv, "write a table of the plans here; -: to standard output", "FILE");
}

bool asks_for_sweep(const SweepFlags& f, const Flags& flags) {
  return f.sort || f.csv ||
         std::any_of(std::begin(kLists), std::end(kLists), [&](const ListFlag& list) { return is_list(list, flags); });
}

Sweep sweep(const SweepFlags& f, const Flags& flags, const FindPlan& find, const Stop& stop) {
  const std::vector<Text> clusters = values_of(kLists[0], flags), gpus = values_of(kLists[1], flags),
                          lengths = values_of(kLists[2], flags);
  Sweep s;
  s.asked = static_cast<std::int64_t>(clusters.size() * gpus.size() * lengths.size());
  if (s.asked > kMostCombinations)
    throw InputError("--cluster",
                     fmt::format("x --gpus x --seq-len are {} combinations, more than {}", with_commas(s.asked),
                                 with_commas(kMostCombinations)),
                     "list fewer values: each combination is searched for some seconds");
  if (!flags.cluster)
    throw InputError("--cluster", "is missing", "give a catalog name (see `fsdp-plan show cluster`) or a cluster file");
  check_values(clusters, gpus, lengths);
  check_prices(flags, clusters);
  check_sort(f, flags, clusters);
  std::optional<InputError> first_refused;
  Progress progress;
  for (const Text& cluster : clusters)
    for (const Text& count : gpus)
      for (const Text& length : lengths) {
        if (stop()) break;
        SweepRow row;
        row.flags = of_cluster(flags, cluster);
        row.flags.gpus = count, row.flags.seq_len = length;
        row.cluster = cluster.value_or("");
        progress.say(fmt::format("plan: {} of {}: {}", s.rows.size() + 1, s.asked, described(row.flags)));
        try {
          search_row(row, find);
        } catch (const InputError& e) {
          if (!first_refused) first_refused = e;
          row.refused = true;
          row.gpus = count ? parse_count(*count, kGpus) : 0;
          row.seq_len = length ? parse_tokens(*length, kSeqLen) : 0;
          row.why_none = naming_flags(e).what();
        }
        s.rows.push_back(std::move(row));
      }
  if (first_refused && std::all_of(s.rows.begin(), s.rows.end(), [](const SweepRow& r) { return r.refused; }))
    throw *first_refused;
  s.sorted = sort_of(f, s.rows);
  if (s.sorted != SortBy::given)
    std::stable_sort(s.rows.begin(), s.rows.end(), [&](const SweepRow& a, const SweepRow& b) {
      return std::tuple(rank(a), worth(a, s.sorted)) < std::tuple(rank(b), worth(b, s.sorted));
    });
  return s;
}

}  // namespace fsdp::cli
