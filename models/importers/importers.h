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
using Importer = ModelGraph(JsonObject& config, std::string_view where, std::int64_t seq_len);
// import_llama also reads Llama's near relatives.
Importer import_falcon, import_gemma2, import_gemma3, import_gpt2, import_gpt_neox, import_gpt_oss, import_llama,
    import_mpt, import_phi3;

// Throws unless `key` is absent, null, or the one value that is modelled.
void require_boolean(JsonObject& config, std::string_view key, bool modelled);
void require_absent(JsonObject& config, std::string_view key);
void require_no_attention_dropout(JsonObject& config);
void require_text(JsonObject& config, std::string_view key, std::string_view modelled);
// Channels of each head that rotary positions turn: 0 for all of them. Refuses a share that leaves an odd number.
[[nodiscard]] std::int64_t rotated_channels(JsonObject& config, std::int64_t head_dim, double share);
// head_dim of `width` over `heads`; throws InputError(where, ...) if it does not divide.
[[nodiscard]] std::int64_t split_heads(const JsonObject& config, std::string_view width_key, std::int64_t width,
                                       std::int64_t heads);

}  // namespace fsdp
