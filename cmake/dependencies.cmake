# Installed packages only: Debian 12 and Ubuntu 24.04 carry all of them (see README.md).
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)

if(TANDEM_BUILD_ORCHESTRATOR)
  find_package(yaml-cpp REQUIRED)
  find_package(Boost REQUIRED COMPONENTS filesystem)  # Boost.Process needs it
endif()
if(TANDEM_BUILD_RUNTIME)
  pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
  find_package(Gloo REQUIRED)
endif()
if(TANDEM_BUILD_TESTS)
  find_package(Catch2 REQUIRED)  # 2.13 on Debian 12, 3.x on Ubuntu 24.04; tests/catch.h hides the difference
endif()
