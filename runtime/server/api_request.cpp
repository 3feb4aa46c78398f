#include "runtime/server/api_request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "runtime/server/api_error.h"
#include "runtime/server/json_fields.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

uint64_t fresh_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

std::vector<std::string> parse_stop(const JsonFields& fields) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    for (const Json& stop : *value) {
      if (!stop.is_string()) throw bad_request("`stop` holds " + json_type_name(stop) + ", expected strings", "stop");
      stops.push_back(stop.get<std::string>());
    }
  } else {
    throw bad_request("`stop` is " + json_type_name(*value) + ", expected a string or an array of strings", "stop");
  }
  std::erase(stops, "");
  if (stops.size() > kMaxStops)
    throw bad_request("`stop` holds " + std::to_string(stops.size()) + " strings, at most " +
                          std::to_string(kMaxStops) + " are possible",
                      "stop");
  for (const std::string& stop : stops)
    if (stop.size() > kMaxStopBytes)
      throw bad_request("a string of `stop` has " + std::to_string(stop.size()) + " bytes, at most " +
                            std::to_string(kMaxStopBytes) + " are possible",
                        "stop");
  return stops;
}

void parse_logit_bias(const JsonFields& fields, SamplingParameters& sampling) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > 1024) throw bad_request("`logit_bias` holds more than 1024 tokens", "logit_bias");
  for (const auto& [key, bias] : biases->items()) {
    int32_t id = 0;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (code != std::errc() || end != key.data() + key.size() || id < 0)
      throw bad_request("`" + key + "` in `logit_bias` is no token id", "logit_bias");
    const double value = JsonFields(*biases, "logit_bias.").number(key.c_str(), -100, 100).value_or(0);
    sampling.logit_bias.emplace_back(id, value);
  }
}

/// What this server does not do must not look as if it had been done.
void refuse_unsupported(const JsonFields& fields) {
  if (fields.integer("n", 1, 128).value_or(1) != 1)
    throw bad_request("`n` is more than 1: this server gives one answer a request", "n");
  if (const Json* logprobs = fields.find("logprobs"); logprobs != nullptr && *logprobs != false)
    throw bad_request("`logprobs` is not supported by this server", "logprobs");
  if (const Json* format = fields.object("response_format")) {
    const std::string type = JsonFields(*format, "response_format.").text("type").value_or("text");
    if (type != "text")
      throw bad_request("`response_format` of type `" + type + "` is not supported by this server", "response_format");
  }
}

void parse_common(const JsonFields& fields, CommonRequest& request) {
  refuse_unsupported(fields);
  request.model = fields.text("model").value_or("");
  SamplingParameters& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 0, 100).value_or(sampling.temperature);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(sampling.top_p);
  sampling.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, kMaxId).value_or(sampling.top_k));
  sampling.min_p = fields.number("min_p", 0, 1).value_or(sampling.min_p);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(sampling.presence_penalty);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(sampling.frequency_penalty);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0.01, 100).value_or(sampling.repetition_penalty);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : fresh_seed();
  parse_logit_bias(fields, sampling);

  request.max_tokens = fields.integer("max_completion_tokens", 1, kMaxId);
  if (const auto max_tokens = fields.integer("max_tokens", 1, kMaxId); !request.max_tokens)
    request.max_tokens = max_tokens;
  request.stop = parse_stop(fields);
  if (const Json* ids = fields.array("stop_token_ids"))
    request.stop_token_ids = parse_token_ids(*ids, "stop_token_ids");
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options"))
    request.include_usage = JsonFields(*options, "stream_options.").boolean("include_usage").value_or(false);
}

/// A message's content as the template wants it, whatever form the client chose.
std::string content_text(const Json& message, const std::string& path) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    throw bad_request("`" + path + "` is " + json_type_name(*content) + ", expected a string or parts", path);
  std::string text;
  for (const Json& part : *content) {
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const std::string type = part.is_object() ? JsonFields(part, path + ".").text("type").value_or("") : "";
    if (type != "text")
      throw bad_request("`" + path + "` holds a part of type `" + type + "`: only text is possible", path);
    text += JsonFields(part, path + ".").text("text").value_or("");
  }
  return text;
}

/// OpenAI sends a call's arguments as a string of JSON; templates walk over an object.
void open_arguments(Json& call, const std::string& path) {
  if (!call.is_object()) throw bad_request("`" + path + "` is " + json_type_name(call) + ", expected an object", path);
  Json& function = call.contains("function") ? call["function"] : call;
  if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
    throw bad_request("`" + path + "` names no function", path);
  Json& arguments = function["arguments"];
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    arguments = text.empty() ? Json::object() : parse_body(text);
  }
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object())
    throw bad_request("the arguments of `" + path + "` are " + json_type_name(arguments) + ", expected an object",
                      path);
}

