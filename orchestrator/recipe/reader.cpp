#include "orchestrator/recipe/reader.h"

#include <charconv>

#include "runtime/common/units.h"

namespace tandem {

std::string Reader::full(std::string_view path) const {
  return prefix_.empty() ? std::string(path) : prefix_ + "." + std::string(path);
}

const Value* Reader::find(std::string_view path) const {
  const Value* at = &root_;
  while (at && !path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    at = at->find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

std::string Reader::where(std::string_view path) const {
  for (std::string_view above = path; !above.empty();) {
    if (const Value* value = find(above)) return value->place.text(full(path));
    const size_t dot = above.rfind('.');
    above = dot == std::string_view::npos ? std::string_view() : above.substr(0, dot);
  }
  return root_.place.text(full(path));
}

std::string Reader::text(std::string_view path) const {
  if (const Value* value = find(path)) return value->text;
  const Field* field = find_field(document_, full(path));
  if (!field) throw Error(ErrorKind::internal, "the table of fields lacks " + full(path));
  return std::string(field->fallback);
}

int64_t Reader::integer(std::string_view path) const {
  return optional_integer(path).value_or(0);
}

double Reader::number(std::string_view path) const {
  return optional_number(path).value_or(0);
}

std::optional<double> Reader::optional_number(std::string_view path) const {
  const std::string digits = text(path);
  if (digits.empty()) return std::nullopt;
  double result = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), result);
  return result;
}

std::optional<int64_t> Reader::optional_integer(std::string_view path) const {
  const std::string digits = text(path);
  if (digits.empty()) return std::nullopt;
  int64_t result = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), result);
  return result;
}

int64_t Reader::bytes(std::string_view path) const {
  return parse_bytes(text(path)).value_or(0);
}

int64_t Reader::tokens(std::string_view path) const {
  return parse_tokens(text(path)).value_or(0);
}

int64_t Reader::bandwidth(std::string_view path) const {
  return parse_bandwidth(text(path)).value_or(0);
}

std::chrono::nanoseconds Reader::duration(std::string_view path) const {
  return parse_duration(text(path)).value_or(std::chrono::nanoseconds(0));
}

std::vector<Reader> Reader::items(std::string_view path) const {
  std::vector<Reader> readers;
  if (const Value* list = find(path))
    for (size_t i = 0; i < list->items.size(); ++i)
      readers.emplace_back(list->items[i], document_, full(path) + "[" + std::to_string(i) + "]");
  return readers;
}

std::vector<std::string> Reader::texts(std::string_view path) const {
  std::vector<std::string> texts;
  if (const Value* list = find(path))
    for (const Value& item : list->items) texts.push_back(item.text);
  return texts;
}

std::vector<std::string> Reader::places(std::string_view path) const {
  std::vector<std::string> places;
  if (const Value* value = find(path)) {
    for (size_t i = 0; i < value->items.size(); ++i)
      places.push_back(value->items[i].place.text(full(path) + "[" + std::to_string(i) + "]"));
    for (const Entry& entry : value->entries) places.push_back(entry.value.place.text(full(path) + "." + entry.key));
  }
  return places;
}

std::map<std::string, std::string> Reader::free_map(std::string_view path) const {
  std::map<std::string, std::string> result;
  if (const Value* value = find(path))
    for (const Entry& entry : value->entries) result.emplace(entry.key, entry.value.text);
  return result;
}

}  // namespace tandem
