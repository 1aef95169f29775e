// What is written and sent: one text, so that a half of it is recognised.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "executor/cuda/id_exchange.h"

namespace fsdp::cuda {

struct IdText {
  std::string run_id;
  Id id;
};
[[nodiscard]] std::string format_id(const IdText&);                  // ends with a line "end"
[[nodiscard]] std::optional<IdText> parse_id(std::string_view);      // none: damaged or not whole

}  // namespace fsdp::cuda
