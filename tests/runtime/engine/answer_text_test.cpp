#include "runtime/engine/answer_text.h"

#include "tests/catch.h"

namespace tandem {
namespace {

/// What a matcher shows of text that comes in these pieces.
std::string push_all(StopMatcher& matcher, const std::vector<std::string>& pieces) {
  std::string shown;
  for (const std::string& piece : pieces) shown += matcher.push(piece);
  return shown + matcher.flush();
}

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::load(TANDEM_SOURCE_DIR "/examples/packs/ling-tiny-exl3-3.64bpw");
  return instance;
}

int32_t id_of(std::string_view token) {
  return tokenizer().find(token).value();
}

struct Shown {
  std::string reasoning, content;
  std::optional<std::string> stopped_by;
};

Shown show(const std::vector<int32_t>& tokens, const AnswerText::Options& options) {
  AnswerText text(tokenizer(), options);
  Shown shown;
  const auto add = [&](const AnswerText::Delta& delta) {
    CHECK(incomplete_utf8_tail(delta.content) == 0);
    CHECK(replace_invalid_utf8(delta.content) == delta.content);
    shown.reasoning += delta.reasoning;
    shown.content += delta.content;
  };
  for (const int32_t token : tokens) {
    add(text.push(token));
    if (text.stopped_by()) break;
  }
  add(text.finish());
  shown.stopped_by = text.stopped_by();
  return shown;
}

/// One token for every byte, so that every character is torn everywhere.
std::vector<int32_t> byte_tokens(std::string_view text) {
  static const std::vector<int32_t> ids = [] {
    std::vector<int32_t> found(256, -1);
    for (int32_t id = 0; id < tokenizer().vocabulary_size(); ++id)
      if (const auto bytes = tokenizer().token_bytes(id); bytes.size() == 1) found[static_cast<uint8_t>(bytes[0])] = id;
    return found;
  }();
  std::vector<int32_t> tokens;
  for (const char c : text) {
    REQUIRE(ids[static_cast<uint8_t>(c)] >= 0);
    tokens.push_back(ids[static_cast<uint8_t>(c)]);
  }
  return tokens;
}

TEST_CASE("a stop string is found at every way of cutting the text", "[answer_text]") {
  const std::string text = "one two<END>three";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    for (size_t second = cut; second <= text.size(); ++second) {
      StopMatcher matcher({"<END>", "<ENDING>"});
      const std::string shown =
          push_all(matcher, {text.substr(0, cut), text.substr(cut, second - cut), text.substr(second)});
      CHECK(shown == "one two");
      CHECK(matcher.matched() == "<END>");
    }
}

TEST_CASE("text that only began like a stop string is shown in the end", "[answer_text]") {
  StopMatcher matcher({"aab", "xyz"});
  CHECK(matcher.push("aaa").empty() == false);
  CHECK(matcher.push("x") == "aa");
  CHECK(matcher.push("y").empty());
  CHECK(matcher.flush() == "xy");
  CHECK_FALSE(matcher.matched());
}

TEST_CASE("the stop string that ends first wins, whichever way the text is cut", "[answer_text]") {
  const std::string text = "zabcd";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    StopMatcher matcher({"abcd", "bc", "abc"});
    CHECK(push_all(matcher, {text.substr(0, cut), text.substr(cut)}) == "z");
    CHECK(matcher.matched() == "abc");
  }
}

TEST_CASE("characters torn over tokens come out whole", "[answer_text]") {
  const std::string text = "na\u00efve \u20ac \U0001F600!";
  CHECK(show(byte_tokens(text), {}).content == text);
}

TEST_CASE("an answer that ends inside a character ends with the replacement character", "[answer_text]") {
  const auto tokens = byte_tokens("ok\U0001F600");
  for (size_t missing = 1; missing < 4; ++missing) {
    const std::vector<int32_t> cut(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(missing));
    CHECK(show(cut, {}).content == "ok\uFFFD");
  }
  CHECK(show(byte_tokens("a\xff"
                         "b"),
             {})
            .content ==
        "a\uFFFD"
        "b");
}

TEST_CASE("reasoning that the prompt opened is kept apart from the answer", "[answer_text]") {
  auto tokens = byte_tokens("2+2 is 4");
  tokens.push_back(id_of("</think>"));
  for (const int32_t id : byte_tokens("4.")) tokens.push_back(id);
  const Shown open = show(tokens, {.thinking_open = true});
  CHECK(open.reasoning == "2+2 is 4");
  CHECK(open.content == "4.");
  const Shown closed = show(tokens, {.thinking_open = false});
  CHECK(closed.reasoning.empty());
  CHECK(closed.content == "2+2 is 44.");
}

TEST_CASE("a tool call ends reasoning that was never closed", "[answer_text]") {
  auto tokens = byte_tokens("hm");
  tokens.push_back(id_of("<tool_call>"));
  const Shown shown = show(tokens, {.thinking_open = true});
  CHECK(shown.reasoning == "hm");
  CHECK(shown.content == "<tool_call>");
}

TEST_CASE("control tokens never show", "[answer_text]") {
  std::vector<int32_t> tokens = byte_tokens("a");
  for (const char* token : {"<|role_end|>", "<role>", "</role>", "<|endoftext|>"}) tokens.push_back(id_of(token));
  for (const int32_t id : byte_tokens("b")) tokens.push_back(id);
  CHECK(show(tokens, {}).content == "ab");
  CHECK(show(tokens, {.chat = false}).content == "ab");
}

TEST_CASE("stop strings end the answer, not the reasoning; an end of turn that is spelled out ends both",
          "[answer_text]") {
  auto tokens = byte_tokens("x STOP y");
  tokens.push_back(id_of("</think>"));
  for (const int32_t id : byte_tokens("z STOP w")) tokens.push_back(id);
  const Shown shown = show(tokens, {.thinking_open = true, .stop = {"STOP"}});
  CHECK(shown.reasoning == "x STOP y");
  CHECK(shown.content == "z ");
  CHECK(shown.stopped_by == "STOP");
  const Shown spelled = show(byte_tokens("x<|role_end|>y"), {.thinking_open = true, .control_stop = {"<|role_end|>"}});
  CHECK(spelled.reasoning == "x");
  CHECK(spelled.stopped_by == "<|role_end|>");
}

TEST_CASE("whether a prompt ends inside reasoning is told by its tokens, not its words", "[answer_text]") {
  const auto tokens = [&](const PromptText& text) { return tokenizer().encode(text); };
  CHECK(ends_inside_reasoning(tokenizer(), tokens(PromptText::trusted("a</think>b<think>"))));
  CHECK_FALSE(ends_inside_reasoning(tokenizer(), tokens(PromptText::trusted("<think></think>"))));
  CHECK_FALSE(ends_inside_reasoning(tokenizer(), tokens(PromptText::untrusted("<think>"))));
  CHECK_FALSE(ends_inside_reasoning(tokenizer(), {}));
}

}  // namespace
}  // namespace tandem
