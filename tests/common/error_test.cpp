#include "runtime/common/error.h"

#include "tests/catch.h"

using namespace tandem;

TEST_CASE("an error prints what, where and how to fix", "[error]") {
  const Error e(ErrorKind::recipe, "recipe asks for tensor 4", "recipes/a.yaml:14:20", "set `tensor: 2`");
  CHECK(e.report() == "error: recipe asks for tensor 4\nwhere: recipes/a.yaml:14:20\nfix:   set `tensor: 2`\n");
  CHECK(exit_code(e.kind()) == 2);
  CHECK(e.at("rank 1").where() == "rank 1: recipes/a.yaml:14:20");
}

TEST_CASE("text of strangers cannot steer a terminal", "[error]") {
  CHECK(printable("a\x1b[31mred") == "a\\x1b[31mred");
  CHECK(printable("caf\xc3\xa9") == "caf\xc3\xa9");
  CHECK(printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(printable("\xe2\x80\xaetxt") == "\\xe2\\x80\\xaetxt");  // right-to-left override
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");        // a surrogate
  CHECK(printable("abcdef", 3) == "abc...");
}

TEST_CASE("a misspelt name finds its neighbour and nonsense finds none", "[error]") {
  const std::vector<std::string> names = {"nodes", "model", "link", "parallel"};
  CHECK(nearest_name("nodse", names) == "nodes");
  CHECK(nearest_name("paralel", names) == "parallel");
  CHECK(nearest_name("zzzzzz", names).empty());
}
