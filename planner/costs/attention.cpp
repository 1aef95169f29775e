#include "planner/costs/attention.h"

#include <algorithm>
#include <cmath>

namespace fsdp {

namespace {

// Each row of tiles begins by loading queries and ends by writing results, and on the diagonal of a causal mask half of
// a tile is computed for nothing: as many keys' worth of work per row. FlashAttention-2 on A100 and H100,
// FlashAttention-3 and cuDNN on H100 (flash-attention repository, assets/): from 512 to 16384 tokens all follow s / (s
// + s0) with s0 of 160 to 190 for full masks, 430 to 610 for causal ones.
constexpr double kPrologueFull = 170, kPrologueCausal = 520;
// FlashAttention 1 on A100 and H100 with heads of 64 and 128: 35 to 107 and 200 to 520.
constexpr double kFlash1Full = 60, kFlash1Causal = 300;
// CTAs take 128 queries of a head. The last wave is not full: SimuMax's A100 rows of 4 to 64 heads of 4096 tokens (1.2
// to 19 waves) rise as w / (w + 1.2).
constexpr double kTileQueries = 128, kTail = 1.2;
// Smaller heads do more softmax per matmul, d / (d + d0) relative to 128. 64 against 128: FlashAttention-2 0.87 on
// A100 and H100 (d0 = 22); FlashAttention-3 0.77, cuDNN 0.69 on H100 (d0 = 80). FlashAttention 1 has no such order,
// nor has the kernel in Triton.
double smallness(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::flash1:
    case AttentionKernel::triton: return 0;
    case AttentionKernel::cudnn:
    case AttentionKernel::flash3: return 80;
    default: return 22;
  }
}

// FlashAttention 1 with heads above 64, of which registers spill, by the same with heads of 64: A100, forward and
// backward together, 0.73 to 0.84 (full) and 0.86 to 0.95 (causal) from 512 to 16384 tokens; the mean of twelve
// (flash-attention repository, assets/).
constexpr double kSpilling = 0.82;

AttentionKernel behind(AttentionKernel kernel, const GpuSpec& gpu) {
  const bool older = kernel == AttentionKernel::sdpa_before_2_11;
  if (kernel != AttentionKernel::sdpa && !older) return kernel;
  const int first = older ? 100 : 90;  // 110 and above: other GPUs than those of data centers
  const bool cudnn = gpu.compute_capability >= first && gpu.compute_capability < 110 &&
                     gpu.attention[static_cast<std::size_t>(AttentionKernel::cudnn)];  // or its speed is not known
  return cudnn ? AttentionKernel::cudnn : AttentionKernel::flash2;
}

}  // namespace

// PyTorch 2.9 preferred cuDNN already (pull request 162073); 2.10 took it back where cuDNN is older than 9.15.1, as in
// its own builds (171627).
AttentionKernel attention_of(AttentionKernel kernel, TorchVersion release, DType dtype, std::int64_t head_dim) {
  if (kernel != AttentionKernel::sdpa && kernel != AttentionKernel::sdpa_before_2_11) return kernel;
  if (size_of(dtype) > 2 || head_dim > 192) return AttentionKernel::flash2;
  const bool older = release.before(2, 11) && release != TorchVersion{2, 9};
  return older ? AttentionKernel::sdpa_before_2_11 : kernel;
}

bool is_cudnn(AttentionKernel kernel, const GpuSpec& gpu) { return behind(kernel, gpu) == AttentionKernel::cudnn; }

AttentionCeiling attention_ceiling(AttentionKernel kernel, const GpuSpec& gpu, const Costs& costs) {
  // Costs hold FlashAttention-2's, which a fit may have moved: others move along.
  const AttentionCeiling base{costs.attention_forward_efficiency, costs.attention_backward_efficiency};
  const AttentionKernel k = kernel == AttentionKernel::triton ? AttentionKernel::flash1 : behind(kernel, gpu);
  if (k == AttentionKernel::flash2 || k == AttentionKernel::math) return base;
  const std::optional<AttentionCeiling>& own = gpu.attention[static_cast<std::size_t>(k)];
  // Not stated: the first version ran at half the speed of the second (A100: 97 against 200 TFLOP/s), and FlexAttention
  // about as fast as the second; the others' speed is not known.
  if (!own) return k == AttentionKernel::flash1 ? AttentionCeiling{0.5 * base.forward, 0.5 * base.backward} : base;
  const double forward = gpu.attention_forward_efficiency, backward = gpu.attention_backward_efficiency;
  return {own->forward * base.forward / forward, own->backward * base.backward / backward};
}

double attention_shape_factor(AttentionKernel kernel, const OpShape& s, const Workload& w, const GpuSpec& gpu) {
  const double length = static_cast<double>(w.seq_len), window = static_cast<double>(s.window);
  const double keys =
      s.window > 0 ? std::min(length, 2 * window) : length;  // a causal row sees half of its length on average
  const bool first = kernel == AttentionKernel::flash1;
  const double prologue = s.causal ? (first ? kFlash1Causal : kPrologueCausal) : (first ? kFlash1Full : kPrologueFull);
  const double sequence = keys / (keys + prologue);
  // The last CTA of a head takes as long as a full one: in place of more work it counts as a part of a CTA.
  const double tiles = static_cast<double>(w.sequences) * static_cast<double>(s.heads) * length / kTileQueries;
  const double waves = tiles / static_cast<double>(std::max<std::int64_t>(1, gpu.sms));
  const double d = std::min(128.0, static_cast<double>(s.head_dim)), d0 = smallness(behind(kernel, gpu));
  const double spilling = kernel == AttentionKernel::flash1 && s.head_dim > 64 ? kSpilling : 1;
  return sequence * waves / (waves + kTail) * (d / (d + d0)) * ((128 + d0) / 128) * spilling;
}

double attention_arithmetic(AttentionKernel kernel, Direction direction, double flops, double peak, const OpShape& s,
                            const Workload& w, const GpuSpec& gpu, const Costs& costs) {
  const AttentionCeiling ceiling = attention_ceiling(kernel, gpu, costs);
  const double best = peak * (direction == Direction::forward ? ceiling.forward : ceiling.backward);
  return flops / (best * attention_shape_factor(kernel, s, w, gpu));
}

}  // namespace fsdp
