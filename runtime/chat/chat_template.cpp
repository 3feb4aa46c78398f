#include "runtime/chat/chat_template.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/chat/interpreter.h"
#include "runtime/chat/lexer.h"
#include "runtime/chat/parser.h"
#include "runtime/common/error.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr uintmax_t kMaxTemplateBytes = 1 << 20;
constexpr uintmax_t kMaxConfigBytes = 16 << 20;

std::string read_small_file(const fs::path& path, uintmax_t limit) {
  std::error_code failed;
  const uintmax_t size = fs::file_size(path, failed);
  if (!failed && size > limit)
    throw Error(
        ErrorKind::pack,
        path.filename().string() + " has " + std::to_string(size) + " bytes, more than " + std::to_string(limit),
        path.string(), "use the file that the model was published with");
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (failed || !in)
    throw Error(ErrorKind::pack, "cannot read " + path.filename().string(), path.string(), "fetch the pack again");
  return text.str();
}

/// tokenizer_config.json writes a token as text or as {"content": text, ...}.
std::string token_text(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return "";
}

/// The template in tokenizer_config.json: a text, or a list of named ones of which "default" is meant.
std::string template_text(const ordered_json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return "";
  for (const auto& entry : *it)
    if (entry.is_object() && entry.value("name", "") == "default" && entry.contains("template") &&
        entry["template"].is_string())
      return entry["template"].get<std::string>();
  return "";
}

}  // namespace

struct ChatTemplate::Impl {
  std::string name;
  ChatTemplateLimits limits;
  jinja::Block block;
  jinja::Dict tokens;  // bos_token and the like
};

ChatTemplate::ChatTemplate(std::string_view source, std::string_view name, ChatTemplateLimits limits) {
  impl_ = std::make_unique<Impl>();
  impl_->name = name;
  impl_->limits = limits;
  try {
    impl_->block = jinja::parse(source);
  } catch (const jinja::SyntaxError& e) {
    throw Error(ErrorKind::pack, "the chat template is not well formed: " + e.what,
                impl_->name + ":" + std::to_string(e.line), "use the template that the model was published with");
  }
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::load(const fs::path& folder, ChatTemplateLimits limits) {
  const fs::path own = folder / "chat_template.jinja", config_path = folder / "tokenizer_config.json";
  ordered_json config = ordered_json::object();
  if (fs::exists(config_path)) {
    config = ordered_json::parse(read_small_file(config_path, kMaxConfigBytes), nullptr, /*allow_exceptions=*/false);
    if (!config.is_object())
      throw Error(ErrorKind::pack, "tokenizer_config.json is not a JSON object", config_path.string(),
                  "fetch the pack again");
  }
  const bool has_file = fs::exists(own);
  const std::string source = has_file ? read_small_file(own, kMaxTemplateBytes) : template_text(config);
  if (source.empty() || source.size() > kMaxTemplateBytes)
    throw Error(ErrorKind::pack,
                source.empty() ? "the pack has no chat template" : "the pack's chat template is too large",
                folder.string(), "add chat_template.jinja to the pack, or use /v1/completions");
  ChatTemplate loaded(source, has_file ? "chat_template.jinja" : "tokenizer_config.json (chat_template)", limits);
  for (const char* token : {"bos_token", "eos_token", "pad_token", "unk_token"})
    if (config.contains(token))
      loaded.impl_->tokens.set(jinja::Value::text(token), jinja::Value::text(token_text(config[token])));
  return loaded;
}

PromptText ChatTemplate::render(const ordered_json& arguments) const {
  jinja::Budget budget(impl_->limits.max_steps, impl_->limits.max_output_bytes);
  try {
    if (!arguments.is_object()) jinja::fail("the arguments of a chat template are an object");
    jinja::Dict variables = impl_->tokens;
    for (const auto& [key, value] : arguments.items())
      variables.set(jinja::Value::text(key), jinja::from_json(value, budget));
    return jinja::render(impl_->block, variables, budget, impl_->limits.max_depth);
  } catch (const jinja::RenderError& e) {
    const bool limit = e.cause == jinja::TemplateError::Cause::limit;
    throw Error(limit ? ErrorKind::pack : ErrorKind::usage, "the chat template stopped: " + e.what,
                impl_->name + ":" + std::to_string(e.line),
                limit ? "send fewer or shorter messages, or use the template that the model was published with"
                      : "check the messages' roles, contents and tool calls against the template");
  } catch (const jinja::TemplateError& e) {
    throw Error(ErrorKind::usage, e.what, impl_->name, "check the request's messages");
  }
}

}  // namespace tandem
