#include "orchestrator/cli/stage_display.h"

#include <sstream>

#include "tests/catch.h"

using namespace tandem;
using namespace tandem::cli;
using launch::Stage;

namespace {

std::string shown(const DisplayOptions& options, const std::function<void(StageDisplay&)>& work) {
  std::ostringstream out;
  {
    StageDisplay display(out, options);
    work(display);
  }
  return out.str();
}

void run_two_stages(StageDisplay& display) {
  display.begin(Stage::fetch);
  display.progress("1 MiB of 2 MiB", 1 << 20, 2 << 20);
  display.end("downloaded 2.0 MiB", false);
  display.begin(Stage::split);
  display.end("all rank folders are there", true);
}

}  // namespace

TEST_CASE("away from a terminal every stage is a plain line", "[cli]") {
  const std::string text = shown({}, run_two_stages);
  CHECK_THAT(text, ContainsSubstring("[3/7] fetch    1 MiB of 2 MiB\n"));
  CHECK_THAT(text, ContainsSubstring("[3/7] fetch    downloaded 2.0 MiB  ("));
  CHECK_THAT(text, ContainsSubstring("[4/7] split    all rank folders are there  (skipped)\n"));
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
}

TEST_CASE("on a terminal one line is rewritten, never wider than the window", "[cli]") {
  DisplayOptions options;
  options.live = true;
  options.columns = 40;
  const std::string text = shown(options, [](StageDisplay& display) {
    display.begin(Stage::fetch);
    display.progress(std::string(200, 'x'), 0, 0);
    display.end("done", false);
  });
  const size_t begin = text.find("[3/7]");
  CHECK(text.find("\r\x1b[K", begin) - begin <= 39);
  CHECK_THAT(text, ContainsSubstring("\r\x1b[K[3/7] fetch    done"));
}

TEST_CASE("colour repeats what the words say", "[cli]") {
  DisplayOptions options;
  options.color = true;
  std::string colored = shown(options, run_two_stages);
  CHECK(colored.find("\x1b[32m") != std::string::npos);
  for (size_t at; (at = colored.find('\x1b')) != std::string::npos;) colored.erase(at, colored.find('m', at) - at + 1);
  CHECK_THAT(colored, ContainsSubstring("(skipped)"));
}

TEST_CASE("quiet says nothing, and text of strangers cannot move the cursor", "[cli]") {
  DisplayOptions options;
  options.quiet = true;
  CHECK(shown(options, run_two_stages).empty());
  const std::string text = shown({}, [](StageDisplay& display) {
    display.begin(Stage::health);
    display.end("\x1b[2J", false);
  });
  CHECK_THAT(text, ContainsSubstring("\\x1b[2J"));
}
