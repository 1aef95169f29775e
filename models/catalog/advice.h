// What a config.json that no importer reads is, and what its owner can do instead.
#pragma once

#include <string_view>

#include "models/input/json.h"

namespace fsdp {

// Throws InputError about `model_type` (absent: empty): an encoder, a state-space model and so on are called what they
// are, with the way round importers; for other decoders the family is named that is nearest by the config's keys.
[[noreturn]] void refuse_family(JsonObject& config, std::string_view model_type);

// A file without `model_type` that has the keys of Llama's, and no others that decide how a model is built.
[[nodiscard]] bool looks_like_llama(JsonObject& config);

}  // namespace fsdp
