#include "runtime/server/api_request.h"

#include "runtime/server/api_error.h"
#include "tests/catch.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest chat(const std::string& fields) {
  return parse_chat_request(
      R"({"messages": [{"role": "user", "content": "hi"}])" + (fields.empty() ? "" : ", " + fields) + "}", {});
}

/// The error's field and message.
std::pair<std::string, std::string> refusal(const std::string& body) {
  try {
    parse_chat_request(body, {});
  } catch (const ApiError& error) {
    CHECK(error.status() == 400);
    const Json inner = error.body()["error"];
    return {inner["param"].is_null() ? "" : inner["param"].get<std::string>(), inner["message"]};
  }
  return {"", "no error"};
}

std::pair<std::string, std::string> field_refusal(const std::string& fields) {
  return refusal(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}");
}

TEST_CASE("every field of a chat request is read", "[api]") {
  const ChatRequest request = chat(
      R"("model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 1,
         "frequency_penalty": -1, "repetition_penalty": 1.1, "seed": -3, "stop": ["a", "b"], "max_tokens": 9,
         "stop_token_ids": [1, 2], "logit_bias": {"5": -100}, "stream": true, "stream_options": {"include_usage": true},
         "ignore_eos": true, "nobody_knows_this": {"x": []})");
  CHECK(request.model == "m");
  CHECK(request.sampling.temperature == 0.5);
  CHECK(request.sampling.top_p == 0.9);
  CHECK(request.sampling.top_k == 7);
  CHECK(request.sampling.min_p == 0.1);
  CHECK(request.sampling.presence_penalty == 1);
  CHECK(request.sampling.frequency_penalty == -1);
  CHECK(request.sampling.repetition_penalty == 1.1);
  CHECK(request.sampling.seed == static_cast<uint64_t>(-3));
  CHECK(request.sampling.logit_bias == std::vector<std::pair<int32_t, double>>{{5, -100.0}});
  CHECK(request.stop == std::vector<std::string>{"a", "b"});
  CHECK(request.stop_token_ids == std::vector<int32_t>{1, 2});
  CHECK(request.max_tokens == 9);
  CHECK(request.ignore_eos);
  CHECK(request.stream);
  CHECK(request.include_usage);
}

TEST_CASE("what a request leaves out, or sets to null, comes from the pack", "[api]") {
  SamplingParameters defaults;
  defaults.temperature = 0.7;
  defaults.top_k = 20;
  const auto request =
      parse_chat_request(R"({"messages": [{"role": "user", "content": "hi"}], "temperature": null})", defaults);
  CHECK(request.sampling.temperature == 0.7);
  CHECK(request.sampling.top_k == 20);
  CHECK_FALSE(request.max_tokens);
  CHECK_FALSE(request.stream);
  CHECK(chat(R"("top_k": -1)").sampling.top_k == 0);
  CHECK(chat(R"("max_tokens": 512.0)").max_tokens == 512);
  CHECK(chat(R"("max_tokens": 5, "max_completion_tokens": 6)").max_tokens == 6);
  CHECK(chat("").sampling.seed != chat("").sampling.seed);
}

TEST_CASE("wrong types and values are refused by the field's name", "[api]") {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": -1)", "temperature"},
      {R"("temperature": 1e999)", ""},
      {R"("top_p": 1.5)", "top_p"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": "5")", "max_tokens"},
      {R"("max_tokens": 18446744073709551615)", "max_tokens"},
      {R"("seed": 1.5)", "seed"},
      {R"("stop": 5)", "stop"},
      {R"("stop": [5])", "stop"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": [])", "stream_options"},
      {R"("stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 200})", "logit_bias.1"},
      {R"("stop_token_ids": [-1])", "stop_token_ids"},
      {R"("model": 5)", "model"},
      {R"("tools": {})", "tools"},
      {R"("tools": [1])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("n": 2)", "n"},
      {R"("logprobs": true)", "logprobs"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
  };
  for (const auto& [fields, param] : cases) {
    INFO(fields);
    const auto [got, message] = field_refusal(fields);
    CHECK(got == param);
    CHECK(message != "no error");
  }
  CHECK(field_refusal(R"("temperature": "hot")").second ==
        "`temperature` is a string, expected a number of 0.0 to 100.0");
  CHECK(chat(R"("n": 1, "logprobs": false, "response_format": {"type": "text"}, "tool_choice": "auto")").model.empty());
}

TEST_CASE("messages that no template could take are refused where they are", "[api]") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"content": "hi"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}, {"role": "wizard", "content": "hi"}]})", "messages[1].role"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]})", "messages[0].tool_calls[0]"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]})",
       "messages[0].tool_calls[0]"},
      {R"({"messages": [{"role": "assistant", "reasoning_content": 5}]})", "messages[0].reasoning_content"},
  };
  for (const auto& [body, param] : cases) {
    INFO(body);
    CHECK(refusal(body).first == param);
  }
}

TEST_CASE("messages reach the template in one form, whichever the client chose", "[api]") {
  const ChatRequest request = parse_chat_request(
      R"({"messages": [{"role": "developer", "content": "be brief"},
                       {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
                          {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
                       {"role": "tool", "content": "ok", "tool_call_id": "1"}],
          "tools": [], "chat_template_kwargs": {"enable_thinking": false, "messages": "mine"}})",
      {});
  const Json& messages = request.template_arguments["messages"];
  REQUIRE(messages.is_array());
  CHECK(messages[0]["role"] == "system");
  CHECK(messages[1]["content"] == "ab");
  CHECK(messages[2]["content"] == "");
  CHECK(messages[2]["reasoning_content"] == "hm");
  CHECK(messages[2]["tool_calls"][0]["function"]["arguments"].dump() == R"({"z":1,"a":2})");
  CHECK_FALSE(request.template_arguments.contains("tools"));
  CHECK(request.template_arguments["enable_thinking"] == false);
  CHECK(request.template_arguments["add_generation_prompt"] == true);
}

TEST_CASE("tools reach the template unless the client wants no call", "[api]") {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  CHECK(chat(tools).template_arguments["tools"].size() == 1);
  CHECK_FALSE(chat(tools + R"(, "tool_choice": "none")").template_arguments.contains("tools"));
}

TEST_CASE("a body that is no JSON object, or too deep, is refused", "[api]") {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("5"), std::string("{\"a\": \xff}"),
        std::string(1'000'000, '['), "{\"messages\":" + std::string(100'000, '[') + "}"})
    CHECK(refusal(body).second != "no error");
}

TEST_CASE("a completion's prompt is one string or one array of ids", "[api]") {
  const auto parse = [](const std::string& prompt) {
    return parse_completion_request(R"({"prompt": )" + prompt + "}", {});
  };
  CHECK(parse(R"("abc")").text == "abc");
  CHECK(parse(R"(["abc"])").text == "abc");
  CHECK(parse("[1, 2]").tokens == std::vector<int32_t>{1, 2});
  CHECK(parse("[[1, 2]]").tokens == std::vector<int32_t>{1, 2});
  for (const char* bad : {"5", "[]", "{}", R"(["a", "b"])", "[[1], [2]]", "[1, \"a\"]", "[-1]", "[4294967296]", "null"})
    CHECK_THROWS_AS(parse(bad), ApiError);
}

}  // namespace
}  // namespace tandem
