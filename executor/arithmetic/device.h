// Marks what runs on both sides: plain functions that CUDA kernels call as well. Nothing where no CUDA compiler is at
// work.
#pragma once

#ifdef __CUDACC__
#define FSDP_DEVICE __host__ __device__
#else
#define FSDP_DEVICE
#endif
