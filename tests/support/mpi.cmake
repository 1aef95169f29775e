# Tests of several processes: `add_mpi_test(executor_mpi_test 4)` runs that program as `mpirun -n 4` under the name
# executor_mpi_test_4. Further arguments are the program's.
set(mpi_launch)
set(mpi_environment)
if(FSDP_PLAN_MPI_LAUNCHER)
  execute_process(COMMAND ${FSDP_PLAN_MPI_LAUNCHER} --version OUTPUT_VARIABLE launcher_version ERROR_QUIET)
  set(mpi_launch ${FSDP_PLAN_MPI_LAUNCHER})
  if(launcher_version MATCHES "Open MPI|OpenRTE")
    # More ranks than cores, as root in a container, not bound to a core each; without a network; without one process
    # reading another's memory, which containers forbid.
    list(APPEND mpi_launch --allow-run-as-root --oversubscribe --bind-to none)
    list(APPEND mpi_environment OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none
      OMPI_MCA_orte_base_help_aggregate=0 OMPI_MCA_plm_rsh_agent=false)
  endif()
  if(FSDP_PLAN_SANITIZE MATCHES "address")  # its frames are found only by the slow way
    set(leaks ${CMAKE_CURRENT_SOURCE_DIR}/support/mpi_leaks.txt)
    list(APPEND mpi_environment
      LSAN_OPTIONS=suppressions=${leaks}:print_suppressions=0:fast_unwind_on_malloc=0)
  endif()
endif()

function(add_mpi_test test ranks)
  if(NOT mpi_launch)
    return()
  endif()
  add_test(NAME ${test}_${ranks} COMMAND ${mpi_launch} -n ${ranks} $<TARGET_FILE:${test}> ${ARGN})
  set_tests_properties(${test}_${ranks} PROPERTIES TIMEOUT 600 ENVIRONMENT "${mpi_environment}" PROCESSORS 2)
endfunction()
