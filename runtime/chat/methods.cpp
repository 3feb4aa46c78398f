// methods.cpp: attributes, items, bound methods and global functions.

#include <algorithm>
#include <ctime>

#include "runtime/chat/builtins.h"
#include "runtime/chat/text_functions.h"

namespace tandem::jinja {
namespace {

std::string argument_text(const Arguments& a, size_t i, std::string_view name, std::string_view method) {
  const Value* v = a.get(i, name);
  if (!v || v->is_none()) return "";
  if (!v->is_string()) fail(std::string(method) + " wants text, got " + std::string(v->type_name()));
  return v->as_string().text();
}

int64_t argument_int(const Arguments& a, size_t i, std::string_view name, int64_t fallback, std::string_view method) {
  const Value* v = a.get(i, name);
  if (!v) return fallback;
  if (!v->is_int()) fail(std::string(method) + " wants a whole number, got " + std::string(v->type_name()));
  return v->as_int();
}

/// startswith and endswith, which also take a tuple of texts.
bool matches_any(const Arguments& a, std::string_view method, const std::function<bool(std::string_view)>& matches) {
  if (a.positional.empty()) fail(std::string(method) + " wants a text");
  const Value& wanted = a.positional[0];
  if (wanted.is_string()) return matches(wanted.as_string().text());
  if (!wanted.is_list()) fail(std::string(method) + " wants text, got " + std::string(wanted.type_name()));
  const auto& items = wanted.as_list().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& v) { return v.is_string() && matches(v.as_string().text()); });
}

int64_t character_index(std::string_view text, size_t byte) {
  if (byte == std::string_view::npos) return -1;
  return static_cast<int64_t>(character_offsets(text.substr(0, byte)).size()) - 1;
}

int64_t count_occurrences(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return static_cast<int64_t>(character_offsets(text).size());
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string_view::npos; at += wanted.size()) ++count;
  return count;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Value string_method(const PromptText& self, std::string_view name, Budget& budget) {
  const auto method = [&](auto call) {
    return Value(Callable{std::string(name), [self, call, &budget](const Arguments& a) {
                            budget.step();
                            return Value(call(self, a));
                          }});
  };
  const std::string label(name);
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return method([label](const PromptText& s, const Arguments& a) {
      return strip(s, label != "rstrip", label != "lstrip", argument_text(a, 0, "chars", label));
    });
  if (name == "split" || name == "rsplit")
    return method([label, &budget](const PromptText& s, const Arguments& a) {
      return split(s, argument_text(a, 0, "sep", label), argument_int(a, 1, "maxsplit", -1, label), label == "rsplit",
                   budget);
    });
  if (name == "splitlines")
    return method([&budget](const PromptText& s, const Arguments&) {
      List lines = split(s, "\n", -1, false, budget);
      if (!lines.items.empty() && lines.items.back().as_string().empty()) lines.items.pop_back();
      return lines;
    });
  if (name == "upper") return method([](const PromptText& s, const Arguments&) { return change_case(s, Case::upper); });
  if (name == "lower") return method([](const PromptText& s, const Arguments&) { return change_case(s, Case::lower); });
  if (name == "title") return method([](const PromptText& s, const Arguments&) { return change_case(s, Case::title); });
  if (name == "capitalize")
    return method([](const PromptText& s, const Arguments&) { return change_case(s, Case::capitalize); });
  if (name == "isupper") return method([](const PromptText& s, const Arguments&) { return is_upper(s.text()); });
  if (name == "islower") return method([](const PromptText& s, const Arguments&) { return is_lower(s.text()); });
  if (name == "isdigit") return method([](const PromptText& s, const Arguments&) { return all_digits(s.text()); });
  if (name == "isspace")
    return method([](const PromptText& s, const Arguments&) { return !s.empty() && strip(s, true, true).empty(); });
  if (name == "startswith")
    return method([](const PromptText& s, const Arguments& a) {
      return matches_any(a, "startswith",
                         [&](std::string_view prefix) { return std::string_view(s.text()).starts_with(prefix); });
    });
  if (name == "endswith")
    return method([](const PromptText& s, const Arguments& a) {
      return matches_any(a, "endswith",
                         [&](std::string_view suffix) { return std::string_view(s.text()).ends_with(suffix); });
    });
  if (name == "removeprefix" || name == "removesuffix")
    return method([label](const PromptText& s, const Arguments& a) {
      const std::string part = argument_text(a, 0, "", label);
      const std::string_view text = s.text();
      if (label == "removeprefix") return text.starts_with(part) ? s.substr(part.size()) : s;
      return text.ends_with(part) ? s.substr(0, text.size() - part.size()) : s;
    });
  if (name == "replace")
    return method([&budget](const PromptText& s, const Arguments& a) {
      if (a.positional.size() < 2 || !a.positional[0].is_string() || !a.positional[1].is_string())
        fail("replace wants two texts");
      return replace(s, a.positional[0].as_string(), a.positional[1].as_string(),
                     argument_int(a, 2, "count", -1, "replace"), budget);
    });
  if (name == "find")
    return method([](const PromptText& s, const Arguments& a) {
      return character_index(s.text(), s.text().find(argument_text(a, 0, "", "find")));
    });
  if (name == "rfind")
    return method([](const PromptText& s, const Arguments& a) {
      return character_index(s.text(), s.text().rfind(argument_text(a, 0, "", "rfind")));
    });
  if (name == "count")
    return method([](const PromptText& s, const Arguments& a) {
      return count_occurrences(s.text(), argument_text(a, 0, "", "count"));
    });
  if (name == "join")
    return method([&budget](const PromptText& s, const Arguments& a) {
      if (a.positional.size() != 1) fail("join wants one list");
      for (const Value& item : iterate(a.positional[0], budget))
        if (!item.is_string()) fail("join wants a list of texts, found " + std::string(item.type_name()));
      return apply_filter("join", a.positional[0], Arguments{{Value(s)}, {}}, budget);
    });
  return Value::undefined(label);
}

