# Compiler, warnings, sanitizers: what every target of the project is built with.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()

# -g1 keeps line numbers for backtraces at a third of the size and link time of -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2")

add_library(tandem_options INTERFACE)
target_compile_features(tandem_options INTERFACE cxx_std_20)
target_compile_options(tandem_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers
                       -fno-math-errno -ffp-contract=off)
target_include_directories(tandem_options INTERFACE ${PROJECT_SOURCE_DIR})
if(TANDEM_SANITIZE)
  target_compile_options(tandem_options INTERFACE -fsanitize=address,undefined
                         -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(tandem_options INTERFACE -fsanitize=address,undefined)
endif()
