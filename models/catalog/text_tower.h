// The text models of models that see or hear, with the names that transformers gives their modules inside the whole.
// What sees is left out, and the graph says so (ModelGraph::notes).
#pragma once

#include <string_view>
#include <vector>

#include "models/graph.h"

namespace fsdp {

struct TextTower {
  std::string_view model_type;  // of the whole
  std::string_view text_type;   // of its text_config, where that does not say
  std::string_view prefix;      // of the classes of the whole
  bool tied;                    // the head and the embeddings, where the whole does not say
  bool text_ties;               // the text_config can tie them, too, whatever the whole says
};
[[nodiscard]] const TextTower* find_text_tower(std::string_view model_type);  // nullptr: none
[[nodiscard]] std::vector<std::string_view> text_tower_types();

// The config.json of the text model that `json_text` holds.
[[nodiscard]] std::string text_config(const TextTower&, std::string_view json_text, std::string_view where);
// The text model's graph as it stands in the whole: "model.layers.0" is "model.language_model.layers.0".
[[nodiscard]] ModelGraph inside_whole(const TextTower&, ModelGraph text);

}  // namespace fsdp
