#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/tokenizer/prompt_text.h"

namespace tandem {

/// What one rendering may cost; a template is part of a pack, and packs come from strangers.
struct ChatTemplateLimits {
  long max_steps = 2'000'000;          ///< evaluated expressions and statements
  size_t max_output_bytes = 16 << 20;  ///< also bounds every intermediate string
  int max_depth = 64;                  ///< nested macro calls and expressions
};

/// A pack's chat template: the subset of Jinja that chat templates use, rendered as the transformers library does it
/// (trim_blocks and lstrip_blocks on, `tojson` = json.dumps(ensure_ascii=False)). Immutable: safe to share between
/// threads.
class ChatTemplate {
 public:
  /// chat_template.jinja of the pack folder, else `chat_template` of its tokenizer_config.json. bos_token, eos_token,
  /// pad_token and unk_token of tokenizer_config.json are variables of the template.
  /// @throws Error  kind `pack`: no template, syntax error ("chat_template.jinja:12: ...")
  static ChatTemplate load(const std::filesystem::path& folder, ChatTemplateLimits limits = {});
  /// A template given as text. `name` stands in errors.
  ChatTemplate(std::string_view source, std::string_view name, ChatTemplateLimits limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// @param arguments  an object: messages, tools, add_generation_prompt, and whatever chat_template_kwargs hold
  ///                   (enable_thinking). Ordered, since `tojson` shows keys in the client's order. All of it counts as
  ///                   untrusted text.
  /// @throws Error  kind `usage`: the template called raise_exception, or a message lacks what the template needs;
  ///                kind `pack`: a limit was reached
  PromptText render(const nlohmann::ordered_json& arguments) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
