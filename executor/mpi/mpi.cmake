# Ranks as processes: a choice of source files, by whether an MPI is installed. Changes `sources`, sets
# `mpi_libraries`.
set(launcher)
option(FSDP_PLAN_MPI "build the mpi backend where an MPI is installed" ON)
if(FSDP_PLAN_MPI)
  find_package(MPI COMPONENTS CXX QUIET)
endif()
if(FSDP_PLAN_MPI AND MPI_CXX_FOUND)
  list(FILTER sources EXCLUDE REGEX "/mpi/absent\\.cpp$")
  set(mpi_libraries ${MPI_CXX_LIBRARIES})
  set(launcher ${MPIEXEC_EXECUTABLE})
  # Of the one file that includes mpi.h.
  list(TRANSFORM MPI_CXX_INCLUDE_DIRS PREPEND -isystem OUTPUT_VARIABLE mpi_includes)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/wire.cpp PROPERTIES
    COMPILE_OPTIONS "${mpi_includes}" COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
else()
  message(STATUS "fsdp-plan: no MPI (libopenmpi-dev, openmpi-bin); `run --backend mpi` is not built in")
  list(FILTER sources EXCLUDE REGEX "/executor/mpi/.*\\.cpp$")
  list(APPEND sources ${CMAKE_CURRENT_LIST_DIR}/absent.cpp)
endif()
set(FSDP_PLAN_MPI_LAUNCHER "${launcher}" CACHE INTERNAL "mpiexec; empty: no mpi backend")
