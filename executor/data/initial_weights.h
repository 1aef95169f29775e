// Initial weights from Hugging Face safetensors: one file, an index of several, or a folder that holds
// model.safetensors or model.safetensors.index.json.
//
//   const InitialWeights weights("gpt2/", "--init-from", model);
//   options.training.state = weights.reader();
//
// Everything is checked before a step is run: each parameter must be there, in its shape and as F64, F32, F16 or BF16,
// and nothing else may be there but the buffers that older files carry (attention masks of GPT-2, rotary frequencies).
// Names are those of named_parameters(), with or without the base model's prefix ("transformer.", "model."), or an
// alias of a tied weight; where a file has a tied weight twice, both must hold the same. A rank then reads the byte
// ranges of its own rows only, converted to the type of its shards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/data/safetensors.h"
#include "executor/training_inputs.h"
#include "models/graph.h"

namespace fsdp {

class InitialWeights {
 public:
  // Throws InputError(`where`: "path", ...) naming the tensor.
  InitialWeights(const std::string& path, std::string_view where, const ModelGraph&);

  // For Training::state; moments stay zero. Shares the open files.
  [[nodiscard]] StateReader reader() const;
  // "gpt2/: 148 tensors in 1 file, BF16".
  [[nodiscard]] std::string describe() const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsTensor* tensor = nullptr;
  };
  void add_file(const std::string& path, std::string_view where);
  void add_index(const std::string& path, std::string_view where);
  void claim(const Parameter&, std::string_view prefix);
  void refuse_unclaimed() const;

  std::string path_, named_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> tensors_;     // by the files' names, until claimed by a parameter
  std::map<std::string, Place, std::less<>> parameters_;  // by the model's
  std::map<std::string, std::int64_t> types_;             // how many tensors of each
};

}  // namespace fsdp
