#include "simulator/published/chunked_head.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "models/input/error.h"
#include "simulator/published/reading/cells.h"

namespace fsdp {
namespace {

constexpr double kBytesPerLogit = 61;  // forward 58, backward 64

}  // namespace

std::optional<std::int64_t> vocabulary_chunk(std::string_view loss_cell) {
  constexpr std::string_view kWords = "vocabulary chunks of ";
  const std::string cell = lower_case(loss_cell);
  const std::size_t at = cell.find(kWords);
  if (at == std::string::npos) return std::nullopt;
  std::int64_t tokens = 0;
  for (std::size_t i = at + kWords.size(); i < cell.size() && tokens < 1'000'000; ++i) {
    if (!std::isdigit(static_cast<unsigned char>(cell[i]))) break;
    tokens = 10 * tokens + (cell[i] - '0');
  }
  return tokens > 0 ? std::optional(tokens) : std::nullopt;
}

void chunk_head(ModelGraph& model, std::int64_t tokens_of_vocabulary, const GpuSpec& gpu) {
  const std::int32_t logits = model.ops.back().inputs.front();
  const auto head = std::find_if(model.ops.begin(), model.ops.end(), [&](const Op& op) {
    return std::find(op.outputs.begin(), op.outputs.end(), logits) != op.outputs.end();
  });
  if (head == model.ops.end() || head->kind != OpKind::linear)
    throw InputError("loss", "in chunks of the vocabulary is modelled of linear heads only");
  const auto in = static_cast<double>(head->shape.in), vocab = static_cast<double>(head->shape.out);
  const double products = 4 * 2 * in * vocab / (gpu.bf16.count() * gpu.matmul_efficiency * gpu.sustained_clock);
  const double moved = products * gpu.memory_bandwidth.count() * gpu.memory_efficiency;
  OpShape shape;
  shape.in = head->shape.in;
  shape.vocab = head->shape.out;
  shape.width = tokens_of_vocabulary;
  shape.opaque_bytes_per_token = std::llround(kBytesPerLogit * vocab + moved / 2);
  head->kind = OpKind::opaque;
  head->shape = shape;
  model.tensors[static_cast<std::size_t>(logits)].width = 1;
  model.ops.back().shape.vocab = 1;
}

}  // namespace fsdp