Value dict_method(const Value& self, std::string_view name, Budget& budget) {
  const auto method = [&](auto call) {
    return Value(Callable{std::string(name), [self, call, &budget](const Arguments& a) {
                            budget.charge_items(self.as_dict().entries.size() * 2);
                            return Value(call(self.as_dict(), a));
                          }});
  };
  if (name == "items")
    return method([self, &budget](const Dict&, const Arguments&) { return apply_filter("items", self, {}, budget); });
  if (name == "keys")
    return method([](const Dict& d, const Arguments&) {
      List list;
      for (const Entry& entry : d.entries) list.items.push_back(entry.first);
      return list;
    });
  if (name == "values")
    return method([](const Dict& d, const Arguments&) {
      List list;
      for (const Entry& entry : d.entries) list.items.push_back(entry.second);
      return list;
    });
  if (name == "get")
    return method([](const Dict& d, const Arguments& a) {
      if (a.positional.empty()) fail("get wants a key");
      const Value* found = d.find(a.positional[0]);
      return found ? *found : a.positional.size() > 1 ? a.positional[1] : Value();
    });
  return Value::undefined(std::string(name));
}

Value list_method(const Value& self, std::string_view name, Budget& budget) {
  const auto method = [&](auto call) {
    return Value(Callable{std::string(name), [self, call, &budget](const Arguments& a) {
                            budget.charge_items(self.as_list().items.size());
                            if (a.positional.empty()) fail("the method of a list wants a value");
                            return Value(call(self.as_list().items, a.positional[0]));
                          }});
  };
  if (name == "count")
    return method([](const std::vector<Value>& items, const Value& wanted) {
      return static_cast<int64_t>(
          std::count_if(items.begin(), items.end(), [&](const Value& v) { return equals(v, wanted); }));
    });
  if (name == "index")
    return method([](const std::vector<Value>& items, const Value& wanted) {
      const auto it = std::find_if(items.begin(), items.end(), [&](const Value& v) { return equals(v, wanted); });
      if (it == items.end()) fail("the list does not hold that value");
      return static_cast<int64_t>(it - items.begin());
    });
  if (name == "append" || name == "extend" || name == "insert" || name == "pop" || name == "remove" ||
      name == "clear" || name == "sort" || name == "reverse")
    fail("lists cannot be changed (\"" + std::string(name) + "\"); build a new one with +");
  return Value::undefined(std::string(name));
}

}  // namespace

