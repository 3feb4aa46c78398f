#include "orchestrator/fetch/mirror_request.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "orchestrator/fetch/url.h"

namespace tandem {
namespace {

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Decoded after the cut, so that an encoded '/' belongs to its part: revisions may hold one.
std::vector<std::string> decoded_parts(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t begin = 1; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    parts.push_back(percent_decode(path.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& parts, size_t begin, size_t end) {
  std::string text;
  for (size_t i = begin; i < end; ++i) text += (i > begin ? "/" : "") + parts[i];
  return text;
}

void read_query(std::string_view query, MirrorRequest* request) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const auto equals = std::min(pair.find('='), pair.size());
    const auto value = number(pair.substr(std::min(equals + 1, pair.size())));
    if (value && pair.substr(0, equals) == "limit") request->limit = *value;
    if (value && pair.substr(0, equals) == "cursor") request->cursor = std::min<int64_t>(*value, 1 << 30);
  }
}

}  // namespace

MirrorRequest parse_mirror_request(std::string_view target) {
  MirrorRequest request;
  target = target.substr(0, target.find('#'));
  const size_t question = std::min(target.find('?'), target.size());
  const auto parts = decoded_parts(target.substr(0, question));
  if (parts.empty()) {
    request.kind = MirrorRequest::Kind::index;
    return request;
  }
  read_query(target.substr(std::min(question + 1, target.size())), &request);

  const bool api = parts.size() >= 3 && parts[0] == "api" && parts[1] == "models";
  const size_t begin = api ? 2 : 0;
  // A repository has one or two parts, so the keyword is the second or third.
  for (const size_t at : {begin + 2, begin + 1}) {
    if (parts.size() < at + 2) continue;
    const std::string& keyword = parts[at];
    if (api && parts.size() == at + 2 && (keyword == "revision" || keyword == "tree")) {
      request.kind = keyword == "tree" ? MirrorRequest::Kind::tree : MirrorRequest::Kind::info;
    } else if (!api && keyword == "resolve" && parts.size() > at + 2) {
      request.kind = MirrorRequest::Kind::file;
      request.path = joined(parts, at + 2, parts.size());
    } else {
      continue;
    }
    request.repo = joined(parts, begin, at);
    request.revision = parts[at + 1];
    return request;
  }
  if (api && parts.size() <= begin + 2) {
    request.kind = MirrorRequest::Kind::info;
    request.repo = joined(parts, begin, parts.size());
    request.revision = "main";
  }
  return request;
}

std::optional<ByteRange> parse_byte_range(std::string_view header, int64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  if (header.substr(0, kUnit.size()) != kUnit || size <= 0) return std::nullopt;
  header.remove_prefix(kUnit.size());
  const auto dash = header.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::string_view first_text = header.substr(0, dash);
  const std::string_view last_text = header.substr(dash + 1);
  const auto first = number(first_text);
  const auto last = number(last_text);
  if (first_text.empty()) {
    if (!last || *last == 0) return std::nullopt;
    return ByteRange{std::max<int64_t>(0, size - *last), size - 1};
  }
  if (!first || *first >= size) return std::nullopt;
  if (last_text.empty()) return ByteRange{*first, size - 1};
  if (!last || *last < *first) return std::nullopt;
  return ByteRange{*first, std::min(*last, size - 1)};
}

}  // namespace tandem
