#include "models/price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr double kMostPrice = 1e9;
constexpr std::size_t kLongestCurrency = 8;
constexpr const char* kPriceForm = "give the price of one GPU for one hour, such as 2.1 or \"2.1 USD\"";

// A single letter is more likely a factor (k, M) than a currency.
bool is_currency(const std::string& word) {
  return word.size() != 1 && word.size() <= kLongestCurrency &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalpha(c) != 0 && c < 128; });
}

}  // namespace

Price checked_price(double per_gpu_hour, const Origin& where) {
  if (!std::isfinite(per_gpu_hour) || !(per_gpu_hour > 0) || per_gpu_hour > kMostPrice)
    throw InputError(where, "is not between 0 and 1,000,000,000", kPriceForm);
  return {per_gpu_hour, {}};
}

Price parse_price(const std::string& text, const Origin& where) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, problem] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (problem != std::errc()) throw InputError(where, "'" + printable(text) + "' is no price", kPriceForm);
  std::string currency(after, end);
  if (!currency.empty() && currency[0] == ' ') currency.erase(0, 1);
  if (!is_currency(currency) || (currency.empty() && after != end))
    throw InputError(where, "'" + printable(text) + "' is no price", kPriceForm);
  Price price = checked_price(value, where);
  price.currency = currency;
  return price;
}

std::string money(double amount, const std::string& currency) {
  const std::string number =
      amount >= 999.5 && amount < 1e15 ? with_commas(std::llround(amount)) : fmt::format("{:.3g}", amount);
  return currency.empty() ? number : number + " " + currency;
}

std::string text_of(const Price& p) {
  return p.currency.empty() ? fmt::format("{}", p.per_gpu_hour) : fmt::format("{} {}", p.per_gpu_hour, p.currency);
}

TrainingCost training_cost(const Price& price, std::int64_t gpus, double tokens_per_s) {
  if (!(tokens_per_s > 0) || !std::isfinite(tokens_per_s))
    throw InputError(setting("price"), "has no answer where no tokens are trained per second", "leave it out");
  const double per_hour = price.per_gpu_hour * static_cast<double>(gpus);
  return {price, gpus, 24 * per_hour, per_hour / 3600 * 1e9 / tokens_per_s};
}

}  // namespace fsdp
