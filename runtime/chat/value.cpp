#include "runtime/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/tokenizer/utf8.h"

namespace tandem::jinja {
namespace {

constexpr int kMaxNesting = 100;

/// repr(float): the shortest digits that read back the same, with Python's choice of notation.
std::string real_to_text(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  char digits[32];
  const auto shortest = std::to_chars(digits, digits + sizeof digits, v, std::chars_format::scientific);
  const std::string scientific(digits, shortest.ptr);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;  // both sides write at least two exponent digits
  char plain[400];
  const auto fixed = std::to_chars(plain, plain + sizeof plain, v, std::chars_format::fixed);
  std::string text(plain, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

void append_hex(uint32_t code, int digits, std::string& out) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[code >> shift & 15];
}

/// repr(str): single quotes unless the text has those and no double ones.
std::string python_quoted(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7F)
      out += "\\x", append_hex(byte, 2, out);
    else
      out += c;
  }
  return out + quote;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += "\\u", append_hex(static_cast<unsigned char>(c), 4, out);
        else
          out += c;
    }
  }
  return out + '"';
}

/// Text whose parts keep their trust, with the cost counted as it grows.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}
  void add(std::string_view trusted) { add(PromptText::trusted(trusted)); }
  void add(const PromptText& text) {
    budget_.step();
    budget_.charge(text.size());
    out_ += text;
  }
  /// `made` was made from `source`: it is trusted if the source is.
  void add_derived(const std::string& made, const PromptText& source) {
    add(source.is_untrusted() ? PromptText::untrusted(made) : PromptText::trusted(made));
  }
  PromptText take() { return std::move(out_); }

 private:
  Budget& budget_;
  PromptText out_;
};

void write_repr(const Value& value, Writer& out, int depth);

void write_plain(const Value& value, Writer& out, int depth) {
  if (depth > kMaxNesting) fail("a value is nested too deeply");
  if (value.is_undefined()) return;
  if (value.is_none()) return out.add("None");
  if (value.is_bool()) return out.add(value.truthy() ? "True" : "False");
  if (value.is_int()) return out.add(std::to_string(value.as_int()));
  if (value.is_real()) return out.add(real_to_text(value.as_real()));
  if (value.is_string()) return out.add(value.as_string());
  if (value.is_callable()) return out.add("<" + value.as_callable().name + ">");
  if (value.is_list()) {
    const List& list = value.as_list();
    out.add(list.is_tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i) out.add(", ");
      write_repr(list.items[i], out, depth + 1);
    }
    if (list.is_tuple && list.items.size() == 1) out.add(",");
    return out.add(list.is_tuple ? ")" : "]");
  }
  const Dict& dict = value.is_dict() ? value.as_dict() : value.as_namespace().attributes;
  out.add(value.is_dict() ? "{" : "<Namespace {");
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i) out.add(", ");
    write_repr(dict.entries[i].first, out, depth + 1);
    out.add(": ");
    write_repr(dict.entries[i].second, out, depth + 1);
  }
  out.add(value.is_dict() ? "}" : "}>");
}

void write_repr(const Value& value, Writer& out, int depth) {
  if (value.is_string()) return out.add_derived(python_quoted(value.as_string().text()), value.as_string());
  if (value.is_undefined()) return out.add("Undefined");
  write_plain(value, out, depth);
}

struct JsonStyle {
  int indent;
  std::string item_separator, key_separator;
  bool sort_keys;
};

void write_json(const Value& value, Writer& out, const JsonStyle& style, int depth) {
  if (depth > kMaxNesting) fail("a value is nested too deeply for tojson");
  const auto new_line = [&](int level) {
    if (style.indent >= 0) out.add("\n" + std::string(static_cast<size_t>(style.indent) * level, ' '));
  };
  if (value.is_none()) return out.add("null");
  if (value.is_bool()) return out.add(value.truthy() ? "true" : "false");
  if (value.is_int()) return out.add(std::to_string(value.as_int()));
  if (value.is_real()) {
    const double v = value.as_real();
    return out.add(std::isnan(v) ? "NaN" : std::isinf(v) ? (v > 0 ? "Infinity" : "-Infinity") : real_to_text(v));
  }
  if (value.is_string()) return out.add_derived(json_quoted(value.as_string().text()), value.as_string());
  if (value.is_list()) {
    const auto& items = value.as_list().items;
    if (items.empty()) return out.add("[]");
    out.add("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out.add(style.item_separator);
      new_line(depth + 1);
      write_json(items[i], out, style, depth + 1);
    }
    new_line(depth);
    return out.add("]");
  }
  if (value.is_dict()) {
    std::vector<Entry> entries = value.as_dict().entries;
    if (entries.empty()) return out.add("{}");
    if (style.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const Entry& a, const Entry& b) { return compare(a.first, b.first) < 0; });
    out.add("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i) out.add(style.item_separator);
      new_line(depth + 1);
      const Value& key = entries[i].first;
      if (key.is_string())
        write_json(key, out, style, depth + 1);
      else
        out.add("\""), write_json(key, out, style, depth + 1), out.add("\"");
      out.add(style.key_separator);
      write_json(entries[i].second, out, style, depth + 1);
    }
    new_line(depth);
    return out.add("}");
  }
  fail("tojson cannot write a value of type " + std::string(value.type_name()));
}

}  // namespace

