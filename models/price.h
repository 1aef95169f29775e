// What a GPU costs, and what training on it costs then.
//
//   const Price price = parse_price("2.1 USD", setting("price"));        // of one GPU for one hour
//   const TrainingCost cost = training_cost(price, /*gpus=*/8, /*tokens_per_s=*/61'543);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/input/error.h"

namespace fsdp {

struct Price {
  double per_gpu_hour = 0;
  std::string currency;  // a word for answers, "USD"; empty: in no currency in particular
  friend bool operator==(const Price&, const Price&) = default;
};
// "2.1", "2.1 USD", "2.1EUR" (words of two letters and more): more than zero, at most 10^9. Throws InputError.
[[nodiscard]] Price parse_price(const std::string& text, const Origin& where);
[[nodiscard]] Price checked_price(double per_gpu_hour, const Origin& where);
[[nodiscard]] std::string text_of(const Price&);                              // "2.1 USD"
[[nodiscard]] std::string money(double amount, const std::string& currency);  // "1,234 USD", "0.0758"

struct TrainingCost {
  Price price;
  std::int64_t gpus = 0;
  double per_day = 0, per_billion_tokens = 0;  // in the currency of the price
  friend bool operator==(const TrainingCost&, const TrainingCost&) = default;
};
// All GPUs of the job are paid, whatever they do. Throws InputError where no tokens are trained: then tokens have no
// cost.
//
//   per_day            = price * gpus * 24
//   per_billion_tokens = price * gpus / 3600 s * 10^9 / tokens_per_s
[[nodiscard]] TrainingCost training_cost(const Price&, std::int64_t gpus, double tokens_per_s);

}  // namespace fsdp
