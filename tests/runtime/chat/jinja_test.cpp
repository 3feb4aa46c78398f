// The interpreter against Jinja2 itself: every template of tests/data/chat/cases.json is rendered by both.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/chat/chat_template.h"
#include "runtime/common/error.h"
#include "tests/catch.h"

using namespace tandem;
using nlohmann::ordered_json;

namespace {

/// What Jinja2 makes of the cases, or nothing where python3-jinja2 is not installed.
std::optional<ordered_json> render_with_jinja2(const std::string& cases_path) {
  if (std::system("python3 -c 'import jinja2' 2>/dev/null || /usr/bin/python3 -c 'import jinja2' 2>/dev/null") != 0)
    return {};
  const std::string script = TANDEM_SOURCE_DIR "/tests/runtime/chat/render_with_jinja2.py";
  const std::string python =
      std::system("python3 -c 'import jinja2' 2>/dev/null") == 0 ? "python3" : "/usr/bin/python3";
  FILE* pipe = popen((python + " '" + script + "' < '" + cases_path + "'").c_str(), "r");
  REQUIRE(pipe);
  std::string output;
  char buffer[65536];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  REQUIRE(pclose(pipe) == 0);
  return ordered_json::parse(output);
}

}  // namespace

TEST_CASE("templates render as Jinja2 renders them", "[jinja]") {
  const std::string path = TANDEM_TEST_DATA "/chat/cases.json";
  const auto expected = render_with_jinja2(path);
  if (!expected) TANDEM_SKIP("needs python3-jinja2");
  const ordered_json cases = ordered_json::parse(std::ifstream(path));
  REQUIRE(cases.size() == expected->size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto source = cases[i]["template"].get<std::string>();
    INFO("template: " << source);
    INFO("Jinja2: " << (*expected)[i].dump());
    std::string text;
    bool refused = false;
    try {
      text = ChatTemplate(source, "case").render(cases[i]["arguments"]).text();
    } catch (const Error& e) {
      refused = true;
      text = e.what();
    }
    INFO("ours: " << text);
    CHECK(refused == (*expected)[i].contains("error"));
    if (!refused && (*expected)[i].contains("text")) CHECK(text == (*expected)[i]["text"].get<std::string>());
  }
}
