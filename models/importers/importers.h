// One importer per family: a Hugging Face config.json, already parsed, to a ModelGraph with the names that transformers
// prints.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "models/graph.h"
#include "models/input/json.h"

namespace fsdp {

// Keys that only tune initialisation, dropout or generation are ignored. Keys that change the architecture in a way
// that is not modelled are refused by name. `seq_len` 0: the config's own.
using Importer = ModelGraph (*)(JsonObject& config, std::string_view where, std::int64_t seq_len);

[[nodiscard]] ModelGraph import_llama(JsonObject& config, std::string_view where,
                                      std::int64_t seq_len);  // and its near relatives
[[nodiscard]] ModelGraph import_gpt2(JsonObject& config, std::string_view where, std::int64_t seq_len);
[[nodiscard]] ModelGraph import_mpt(JsonObject& config, std::string_view where, std::int64_t seq_len);

// Throws unless `key` is absent, null, or the one value that is modelled.
void require_boolean(JsonObject& config, std::string_view key, bool modelled);
void require_absent(JsonObject& config, std::string_view key);
void require_text(JsonObject& config, std::string_view key, std::string_view modelled);
// head_dim of `width` over `heads`; throws InputError(where, ...) if it does not divide.
[[nodiscard]] std::int64_t split_heads(const JsonObject& config, std::string_view width_key, std::int64_t width,
                                       std::int64_t heads);

}  // namespace fsdp
