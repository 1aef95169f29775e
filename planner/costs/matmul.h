// Time of one matmul  C[m,n] = A[m,k] B[k,n]  on a GPU that has nothing else to do.
//
// C is cut into tiles, one CTA each; a wave of CTAs fills the multiprocessors; the last wave takes as long as the
// others:
//
//   seconds = waves(tile) * tile flops * (1 + K0 / k) / (peak of one SM * quality(tile)),   waves = ceil(tiles / SMs)
//
// for the fastest tile shape of 256x128, 128x256 and the less efficient 128x128. K0 stands for the cost of a tile
// beside its inner loop (fill of the pipeline, write-back). A matmul of few waves may split k over several CTAs, which
// then add up their parts in memory. Rows that are no multiple of 16 bytes need slower loads. A matmul that moves more
// bytes than the arithmetic hides is bound by them. A grouped launch of `count` equal matmuls is one matmul with the
// tiles of all: 12 on A100 within 7.5 % on average, 108 on B200 within 28 %, most of them predicted too fast
// (tests/accuracy/compute_test.cpp).
#pragma once

#include "models/cluster.h"
#include "models/dtype.h"
#include "planner/costs.h"

namespace fsdp {

struct Matmul {
  double m = 0, n = 0, k = 0;
  double element_bytes = 2;     // of A and B
  double result_bytes = 2;      // of an element of C
  double row_a = 0, row_b = 0;  // extents along which matrices are stored, for their alignment; 0: aligned
  double speed = 1;  // peak of its type over that of the 16-bit types: a tile's fixed time is no shorter for fp8
  double count = 1;  // equal matmuls in one grouped launch (of experts): their tiles share the waves
};

struct MatmulTime {
  double seconds = 0, arithmetic = 0;  // arithmetic: as if bytes were free
  double bytes = 0;                    // least device memory traffic
  double tiles = 0;                    // CTAs that it would like to run at once
};

// `peak`: best flops per second of all SMs, efficiency and clock included; `memory`: bytes per second. Without the
// launch.
[[nodiscard]] MatmulTime matmul_time(const Matmul&, double peak, std::int64_t sms, double memory);

// True if the library keeps one CTA on every SM until all tiles are done, so that a matmul that finds some SMs taken
// needs a second round: on GPUs from Hopper on, with PyTorch before 2.11.
[[nodiscard]] bool persistent_matmuls(const CostContext&);

// Seconds that it takes longer then. CTAs get their tiles at the start, the first ones a tile more where they do not
// come out even (CUTLASS documents this static schedule). The last CTAs, as many as collectives hold multiprocessors,
// find no place. They start when others end, first those that have fewer tiles, and do all of theirs in
// `sustained_clock` of the time, because most of the GPU is idle.
[[nodiscard]] double second_round(const MatmulTime&, const CostContext&);

}  // namespace fsdp
