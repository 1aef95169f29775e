# The cuda backend: a choice of source files. Changes `sources`, sets `cuda_libraries`.
#
#   executor/cuda/*.cpp       what needs no CUDA: always built, tested everywhere
#   executor/cuda/toolkit/    what includes the toolkit's headers, or calls what a .cu file defines; .cu files are
#                             compiled by nvcc
#   executor/cuda/absent.cpp  in place of toolkit/ where there is no toolkit
set(cuda_libraries)
if(FSDP_PLAN_CUDA_FOUND)
  list(FILTER sources EXCLUDE REGEX "/cuda/absent\\.cpp$")
  file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cu)
  add_library(fsdp_cuda STATIC ${cuda_sources})
  target_include_directories(fsdp_cuda PRIVATE ${CMAKE_SOURCE_DIR})
  # No product may be fused with a sum there, so that virtual ranks get the host backend's bits.
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/toolkit/device/reduce.cu PROPERTIES
    COMPILE_OPTIONS "-fmad=false")
  set_target_properties(fsdp_cuda PROPERTIES CUDA_RUNTIME_LIBRARY None)  # linked below, once
  # No -Wpedantic: what nvcc hands to the host compiler has line markers of GCC's own kind.
  # The suppressed ones say "a __host__ function called from a __host__ __device__ one": constexpr functions of the
  # standard library.
  target_compile_options(fsdp_cuda PRIVATE
    --Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror --expt-relaxed-constexpr
    --diag-suppress=20012,20013,20014,20015)
  find_package(Threads REQUIRED)
  target_link_libraries(fsdp_cuda PUBLIC CUDA::cudart_static)
  set(cuda_libraries fsdp_cuda CUDA::cudart_static ${CMAKE_DL_LIBS})
  list(TRANSFORM CUDAToolkit_INCLUDE_DIRS PREPEND -isystem OUTPUT_VARIABLE cuda_includes)
  set(cuda_host_sources ${sources})
  list(FILTER cuda_host_sources INCLUDE REGEX "/cuda/toolkit/.*\\.cpp$")
  set_source_files_properties(${cuda_host_sources} PROPERTIES COMPILE_OPTIONS "${cuda_includes}")
else()
  list(FILTER sources EXCLUDE REGEX "/cuda/toolkit/.*\\.cpp$")
endif()
