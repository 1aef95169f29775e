// Time of one matrix product  C[m,n] = A[m,k] B[k,n]  on a GPU that has it to itself.
//
// The product is cut into tiles of C, one CTA each; a wave of CTAs fills the multiprocessors; the last wave is as long
// as the others:
//
//   seconds = waves(tile) * tile flops * (1 + K0 / k) / (peak of one SM * quality(tile)),   waves = ceil(tiles / SMs)
//
// for the tile shape that is quickest, 256x128, 128x256 or the less efficient 128x128. K0 stands for what a tile costs
// beside its inner loop (fill of the pipeline, write-back). A product of few waves may split k over several CTAs, which
// then add their parts up in memory. Rows that are no multiple of 16 bytes need slower loads. Whatever moves more bytes
// than the arithmetic hides is bound by them. A grouped launch of `count` equal products is one product with the tiles
// of all: 12 on A100 within 7.5 % on average, 108 on B200 within 28 %, most of them predicted too quick
// (tests/accuracy/compute_test.cpp).
#pragma once

#include "models/cluster.h"
#include "models/dtype.h"
#include "planner/costs.h"

namespace fsdp {

struct Product {
  double m = 0, n = 0, k = 0;
  double element_bytes = 2;     // of A and B
  double result_bytes = 2;      // of an element of C
  double row_a = 0, row_b = 0;  // extents along which matrices are stored, for their alignment; 0: aligned
  double speed = 1;  // peak of its type over that of the 16-bit types: a tile's fixed time is no shorter for fp8
  double count = 1;  // equal products in one grouped launch (of experts): their tiles share the waves
};

struct ProductTime {
  double seconds = 0, arithmetic = 0;  // arithmetic: as if bytes were free
  double bytes = 0;                    // least device memory traffic
  double tiles = 0;                    // CTAs that it would like to run at once
};

// `peak`: flops per second of all SMs at their best, efficiency and clock included; `memory`: bytes per second. Launch
// not included.
[[nodiscard]] ProductTime product_time(const Product&, double peak, std::int64_t sms, double memory);

// Whether the libraries' products keep one CTA on every SM until all tiles are done (from Hopper on), so that a product
// which finds some of them taken needs a second round.
[[nodiscard]] bool persistent_products(const GpuSpec&);

}  // namespace fsdp