Value find_method(const Value& subject, std::string_view name, Budget& budget) {
  if (subject.is_string()) return string_method(subject.as_string(), name, budget);
  if (subject.is_dict()) return dict_method(subject, name, budget);
  if (subject.is_list()) return list_method(subject, name, budget);
  return Value::undefined(std::string(name));
}

Value get_attribute(const Value& value, std::string_view name, Budget& budget) {
  if (value.is_undefined())
    fail("\"" + value.as_undefined().name + "\" is undefined, so it has no \"" + std::string(name) + "\"");
  if (value.is_namespace()) {
    const Value* found = value.as_namespace().attributes.find(name);
    return found ? *found : Value::undefined(std::string(name));
  }
  Value method = find_method(value, name, budget);
  if (!method.is_undefined()) return method;
  if (value.is_dict())
    if (const Value* found = value.as_dict().find(name)) return *found;
  return Value::undefined(std::string(name));
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) fail("\"" + value.as_undefined().name + "\" is undefined, so it has no items");
  if (value.is_dict())
    if (const Value* found = value.as_dict().find(key)) return *found;
  if ((key.is_int() || key.is_bool()) && (value.is_list() || value.is_string())) {
    const int64_t size = length(value);
    const int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
    if (index < 0 || index >= size) return Value::undefined("item " + std::to_string(key.as_int()));
    if (value.is_list()) return value.as_list().items[static_cast<size_t>(index)];
    const auto offsets = character_offsets(value.as_string().text());
    budget.charge(offsets.size());
    const size_t begin = offsets[static_cast<size_t>(index)];
    return Value(value.as_string().substr(begin, offsets[static_cast<size_t>(index) + 1] - begin));
  }
  if (key.is_string()) {
    if (value.is_namespace()) return get_attribute(value, key.as_string().text(), budget);
    Value method = find_method(value, key.as_string().text(), budget);
    if (!method.is_undefined()) return method;
    return Value::undefined(key.as_string().text());
  }
  return Value::undefined("an item");
}

Dict global_functions(Budget& budget) {
  Dict globals;
  const auto add = [&](const char* name, std::function<Value(const Arguments&)> call) {
    globals.entries.emplace_back(Value::text(name), Value(Callable{name, std::move(call)}));
  };
  add("range", [&budget](const Arguments& a) {
    const size_t count = a.positional.size();
    if (count < 1 || count > 3) fail("range wants one to three numbers");
    const int64_t start = count > 1 ? argument_int(a, 0, "", 0, "range") : 0;
    const int64_t stop = argument_int(a, count > 1 ? 1 : 0, "", 0, "range");
    const int64_t step = argument_int(a, 2, "", 1, "range");
    if (step == 0) fail("range's step is zero");
    constexpr int64_t kLimit = 100'000;  // the sandbox of the transformers library has the same one
    List list;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
      if (static_cast<int64_t>(list.items.size()) == kLimit) fail("range is longer than 100000");
      list.items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    budget.charge_items(list.items.size());
    return Value(std::move(list));
  });
  const auto named_values = [](const Arguments& a) {
    Dict dict;
    if (!a.positional.empty() && a.positional[0].is_dict()) dict = a.positional[0].as_dict();
    for (const auto& [key, value] : a.named) dict.set(Value::text(key), value);
    return dict;
  };
  add("namespace",
      [named_values](const Arguments& a) { return Value(std::make_shared<Namespace>(Namespace{named_values(a)})); });
  add("dict", [named_values](const Arguments& a) { return Value(named_values(a)); });
  add("raise_exception", [&budget](const Arguments& a) -> Value {
    fail(a.positional.empty() ? "the template refused" : to_text(a.positional[0], budget).text());
  });
  add("strftime_now", [](const Arguments& a) {
    const std::string format = argument_text(a, 0, "format", "strftime_now");
    if (format.size() > 200) fail("strftime_now's format is too long");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char text[4096];
    const size_t size = std::strftime(text, sizeof text, format.c_str(), &local);
    return Value::text(std::string_view(text, size));
  });
  return globals;
}

}  // namespace tandem::jinja
