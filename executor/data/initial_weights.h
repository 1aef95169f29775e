// Initial weights from Hugging Face safetensors: one file, an index of several, or a folder that holds
// model.safetensors or model.safetensors.index.json.
//
//   InitialWeights weights("gpt2/", "--init-from", model);
//   weights.add_adapters("adapter/", "--init-adapters");                  // of a model with adapters; optional
//   options.training.state = weights.reader(plan.seed);
//
// Everything is checked before a step is run: each parameter must be there, in its shape and as F64, F32, F16 or BF16,
// and nothing else may be there but the buffers that older files carry (attention masks of GPT-2, rotary frequencies).
// Names are those of named_parameters(), with or without the base model's prefix ("transformer.", "model."), or an
// alias of a tied weight; where a file has a tied weight twice, both must hold the same. The matrices of experts may
// stand one by one, as the hub has them (models/hub/tensors.h), or stacked. A rank then reads the byte ranges of its
// own rows only, converted to the type of its shards.
//
// Adapters that no file holds begin as peft 0.21 lets them: A is uniform in (-1/sqrt(in), 1/sqrt(in)), B is zero, so
// that the first step's loss is the base model's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/data/safetensors.h"
#include "executor/data/weight_files.h"
#include "executor/training_inputs.h"
#include "models/graph.h"

namespace fsdp {

class InitialWeights {
 public:
  // Throws InputError(`where`: "path", ...) naming the tensor.
  InitialWeights(const std::string& path, std::string_view where, const ModelGraph&);

  // The folder that save_pretrained of a peft model wrote: adapter_model.safetensors and adapter_config.json, whose
  // rank and scale must be the model's. Throws InputError(`where`: "path", ...).
  void add_adapters(const std::string& path, std::string_view where);

  // For Training::state; moments stay zero. Shares the open files. `seed`: of adapters that begin anew.
  [[nodiscard]] StateReader reader(std::uint64_t seed = 0) const;
  // "gpt2/: 148 tensors in 1 file, BF16".
  [[nodiscard]] std::string describe() const;

 private:
  struct Piece {
    WeightPlace place;
    std::int64_t begin = 0;  // the first element of the parameter that it holds
  };
  using Pieces = std::vector<Piece>;  // in the order of the elements; together all of them

  void claim(WeightFiles&, const Parameter&);
  bool claim_whole(WeightFiles&, const Parameter&, const std::vector<std::string>& names);
  bool claim_pieces(WeightFiles&, const Parameter&);
  void refuse_left(const WeightFiles&) const;
  void describe(const std::string& path, const WeightFiles&, std::int64_t tensors);
  static void read(const Pieces&, std::int64_t first, std::int64_t count, DType, std::byte* to);

  ModelGraph model_;
  std::string prefix_;  // of the base model's parameters
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Pieces, std::less<>> parameters_;  // by the model's names; of adapters that begin anew: none
  std::int64_t taken_ = 0;                                 // tensors
  std::string described_;
};

}  // namespace fsdp
