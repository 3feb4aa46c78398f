# tandem_library(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...])
#   A static library tandem_NAME with the alias tandem::NAME: one per room of the source tree.
function(tandem_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(tandem_${name} STATIC ${arg_SOURCES})
  add_library(tandem::${name} ALIAS tandem_${name})
  target_link_libraries(tandem_${name} PUBLIC tandem_options ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
endfunction()

# tandem_program(NAME OUTPUT name SOURCES ... LINK ...): an installed executable.
function(tandem_program target)
  cmake_parse_arguments(arg "" "OUTPUT" "SOURCES;LINK" ${ARGN})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE tandem_options ${arg_LINK})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_OUTPUT}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# tandem_test(NAME SOURCES ... LINK ... [LABELS ...] [TIMEOUT seconds])
#   A Catch2 program test_NAME, run by ctest as NAME. tests/data is TANDEM_TEST_DATA.
function(tandem_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(test_${name} ${arg_SOURCES})
  target_link_libraries(test_${name} PRIVATE tandem_test_main ${arg_LINK})
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND test_${name} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# tandem_benchmark(NAME SOURCES ... LINK ...): bench_NAME, built with the rest, never run by ctest.
function(tandem_benchmark name)
  if(NOT TANDEM_BUILD_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(bench_${name} ${arg_SOURCES})
  target_link_libraries(bench_${name} PRIVATE tandem_options ${arg_LINK})
  set_target_properties(bench_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()
