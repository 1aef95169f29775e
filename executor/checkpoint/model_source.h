// What a model was built from. A checkpoint keeps it, so that an export can be loaded by other programs.
#pragma once

#include <cstdint>
#include <string>

#include "models/graph.h"

namespace fsdp {

struct ModelSource {
  std::string config;  // the text of its config.json; empty: not known
  std::string lora;    // its adapters, as parse_lora reads them (models/graph/lora.h); empty: none
  friend bool operator==(const ModelSource&, const ModelSource&) = default;
};
inline constexpr std::size_t kMaxSavedConfig = std::size_t{1} << 20;  // bytes; a longer one is not kept

// `seq_len` and `where` as for model_from_config. Throws InputError.
[[nodiscard]] ModelGraph graph_of(const ModelSource&, std::int64_t seq_len, const std::string& where);

}  // namespace fsdp
