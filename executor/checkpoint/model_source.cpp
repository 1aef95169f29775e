#include "executor/checkpoint/model_source.h"

#include <utility>

#include "models/catalog.h"
#include "models/graph/lora.h"

namespace fsdp {

ModelGraph graph_of(const ModelSource& source, std::int64_t seq_len, const std::string& where) {
  ModelGraph model = model_from_config(source.config, where, seq_len);
  if (source.lora.empty()) return model;
  return add_lora(std::move(model), parse_lora(source.lora, where), where);
}

}  // namespace fsdp