Json normal_message(const Json& given, const std::string& path) {
  if (!given.is_object())
    throw bad_request("`" + path + "` is " + json_type_name(given) + ", expected an object", path);
  Json message = given;
  const auto role = JsonFields(given, path + ".").text("role");
  if (!role) throw bad_request("`" + path + "` has no role", path + ".role");
  if (*role == "developer")
    message["role"] = "system";
  else if (*role != "system" && *role != "user" && *role != "assistant" && *role != "tool")
    throw bad_request("`" + *role + "` is no role: expected system, user, assistant or tool", path + ".role");
  message["content"] = content_text(given, path + ".content");
  for (const char* name : {"reasoning_content", "reasoning"}) {  // both names are in use for the same thing
    const auto reasoning = JsonFields(given, path + ".").text(name);
    if (reasoning && !message.contains("reasoning_content")) message["reasoning_content"] = *reasoning;
  }
  if (const Json* calls = JsonFields(given, path + ".").array("tool_calls")) {
    message["tool_calls"] = *calls;
    for (size_t i = 0; i < calls->size(); ++i)
      open_arguments(message["tool_calls"][i], path + ".tool_calls[" + std::to_string(i) + "]");
  } else {
    message.erase("tool_calls");
  }
  return message;
}

bool tools_are_wanted(const JsonFields& fields) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == "auto") return true;
  if (*choice == "none") return false;
  throw bad_request("`tool_choice` can be `auto` or `none`: this server cannot force a call", "tool_choice");
}

}  // namespace

std::vector<int32_t> parse_token_ids(const Json& array, const std::string& name) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& id : array) {
    if (!id.is_number_integer() || id < 0 || id > kMaxId)
      throw bad_request("`" + name + "` holds what is no token id", name);
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Json parse_body(std::string_view body) {
  // Copying and printing nested values recurse: without a limit a few kilobytes of brackets would end the process.
  const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw bad_request("the JSON is more than " + std::to_string(kMaxDepth) + " levels deep");
    return true;
  };
  try {
    return Json::parse(body, limit_depth);
  } catch (const Json::exception& error) {
    throw bad_request(std::string("the body is not valid JSON: ") + error.what());
  }
}

ChatRequest parse_chat_request(std::string_view body, const SamplingParameters& defaults) {
  const Json parsed = parse_body(body);
  if (!parsed.is_object()) throw bad_request("the body is " + json_type_name(parsed) + ", expected an object");
  const JsonFields fields(parsed);
  ChatRequest request;
  request.sampling = defaults;
  parse_common(fields, request);

  Json& arguments = request.template_arguments = Json::object();
  if (const auto effort = fields.text("reasoning_effort")) {
    arguments["reasoning_effort"] = *effort;
    if (*effort == "none") arguments["enable_thinking"] = false;
  }
  if (const Json* extra = fields.object("chat_template_kwargs"))
    for (const auto& [key, value] : extra->items()) arguments[key] = value;

  const Json* messages = fields.array("messages");
  if (messages == nullptr || messages->empty())
    throw bad_request("`messages` is missing or empty: a chat needs at least one message", "messages");
  Json normal = Json::array();
  for (size_t i = 0; i < messages->size(); ++i)
    normal.push_back(normal_message((*messages)[i], "messages[" + std::to_string(i) + "]"));
  arguments["messages"] = std::move(normal);

  arguments.erase("tools");
  const bool wanted = tools_are_wanted(fields);
  if (const Json* tools = fields.array("tools"); tools != nullptr && !tools->empty() && wanted) {
    for (const Json& tool : *tools)
      if (!tool.is_object()) throw bad_request("`tools` holds " + json_type_name(tool) + ", expected objects", "tools");
    arguments["tools"] = *tools;
  }
  arguments["add_generation_prompt"] = true;
  return request;
}

CompletionRequest parse_completion_request(std::string_view body, const SamplingParameters& defaults) {
  const Json parsed = parse_body(body);
  if (!parsed.is_object()) throw bad_request("the body is " + json_type_name(parsed) + ", expected an object");
  const JsonFields fields(parsed);
  CompletionRequest request;
  request.sampling = defaults;
  parse_common(fields, request);
  if (fields.boolean("echo").value_or(false)) throw bad_request("`echo` is not supported by this server", "echo");
  if (!fields.text("suffix").value_or("").empty())
    throw bad_request("`suffix` is not supported by this server", "suffix");
  if (fields.integer("best_of", 1, 128).value_or(1) != 1)
    throw bad_request("`best_of` is more than 1: this server gives one answer a request", "best_of");

  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw bad_request("`prompt` is missing", "prompt");
  if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) prompt = &prompt->front();
  if (prompt->is_string()) {
    request.text = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    request.tokens = parse_token_ids(*prompt, "prompt");
  } else {
    throw bad_request("`prompt` must be one string or one array of token ids", "prompt");
  }
  return request;
}

}  // namespace tandem
