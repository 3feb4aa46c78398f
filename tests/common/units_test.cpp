#include "runtime/common/units.h"

#include "tests/catch.h"

using namespace tandem;
using namespace std::chrono_literals;

TEST_CASE("sizes, tokens, bandwidths and durations are read with their units", "[units]") {
  CHECK(parse_bytes("2GiB") == int64_t{2} << 30);
  CHECK(parse_bytes("220.6GB") == 220'600'000'000);
  CHECK(parse_bytes("4096B") == 4096);
  CHECK(parse_tokens("262144") == 262144);
  CHECK(parse_tokens("256k") == 262144);
  CHECK(parse_bandwidth("90Gbit/s") == 90'000'000'000);
  CHECK(parse_duration("20us") == 20us);
  CHECK(parse_duration("15m") == 15min);
}

TEST_CASE("a number without its unit, or with anything else around it, is refused", "[units]") {
  for (const char* text : {"", "2", "2 GiB", "-2GiB", "+2GiB", "1e9B", ".5GiB", "5.GiB", "1.2.3GiB", "2gib", "2GiBs",
                           "99999999999999999999B", "9000000000TiB"})
    CHECK_FALSE(parse_bytes(text));
  for (const char* text : {"20", "20 us", "1min"}) CHECK_FALSE(parse_duration(text));
  for (const char* text : {"90Gb/s", "90"}) CHECK_FALSE(parse_bandwidth(text));
}

TEST_CASE("numbers are shown the way people read them", "[units]") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(111'024'000'000) == "103.4 GiB");
  CHECK(format_bandwidth(97.2e9) == "97.2 Gbit/s");
  CHECK(format_duration(125s) == "2m 05s");
  CHECK(format_duration(12300ns) == "12.3 us");
}
