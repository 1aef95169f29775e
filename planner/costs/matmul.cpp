#include "planner/costs/matmul.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fsdp {

namespace {

struct Tile {
  double m, n;
  double quality;  // 128x128 moves a third more bytes per flop from L2; measured matmuls of one wave lose 5 to 15 %
};
constexpr std::array kTiles = {Tile{256, 128, 1.0}, Tile{128, 256, 1.0}, Tile{128, 128, 0.92}};

// SimuMax's 183 matmuls on A100 PCIe (k from 256 to 102400): 150 to 300 fit them equally well (mean error 4.3 to 5.5
// %).
constexpr double kPrologue = 256;
// Matmuls of at most this many waves split k, into parts no shorter than this.
constexpr double kSplitWaves = 4, kShortestPart = 512;

// A row of 16-byte pieces is loaded at full speed: SwiGLU of widths 10848 to 11008 that are multiples of 32 are equal
// on H100, 10922 (a multiple of 2) runs at 0.68 of them (ml-engineering). Odd rows: a vocabulary that is not padded
// made the output layer fall back from cuBLAS to CUTLASS and take three times as long (Netflix on post-training,
// February 2026). Padding GPT-2's of 50257 to 50304 made a whole step 25 % faster (nanoGPT), which is three
// times if the head took an eighth of the padded step, and twice if it took a quarter.
double alignment(const Matmul& p) {
  const double odd = 1.0 / 3, even = 0.68;
  double worst = 1;
  for (const double extent : {p.row_a, p.row_b}) {
    const double bytes = extent * p.element_bytes;
    if (std::fmod(bytes, 16) == 0) continue;
    worst = std::min(worst, std::fmod(bytes, 4) == 0 ? even : odd);
  }
  return worst;
}

}  // namespace

bool persistent_matmuls(const CostContext& c) {
  const GpuSpec& gpu = c.cluster.gpu;
  return gpu.compute_capability >= 90 && gpu.sms > 0 &&
         (c.implementation.persistent_products || c.plan.torch.before(2, 11));
}

MatmulTime matmul_time(const Matmul& p, double peak, std::int64_t sms, double memory) {
  MatmulTime t;
  t.bytes = p.count * ((p.m * p.k + p.k * p.n) * p.element_bytes + p.m * p.n * p.result_bytes);
  if (p.m <= 0 || p.n <= 0 || p.k <= 0) return t;
  const double n_sm = static_cast<double>(std::max<std::int64_t>(1, sms)), per_sm = peak / n_sm;
  t.arithmetic = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = p.count * std::ceil(p.m / tile.m) * std::ceil(p.n / tile.n), flops = 2 * tile.m * tile.n;
    const auto consider = [&](double parts) {
      const double seconds =
          std::ceil(tiles * parts / n_sm) * flops * (p.k / parts + kPrologue * p.speed) / (per_sm * tile.quality) +
          (parts > 1 ? 8 * parts * p.count * p.m * p.n / memory : 0);  // fp32 parts written and read
      if (seconds >= t.arithmetic) return;
      t.arithmetic = seconds;
      t.tiles = tiles * parts;
    };
    consider(1);
    if (tiles > kSplitWaves * n_sm) continue;
    for (double parts = 2; parts <= 16 && p.k / parts >= kShortestPart; parts *= 2) consider(parts);
  }
  t.arithmetic /= alignment(p);
  t.seconds = std::max(t.arithmetic, t.bytes / memory);
  return t;
}

double second_round(const MatmulTime& t, const CostContext& c) {
  const auto sms = static_cast<double>(c.cluster.gpu.sms);
  const double clock = std::min(1.0, c.costs.sustained_clock * c.slowest), placed = sms - c.taken;
  const double fewest = std::max(1.0, std::floor(t.tiles / sms)), most = std::max(1.0, std::ceil(t.tiles / sms));
  const double with_most = most > fewest ? t.tiles - fewest * sms : 0;         // CTAs; 0: they come out even
  if (with_most > placed) return t.seconds * clock;                            // so have some that wait
  if (placed - with_most < c.taken) return t.seconds * clock * fewest / most;  // some wait for those with most tiles
  return t.seconds * std::max(0.0, (1 + clock) * fewest / most - 1);
}

}  // namespace fsdp
