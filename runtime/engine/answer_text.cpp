#include "runtime/engine/answer_text.h"

#include <algorithm>

namespace tandem {
namespace {

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return "";
  held_ += text;
  size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos || at + stop.size() > end || (at + stop.size() == end && at >= begin)) continue;
    begin = at;
    end = at + stop.size();
    matched_ = stop;
  }
  if (matched_) {
    std::string shown = held_.substr(0, begin);
    held_.clear();
    return shown;
  }
  size_t hold = 0;  // the longest end of the text that begins a stop string
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > hold; --n)
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) hold = n;
  std::string shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return shown;
}

std::string StopMatcher::flush() {
  std::string rest;
  rest.swap(held_);
  return rest;
}

AnswerText::AnswerText(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer),
      chat_(options.chat),
      thinking_(options.chat && options.thinking_open),
      content_(joined(options.stop, options.control_stop)),
      reasoning_(options.control_stop) {
  if (!chat_) return;
  think_begin_ = tokenizer.find("<think>");
  think_end_ = tokenizer.find("</think>");
  tool_call_ = tokenizer.find("<tool_call>");
}

AnswerText::Delta AnswerText::push(int32_t token) {
  Delta delta;
  if (token == think_begin_ || token == think_end_) {
    switch_to(token == think_begin_, delta);
  } else if (!tokenizer_.is_special(token)) {
    if (token == tool_call_) switch_to(false, delta);  // models begin a call without closing their reasoning
    add_text(tokenizer_.token_bytes(token), delta);
  }
  return delta;
}

AnswerText::Delta AnswerText::finish() {
  Delta delta;
  flush_bytes(delta);
  delta.reasoning += reasoning_.flush();
  delta.content += content_.flush();
  return delta;
}

const std::optional<std::string>& AnswerText::stopped_by() const {
  return content_.matched() ? content_.matched() : reasoning_.matched();
}

void AnswerText::add_text(std::string_view bytes, Delta& delta) {
  bytes_ += bytes;
  const size_t whole = bytes_.size() - incomplete_utf8_tail(bytes_);
  const std::string text = replace_invalid_utf8(std::string_view(bytes_).substr(0, whole));
  bytes_.erase(0, whole);
  if (thinking_)
    delta.reasoning += reasoning_.push(text);
  else
    delta.content += content_.push(text);
}

void AnswerText::switch_to(bool thinking, Delta& delta) {
  if (thinking == thinking_) return;
  flush_bytes(delta);
  if (thinking_)
    delta.reasoning += reasoning_.flush();
  else
    delta.content += content_.flush();
  thinking_ = thinking;
}

void AnswerText::flush_bytes(Delta& delta) {
  const std::string text = replace_invalid_utf8(bytes_);
  bytes_.clear();
  if (thinking_)
    delta.reasoning += reasoning_.push(text);
  else
    delta.content += content_.push(text);
}

bool ends_inside_reasoning(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt) {
  const auto begin = tokenizer.find("<think>"), end = tokenizer.find("</think>");
  if (!begin) return false;
  for (auto id = prompt.rbegin(); id != prompt.rend(); ++id) {
    if (*id == *begin) return true;
    if (end && *id == *end) return false;
  }
  return false;
}

}  // namespace tandem
