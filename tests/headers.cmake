# Every header compiles alone, with nothing before it. The source of the same name proves it by including its header
# first (tests/house/house_test.cpp sees to that); a header without a source in this build gets a generated one. Left
# out: the toolkit's headers, which need flags of their own.
set(room_headers)
foreach(room models planner simulator executor viz cli)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/${room}/*.h)
  list(APPEND room_headers ${headers})
endforeach()
list(FILTER room_headers EXCLUDE REGEX "^executor/cuda/toolkit/")
list(LENGTH room_headers count)
if(count LESS 190)
  message(FATAL_ERROR "only ${count} headers found to compile alone: the search is broken")
endif()

set(compiled_sources)
foreach(target fsdp_models fsdp_planner fsdp_search fsdp_emit fsdp_simulator fsdp_published fsdp_files fsdp_executor
    fsdp_calibrate fsdp_viz fsdp_cli)
  get_target_property(sources ${target} SOURCES)
  list(APPEND compiled_sources ${sources})
endforeach()

set(header_sources)
foreach(header ${room_headers})
  string(REGEX REPLACE "\\.h$" ".cpp" source ${CMAKE_SOURCE_DIR}/${header})
  if(NOT source IN_LIST compiled_sources)
    string(REPLACE "/" "_" alone ${header})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${alone}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
    list(APPEND header_sources ${source})
  endif()
endforeach()
add_library(headers_compile_alone OBJECT ${header_sources})
target_link_libraries(headers_compile_alone PRIVATE fsdp_options)
target_compile_options(headers_compile_alone PRIVATE -O0)
if(FSDP_PLAN_SANITIZE)  # the release build has done it
  set_target_properties(headers_compile_alone PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
