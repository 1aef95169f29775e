// Frozen weights in 4 bits, as bitsandbytes packs them and Hugging Face's QLoRA recipes for FSDP keep them: two numbers
// to a byte, four to an element of 16 bits (bnb_4bit_quant_storage), in a parameter of shape [elements, 1], which is
// sharded and gathered as it is. Each 64 numbers have a scale. Scales are no parameters: every rank has all of them.
//
//   const ModelGraph packed = in_four_bits(adapted, FourBits::nf4, setting("lora"));
//
// Each product makes the weight again in 16 bits, forward and backward (models/implementations/hf/hf.cpp).
#pragma once

#include <cstdint>

#include "models/graph.h"
#include "models/input/error.h"

namespace fsdp {

// Of a frozen model, or one with adapters (models/graph/lora.h): weights of nn.Linear and Conv1D but adapters' and that
// of the layer that makes the logits, which transformers leaves as they are, as it does layers of other classes
// (Falcon's). Throws InputError(where, ...) for a model with experts, whose matrices bitsandbytes leaves as they are,
// for a weight that is trained or shared, for one whose numbers 4 does not divide, and where nothing is packed.
[[nodiscard]] ModelGraph in_four_bits(ModelGraph, FourBits, const Origin& where);

inline constexpr std::int64_t kFourBitsPacked = 4;  // numbers in an element of 16 bits
// Numbers that share a scale: bitsandbytes' default blocksize.
inline constexpr std::int64_t kFourBitsBlock = 64;
[[nodiscard]] constexpr std::int64_t scales_of(std::int64_t numbers) {
  return (numbers + kFourBitsBlock - 1) / kFourBitsBlock;
}

// A weight that is kept so.
[[nodiscard]] inline bool is_packed(const Parameter& p) { return p.packed > 1; }
[[nodiscard]] FourBits four_bits_of(const ModelGraph&);  // none: no weight is

}  // namespace fsdp