void fail(std::string what) {
  throw TemplateError{TemplateError::Cause::arguments, std::move(what)};
}

const Value* Dict::find(const Value& key) const {
  for (const Entry& entry : entries)
    if (equals(entry.first, key)) return &entry.second;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.first.is_string() && entry.first.as_string().text() == key) return &entry.second;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (Entry& entry : entries) {
    if (equals(entry.first, key)) {
      entry.second = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

const Value* Arguments::get(size_t i, std::string_view name) const {
  if (i < positional.size()) return &positional[i];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool() || is_int()) return as_int() != 0;
  if (is_real()) return as_real() != 0;
  if (is_string()) return !as_string().empty();
  if (is_list()) return !as_list().items.empty();
  if (is_dict()) return !as_dict().entries.empty();
  return true;
}

std::string_view Value::type_name() const {
  static constexpr std::string_view kNames[] = {"undefined", "None", "bool", "int",       "float",
                                                "str",       "list", "dict", "namespace", "function"};
  return kNames[data_.index()];
}

Value from_json(const nlohmann::ordered_json& json, Budget& budget, int depth) {
  if (depth > kMaxNesting) fail("the request is nested too deeply");
  budget.step();
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::boolean:
      return Value(json.get<bool>());
    case Kind::number_integer:
      return Value(json.get<int64_t>());
    case Kind::number_unsigned: {
      const auto v = json.get<uint64_t>();
      if (v > static_cast<uint64_t>(INT64_MAX)) return Value(static_cast<double>(v));
      return Value(static_cast<int64_t>(v));
    }
    case Kind::number_float:
      return Value(json.get<double>());
    case Kind::string:
      return Value(PromptText::untrusted(json.get_ref<const std::string&>()));
    case Kind::array: {
      List list;
      for (const auto& item : json) list.items.push_back(from_json(item, budget, depth + 1));
      return Value(std::move(list));
    }
    case Kind::object: {
      Dict dict;  // keys are unique already: the parser kept the last of equals
      for (const auto& [key, item] : json.items())
        dict.entries.emplace_back(Value(PromptText::untrusted(key)), from_json(item, budget, depth + 1));
      return Value(std::move(dict));
    }
    default:
      return Value();
  }
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_real() || b.is_real() ? a.as_real() == b.as_real() : a.as_int() == b.as_int();
  if (a.is_string() && b.is_string()) return a.as_string().text() == b.as_string().text();
  if (a.is_none() || a.is_undefined()) return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
  if (a.is_list() && b.is_list())
    return std::equal(a.as_list().items.begin(), a.as_list().items.end(), b.as_list().items.begin(),
                      b.as_list().items.end(), equals);
  if (a.is_dict() && b.is_dict()) {
    const auto& entries = a.as_dict().entries;
    return entries.size() == b.as_dict().entries.size() &&
           std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
             const Value* other = b.as_dict().find(entry.first);
             return other && equals(entry.second, *other);
           });
  }
  if (a.is_namespace() && b.is_namespace()) return &a.as_namespace() == &b.as_namespace();
  return false;
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_real() && !b.is_real()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
    return a.as_real() < b.as_real() ? -1 : a.as_real() > b.as_real();
  }
  if (a.is_string() && b.is_string())
    return a.as_string().text().compare(b.as_string().text());  // UTF-8 sorts as code points
  if (a.is_list() && b.is_list()) {
    const auto &x = a.as_list().items, &y = b.as_list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equals(x[i], y[i])) return compare(x[i], y[i]);
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  fail("values of type " + std::string(a.type_name()) + " and " + std::string(b.type_name()) + " have no order");
}

PromptText to_text(const Value& value, Budget& budget) {
  if (value.is_string()) return value.as_string();
  Writer out(budget);
  write_plain(value, out, 0);
  return out.take();
}

PromptText to_json(const Value& value, Budget& budget, int indent, std::string_view item_separator,
                   std::string_view key_separator, bool sort_keys) {
  Writer out(budget);
  write_json(value, out, {indent, std::string(item_separator), std::string(key_separator), sort_keys}, 0);
  return out.take();
}

std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += utf8_step(text, at).length) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    budget.charge_items(value.as_list().items.size());
    return value.as_list().items;
  }
  if (value.is_dict()) {
    budget.charge_items(value.as_dict().entries.size());
    for (const Entry& entry : value.as_dict().entries) items.push_back(entry.first);
    return items;
  }
  if (value.is_string()) {
    const PromptText& text = value.as_string();
    const auto offsets = character_offsets(text.text());
    budget.charge_items(offsets.size() * 4);
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      items.emplace_back(text.substr(offsets[i], offsets[i + 1] - offsets[i]));
    return items;
  }
  fail("a value of type " + std::string(value.type_name()) + " cannot be looped over");
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<int64_t>(character_offsets(value.as_string().text()).size()) - 1;
  if (value.is_list()) return static_cast<int64_t>(value.as_list().items.size());
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().entries.size());
  fail("a value of type " + std::string(value.type_name()) + " has no length");
}

}  // namespace tandem::jinja
