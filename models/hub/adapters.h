// adapter_config.json, which stands beside the adapters that peft saves.
#pragma once

#include <string>
#include <string_view>

#include "models/graph.h"
#include "models/graph/lora.h"

namespace fsdp {

// Of a model that add_lora has made. It names no base model: PeftModel.from_pretrained(base, folder) is given one.
[[nodiscard]] std::string adapter_config(const ModelGraph& adapted, const LoraSpec&);

// Throws InputError(`where`: field) unless `text` is the adapter_config.json of adapters that the model computes with:
// plain LoRA, scaled as the model scales its own. The tensors themselves say rank and layers.
void check_adapter_config(std::string_view text, const std::string& where, const ModelGraph& adapted);

}  // namespace fsdp
