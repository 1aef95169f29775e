# Tests of README.md and docs/: commands run, generated tables are up to date, links point to something.
set(docs_scripts ${CMAKE_CURRENT_SOURCE_DIR}/docs)

# Every command in the ```sh blocks runs.
add_test(NAME readme_commands
  COMMAND ${docs_scripts}/commands.sh ${CMAKE_SOURCE_DIR}/README.md $<TARGET_FILE:fsdp-plan>)
set(docs_tests readme_commands)
file(GLOB documents CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
# Which documents have commands is read now.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${documents})
foreach(document ${documents})
  file(STRINGS ${document} sh_blocks REGEX "^```sh$")
  if(sh_blocks)
    get_filename_component(name ${document} NAME_WE)
    string(REPLACE "-" "_" name ${name})
    add_test(NAME docs_commands_${name} COMMAND ${docs_scripts}/commands.sh ${document} $<TARGET_FILE:fsdp-plan>)
    list(APPEND docs_tests docs_commands_${name})
  endif()
endforeach()

add_test(NAME docs_tables
  COMMAND ${docs_scripts}/tables.sh ${CMAKE_SOURCE_DIR}/docs/accuracy.md $<TARGET_FILE:fsdp-plan>)
add_test(NAME docs_links COMMAND ${docs_scripts}/links.sh ${CMAKE_SOURCE_DIR})
list(APPEND docs_tests docs_tables docs_links)
set_tests_properties(${docs_tests} PROPERTIES TIMEOUT 900 COST 100)  # they search
