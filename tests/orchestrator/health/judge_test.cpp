#include "orchestrator/health/judge.h"

#include "tests/catch.h"

using namespace tandem::health;

namespace {

std::string repeat(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

std::string judge(const std::string& text, const std::string& expect = "", const std::string& finish = "stop") {
  return judge_answer({"prompt", text, finish, 0}, expect).value_or("sound");
}

}  // namespace

TEST_CASE("sound answers pass", "[health]") {
  for (const char* text :
       {"42", "12 + 30 = 42.", "The answer is **42**!", "Caf\xc3\xa9, na\xc3\xafve, \xe6\x97\xa5\xe6\x9c\xac",
        "line one\n\tline two\r\n", "a|b\n-----|-----\n1|2\n", "ha ha ha ha!", "\xf0\x9f\x98\x80"})
    CHECK(judge(text) == "sound");
  CHECK(judge("= = = = = = = = = = = = = = = = = = = = = = = = = = = =") == "sound");
  CHECK(judge(repeat("-", 80)) == "sound");
}

TEST_CASE("the expected text must stand by itself, whatever its case", "[health]") {
  CHECK(judge("It is 42.", "42") == "sound");
  CHECK(judge("paris", "Paris") == "sound");
  CHECK(judge("1425", "42") == "it does not contain `42`");
  CHECK(judge("x42", "42") == "it does not contain `42`");
  CHECK(judge("43", "42") == "it does not contain `42`");
  CHECK(judge("4", "42", "length") == "it does not contain `42`, and was cut off by max_tokens");
  CHECK(judge("142 or 42", "42") == "sound");
}

TEST_CASE("empty, torn and controlling text is refused", "[health]") {
  CHECK(judge("") == "it is empty");
  CHECK(judge(" \n\t ") == "it is empty");
  CHECK(judge("", "", "length") == "it was cut off before the answer began");
  CHECK_THAT(judge("4\xef\xbf\xbd"), ContainsSubstring("U+FFFD"));
  CHECK_THAT(judge("\x1b[31m42"), ContainsSubstring("control characters"));
  CHECK_THAT(judge("42\xff"), ContainsSubstring("invalid UTF-8"));
  CHECK_THAT(judge(std::string("4\0002", 3)), ContainsSubstring("control characters"));
}

TEST_CASE("text of a collapsed model is refused", "[health]") {
  CHECK_THAT(judge(repeat("!", 40)), ContainsSubstring("one character, `!`"));
  CHECK_THAT(judge("42 " + repeat("0", 30), "42"), ContainsSubstring("over and over"));
  CHECK_THAT(judge(repeat("the ", 30)), ContainsSubstring("over and over"));
  CHECK_THAT(judge("So " + repeat("I will answer now. ", 8)), ContainsSubstring("I will answer now."));
  CHECK_THAT(judge(repeat("\xe7\x9a\x84", 40)), ContainsSubstring("over and over"));
  std::string few_words;
  for (int i = 0; i < 60; ++i) few_words += std::string(i % 3 == 0 ? "no " : i % 7 == 0 ? "yes " : "maybe ");
  CHECK(judge(few_words) != "sound");
}

TEST_CASE("ordinary prose of some length is not taken for a loop", "[health]") {
  const std::string prose =
      "The river rises in the hills to the north, and runs for some forty miles through meadows and small towns before "
      "it reaches the sea. In spring the water is high and brown; by late summer one can cross it on foot in a dozen "
      "places. The old mill at the second bend was built of the same grey stone as the church, and for many years the "
      "two of them were the only buildings that the floods had spared.";
  CHECK(judge(prose) == "sound");
  CHECK(judge("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24") == "sound");
}

TEST_CASE("an answer must say how it ended", "[health]") {
  CHECK(judge("42", "42", "") == "the server gave no finish_reason");
  CHECK(judge("42", "42", "error") == "its finish_reason is `error`");
  CHECK(judge("42 and so on", "42", "length") == "sound");
}
