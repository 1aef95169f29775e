# `gpu_check`: the programs that tests/gpu_check/gpu_check.sh runs on a machine with a GPU, and itself, in
# build/gpu-check, which can be copied there.
set(gpu_check_programs fsdp-plan)
file(GLOB gpu_check_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/executor/cuda/*_test.cpp)
foreach(source ${gpu_check_tests})
  test_name(${source} test)
  if(TARGET ${test} AND NOT test MATCHES "_(emulated|host|cublaslt)_test$")
    list(APPEND gpu_check_programs ${test})
  endif()
endforeach()
set(gpu_check_folder ${CMAKE_SOURCE_DIR}/build/gpu-check)
set(gpu_check_files ${CMAKE_CURRENT_SOURCE_DIR}/gpu_check/gpu_check.sh)
foreach(program ${gpu_check_programs})
  list(APPEND gpu_check_files $<TARGET_FILE:${program}>)
endforeach()
add_custom_target(gpu_check
  COMMAND ${CMAKE_COMMAND} -E make_directory ${gpu_check_folder}
  COMMAND ${CMAKE_COMMAND} -E copy ${gpu_check_files} ${gpu_check_folder} VERBATIM)
add_dependencies(gpu_check ${gpu_check_programs})

# The script itself, on CPU ranks.
add_test(NAME gpu_check_script
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu_check/gpu_check.sh ${CMAKE_CURRENT_BINARY_DIR}/gpu_check.json)
set_tests_properties(gpu_check_script PROPERTIES TIMEOUT 600
  ENVIRONMENT "FSDP_PLAN_CHECK_BACKEND=host;FSDP_PLAN_CHECK_PROGRAMS=${CMAKE_BINARY_DIR}")
