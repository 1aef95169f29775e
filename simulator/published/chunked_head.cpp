#include "simulator/published/chunked_head.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "models/dtype.h"
#include "models/input/error.h"
#include "simulator/published/reading/cells.h"

namespace fsdp {
namespace {

constexpr double kBytesPerLogit = 61;  // forward 58, backward 64

}  // namespace

std::optional<HeadChunks> head_chunks(std::string_view loss_cell) {
  const std::string cell = lower_case(loss_cell);
  const auto number_after = [&](std::string_view words) {
    const std::size_t at = cell.find(words);
    std::int64_t tokens = 0;
    for (std::size_t i = at + words.size(); at != std::string::npos && i < cell.size() && tokens < 1'000'000; ++i) {
      if (!std::isdigit(static_cast<unsigned char>(cell[i]))) break;
      tokens = 10 * tokens + (cell[i] - '0');
    }
    return tokens;
  };
  if (const std::int64_t words = number_after("vocabulary chunks of "); words > 0)
    return HeadChunks{.vocabulary = words};
  if (const std::int64_t tokens = number_after("token chunks of "); tokens > 0) return HeadChunks{.tokens = tokens};
  return std::nullopt;
}

void chunk_head(ModelGraph& model, HeadChunks chunks, const GpuSpec& gpu) {
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
  shape.width = chunks.vocabulary;
  shape.positions = chunks.tokens;
  const double element = static_cast<double>(size_of(DType::bf16));
  const double sums =
      chunks.tokens > 0
          ? 4 * element * in *
                (vocab / static_cast<double>(chunks.tokens) + std::ceil(vocab / static_cast<double>(chunks.vocabulary)))
          : 0;
  shape.opaque_bytes_per_token = std::llround(kBytesPerLogit * vocab + moved / 2 + sums / 2);
  head->kind = OpKind::opaque;
  head->shape = shape;
  model.tensors[static_cast<std::size_t>(logits)].width = 1;
  model.ops.back().shape.vocab = 1;
}

}  // namespace fsdp
