#include "simulator/published/software/mosaic.h"

#include "simulator/published/reading/cells.h"

namespace fsdp {
namespace {

// Before PyTorch 1.13 and CUDA 11.7 a context held all kernels of its libraries. One with 156 MiB of tensors took 1,644
// MiB of an RTX 3090 (PyTorch 1.7, its issue 49877), of which the 0.55 GiB of a context of today are counted already
// (counted_fixed_memory).
constexpr Bytes kEagerKernels{(1644 - 156 - 563) * (std::int64_t{1} << 20)};

// Composer's DEFAULT told FSDP a param_dtype and no reduce_dtype until its pull request 2628 of 10 October 2023
// (0.16.4), and FSDP then reduces in the former (_init_param_reduce_dtypes of flat_param.py). Before that date are
// llm-foundry's tables with images of PyTorch 2.0.1 and of 27 August 2023, whose submit_benchmarks.py installed a
// Composer of 22 August, and the sweeps of its branch of August (beb8dee69). Those of January 2024 (128 H100 and more)
// are after it.
bool before_fp32_reductions(const PublishedRun& run, std::string_view generation) {
  return generation == "torch-2.0" || says(run.software, "nightly20230827") || says(run.source_ref, "@beb8dee69");
}

}  // namespace

// mosaicml/examples measured in December 2022 under PyTorch 1.12 and in February 2023 under 1.13; Composer's DEFAULT
// was another one before its pull request 2047 of March 2023. What llm-foundry's README states in PURE without software
// was in mosaicml/examples on 4 April 2023, and its sweep.sh names the image of PyTorch 1.13.1.
void set_mosaic(const PublishedRun& run, std::string_view generation, RunImplementation& out) {
  const bool pure = says(run.notes, "mixed_precision pure"), mixed = says(run.notes, "mixed_precision default");
  const bool april = pure && generation.empty(), early = generation == "torch-1.12" || generation == "torch-1.13";
  if (early && mixed) {
    out.implementation = &foundry_2023_01_implementation();
  } else if (early || april || generation == "torch-2.0") {
    out.implementation = &foundry_2023_implementation();
  }
  if (generation == "torch-1.12") out.kernels_loaded = kEagerKernels;
  if (early || april) out.torch = {1, 13};  // 1.12 pads and marks as 1.13 does, and knows no limit of all-gathers
  if (april) out.assumptions.emplace_back("PyTorch 1.13, as when this table was first published");
  out.reduces_as_computed = mixed && !early && before_fp32_reductions(run, generation);
  if (out.reduces_as_computed)
    out.assumptions.emplace_back("gradients reduced in bf16, as Composer's DEFAULT did before October 2023");
}

}  // namespace fsdp
