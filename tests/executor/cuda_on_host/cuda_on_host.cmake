# The cuda backend's own code on a CUDA runtime made of threads (tests/fakes/README.md): needs the toolkit's headers, no
# GPU.
file(GLOB device_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/executor/cuda/toolkit/device/*.cpp)
add_library(nccl_on_host SHARED ${CMAKE_CURRENT_SOURCE_DIR}/fakes/cuda_on_host/nccl.cpp)
target_include_directories(nccl_on_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(nccl_on_host PRIVATE fsdp_options)
set_target_properties(nccl_on_host PROPERTIES PREFIX "" OUTPUT_NAME libnccl SUFFIX .so.2
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda_on_host/lib)
# cuBLASLt by its own name, that of the toolkit's version, in a folder that the backend is told of as a toolkit's.
set(cublaslt_suffix .so.13)
if(CUDAToolkit_VERSION VERSION_LESS 13)
  set(cublaslt_suffix .so.12)
endif()
add_library(cublaslt_in_toolkit MODULE fakes/cublaslt_on_host/library.cpp)
target_include_directories(cublaslt_in_toolkit SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(cublaslt_in_toolkit PRIVATE fsdp_options)
set_target_properties(cublaslt_in_toolkit PROPERTIES PREFIX "" OUTPUT_NAME libcublasLt SUFFIX ${cublaslt_suffix}
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda_on_host/lib)
# The backend and its device; kernels are the host's in its tests, the backend's own, emulated, in that of the
# dispatch.
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/executor/cuda/toolkit/kernels/*.cpp)
add_library(cuda_on_host OBJECT fakes/cuda_on_host/runtime.cpp fakes/cuda_on_host/device.cpp ${device_sources})
add_library(cuda_on_host_kernels OBJECT fakes/cuda_on_host/kernels.cpp)
add_executable(executor_cuda_on_host_dispatch_test
  executor/cuda_on_host/dispatch_test.cpp executor/cuda_on_host/dispatch_ops.cpp fakes/cuda_on_host/launches.cpp
  ${CMAKE_SOURCE_DIR}/executor/cuda/toolkit/stream_kernels.cpp ${kernel_sources})
# The libraries put work on the runtime's streams.
set_target_properties(executor_cuda_on_host_dispatch_test PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(executor_cuda_on_host_dispatch_test nccl_on_host cublaslt_in_toolkit)
target_include_directories(executor_cuda_on_host_dispatch_test PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(executor_cuda_on_host_dispatch_test PRIVATE
  FSDP_LIBRARIES_ON_HOST="${CMAKE_CURRENT_BINARY_DIR}/cuda_on_host"
  FSDP_CUBLASLT_NAME="libcublasLt${cublaslt_suffix}" FSDP_TESTS_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(executor_cuda_on_host_dispatch_test PRIVATE
  doctest_main cuda_on_host fsdp_executor nlohmann_json::nlohmann_json)
add_test(NAME executor_cuda_on_host_dispatch_test COMMAND executor_cuda_on_host_dispatch_test)
set_tests_properties(executor_cuda_on_host_dispatch_test PROPERTIES TIMEOUT 600)
foreach(target cuda_on_host cuda_on_host_kernels executor_cuda_on_host_dispatch_test)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # as tests
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE fsdp_executor)
endforeach()
foreach(between virtual nccl processes processes_faults)
  set(test executor_cuda_on_host_${between}_test)
  add_executable(${test} ${CMAKE_CURRENT_SOURCE_DIR}/executor/cuda_on_host/${between}_test.cpp)
  list(APPEND test_sources ${CMAKE_CURRENT_SOURCE_DIR}/executor/cuda_on_host/${between}_test.cpp)
  list(APPEND tests_of_rooms ${test})
  set_target_properties(${test} PROPERTIES ENABLE_EXPORTS ON)  # nccl_on_host calls the runtime
  add_dependencies(${test} nccl_on_host)
  target_include_directories(${test} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${test} PRIVATE FSDP_NCCL_HOME="${CMAKE_CURRENT_BINARY_DIR}/cuda_on_host")
  target_link_libraries(${test} PRIVATE doctest_main cuda_on_host cuda_on_host_kernels fsdp_executor)
  if(NOT between STREQUAL "processes_faults")
    target_link_libraries(${test} PRIVATE executor_conformance)
  endif()
  # NCCL takes the factor of a sum in the type of the elements, and adds in an order of its own. Only threads see that
  # they issue the same collectives.
  if(between STREQUAL "processes")
    foreach(ranks 2 4)
      add_mpi_test(${test} ${ranks} "-tce=reductions add in the order*,ranks that disagree*")
    endforeach()
  else()
    add_test(NAME ${test} COMMAND ${test} $<$<STREQUAL:${between},nccl>:-tce=reductions\ add\ in\ the\ order*>)
    set_tests_properties(${test} PROPERTIES TIMEOUT 600)
  endif()
endforeach()
set_tests_properties(executor_cuda_on_host_processes_faults_test PROPERTIES ENVIRONMENT "${mpi_environment}")
target_compile_definitions(executor_cuda_on_host_processes_faults_test PRIVATE FSDP_MPI_LAUNCH="${mpi_launch_words}")

# The whole program, and transcripts of it.
add_executable(fsdp-plan-cuda-on-host)
set_target_properties(fsdp-plan-cuda-on-host PROPERTIES ENABLE_EXPORTS ON)
target_link_libraries(fsdp-plan-cuda-on-host PRIVATE fsdp_cli cuda_on_host cuda_on_host_kernels)
add_dependencies(fsdp-plan-cuda-on-host nccl_on_host)
add_executable(executor_cuda_on_host_transcripts_test cli/transcripts_test.cpp)
target_link_libraries(executor_cuda_on_host_transcripts_test PRIVATE doctest_main nlohmann_json::nlohmann_json)
add_dependencies(executor_cuda_on_host_transcripts_test fsdp-plan-cuda-on-host)
target_compile_definitions(executor_cuda_on_host_transcripts_test PRIVATE
  FSDP_PLAN_PROGRAM="$<TARGET_FILE:fsdp-plan-cuda-on-host>" FSDP_TESTS_DIR="${CMAKE_CURRENT_SOURCE_DIR}"
  FSDP_TRANSCRIPTS="${CMAKE_CURRENT_SOURCE_DIR}/cli/cuda_on_host" FSDP_TRANSCRIPT_FILES=1)
add_test(NAME executor_cuda_on_host_transcripts_test COMMAND executor_cuda_on_host_transcripts_test)
set_tests_properties(executor_cuda_on_host_transcripts_test PROPERTIES TIMEOUT 600)
