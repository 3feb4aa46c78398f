#pragma once
// One include for Catch2 2.13 (Debian 12) and 3.x (Ubuntu 24.04).
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#define TANDEM_SKIP(reason) SKIP(reason)
#else
#include <catch2/catch.hpp>
/// Catch2 2.x calls it Contains; 3.x keeps that name for ranges.
inline auto ContainsSubstring(const std::string& part) { return Catch::Matchers::Contains(part); }
/// Catch2 2.x has no SKIP: the reason is printed, the rest of the case is left out.
#define TANDEM_SKIP(reason)       \
  do {                            \
    WARN("skipped: " << (reason)); \
    return;                       \
  } while (false)
#endif
