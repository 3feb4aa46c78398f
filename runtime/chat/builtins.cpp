#include "runtime/chat/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "runtime/chat/text_functions.h"

namespace tandem::jinja {
namespace {

std::string type_of(const Value& v) {
  return std::string(v.type_name());
}

const PromptText& want_string(const Value& v, std::string_view what) {
  if (!v.is_string()) fail(std::string(what) + " wants text, got " + type_of(v));
  return v.as_string();
}

int64_t want_int(const Value* v, int64_t fallback, std::string_view what) {
  if (!v || v->is_none()) return fallback;
  if (!v->is_int() && !v->is_bool()) fail(std::string(what) + " wants a whole number, got " + type_of(*v));
  return v->as_int();
}

bool want_flag(const Value* v, bool fallback) {
  return v ? v->truthy() : fallback;
}

/// Keys and attributes by a dotted path: "function.name", "0.id".
Value by_path(const Value& item, const PromptText& path, Budget& budget) {
  Value at = item;
  for (const Value& part : split(path, ".", -1, false, budget).items) {
    const std::string& name = part.as_string().text();
    int64_t index = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool number = !name.empty() && read.ec == std::errc() && read.ptr == name.data() + name.size();
    at = get_item(at, number ? Value(index) : part, budget);
  }
  return at;
}

Value attribute_or_self(const Value& item, const Value* attribute, Budget& budget) {
  if (!attribute || attribute->is_none()) return item;
  if (attribute->is_int()) return get_item(item, *attribute, budget);
  return by_path(item, want_string(*attribute, "an attribute's name"), budget);
}

Arguments rest_of(const Arguments& arguments, size_t skip) {
  Arguments rest;
  for (size_t i = skip; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  rest.named = arguments.named;
  return rest;
}

Value to_int(const Value& v, const Arguments& a) {
  const Value fallback = a.get(0, "default") ? *a.get(0, "default") : Value(int64_t{0});
  if (v.is_int() || v.is_bool()) return Value(v.as_int());
  if (v.is_real()) return std::fabs(v.as_real()) < 9e18 ? Value(static_cast<int64_t>(v.as_real())) : fallback;
  if (!v.is_string()) return fallback;
  const std::string text = strip(v.as_string(), true, true).text();
  double real = 0;
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  if (const auto r = std::from_chars(text.data(), end, whole); r.ec == std::errc() && r.ptr == end) return Value(whole);
  if (const auto r = std::from_chars(text.data(), end, real);
      r.ec == std::errc() && r.ptr == end && std::fabs(real) < 9e18)
    return Value(static_cast<int64_t>(real));
  return fallback;
}

Value to_real(const Value& v, const Arguments& a) {
  if (v.is_number()) return Value(v.as_real());
  if (v.is_string()) {
    const std::string text = strip(v.as_string(), true, true).text();
    double real = 0;
    const auto r = std::from_chars(text.data(), text.data() + text.size(), real);
    if (r.ec == std::errc() && r.ptr == text.data() + text.size()) return Value(real);
  }
  return a.get(0, "default") ? *a.get(0, "default") : Value(0.0);
}

Value round_number(const Value& v, const Arguments& a) {
  if (!v.is_number()) fail("round wants a number, got " + type_of(v));
  const double scale =
      std::pow(10.0, static_cast<double>(std::clamp<int64_t>(want_int(a.get(0, "precision"), 0, "round"), -15, 15)));
  const std::string method = a.get(1, "method") ? want_string(*a.get(1, "method"), "round").text() : "common";
  const double scaled = v.as_real() * scale;
  if (method == "ceil") return Value(std::ceil(scaled) / scale);
  if (method == "floor") return Value(std::floor(scaled) / scale);
  return Value(std::nearbyint(scaled) / scale);  // halves to even, as Python's round
}

PromptText join(const Value& v, const Arguments& a, Budget& budget) {
  const PromptText separator = a.get(0, "d") ? to_text(*a.get(0, "d"), budget) : PromptText();
  PromptText out;
  bool first = true;
  for (const Value& item : iterate(v, budget)) {
    const PromptText text = to_text(attribute_or_self(item, a.get(1, "attribute"), budget), budget);
    budget.charge(text.size() + separator.size());
    if (!first) out += separator;
    out += text;
    first = false;
  }
  return out;
}

/// Sorts as Python would: stably, text without regard to case unless asked.
List sorted(std::vector<Value> items, const Value* attribute, bool reverse, bool case_sensitive, Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value key = attribute_or_self(item, attribute, budget);
    if (key.is_string() && !case_sensitive) key = Value(change_case(key.as_string(), Case::lower));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    budget.step();
    return reverse ? compare(a.first, b.first) > 0 : compare(a.first, b.first) < 0;
  });
  List list;
  for (auto& [key, item] : keyed) list.items.push_back(std::move(item));
  return list;
}

/// select, reject, selectattr, rejectattr.
List chosen(const Value& v, const Arguments& a, bool by_attribute, bool keep, Budget& budget) {
  if (by_attribute && a.positional.empty()) fail("selectattr and rejectattr want an attribute's name");
  const size_t test_at = by_attribute ? 1 : 0;
  const bool has_test = a.positional.size() > test_at;
  const std::string test = has_test ? want_string(a.positional[test_at], "a test's name").text() : "";
  const Arguments rest = rest_of(a, test_at + 1);
  List list;
  for (const Value& item : iterate(v, budget)) {
    budget.step();
    const Value subject = by_attribute ? attribute_or_self(item, &a.positional[0], budget) : item;
    const bool passes = has_test ? apply_test(test, subject, rest, budget) : subject.truthy();
    if (passes == keep) list.items.push_back(item);
  }
  return list;
}

List mapped(const Value& v, const Arguments& a, Budget& budget) {
  List list;
  const Value* attribute = a.positional.empty() ? a.get(SIZE_MAX, "attribute") : nullptr;
  if (!attribute && a.positional.empty()) fail("map wants a filter's name or attribute=");
  const Value* fallback = a.get(SIZE_MAX, "default");
  for (const Value& item : iterate(v, budget)) {
    budget.step();
    if (attribute) {
      Value found = attribute_or_self(item, attribute, budget);
      list.items.push_back(found.is_undefined() && fallback ? *fallback : std::move(found));
    } else {
      list.items.push_back(
          apply_filter(want_string(a.positional[0], "a filter's name").text(), item, rest_of(a, 1), budget));
    }
  }
  return list;
}

List pairs(const Dict& dict) {
  List list;
  for (const Entry& entry : dict.entries) list.items.emplace_back(List{{entry.first, entry.second}, true});
  return list;
}

List dictsorted(const Value& v, const Arguments& a, Budget& budget) {
  if (!v.is_dict()) fail("dictsort wants a dict, got " + type_of(v));
  const bool by_value = a.get(1, "by") && want_string(*a.get(1, "by"), "dictsort").text() == "value";
  const Value index(int64_t{by_value});
  return sorted(pairs(v.as_dict()).items, &index, want_flag(a.get(2, "reverse"), false),
                want_flag(a.get(0, "case_sensitive"), false), budget);
}

List unique(const Value& v, const Arguments& a, Budget& budget) {
  List list;
  std::vector<Value> seen;
  for (const Value& item : iterate(v, budget)) {
    Value key = attribute_or_self(item, a.get(1, "attribute"), budget);
    if (key.is_string() && !want_flag(a.get(0, "case_sensitive"), false))
      key = Value(change_case(key.as_string(), Case::lower));
    const bool known =
        std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return budget.step(), equals(other, key); });
    if (known) continue;
    seen.push_back(std::move(key));
    list.items.push_back(item);
  }
  return list;
}

Value extreme(const Value& v, const Arguments& a, int sign, Budget& budget) {
  Value best = Value::undefined("an empty sequence has no extreme");
  Value best_key;
  for (const Value& item : iterate(v, budget)) {
    Value key = attribute_or_self(item, a.get(1, "attribute"), budget);
    if (best.is_undefined() || sign * compare(key, best_key) > 0) best = item, best_key = std::move(key);
  }
  return best;
}

Value sum(const Value& v, const Arguments& a, Budget& budget) {
  Value total = a.get(1, "start") ? *a.get(1, "start") : Value(int64_t{0});
  for (const Value& raw : iterate(v, budget)) {
    const Value item = attribute_or_self(raw, a.get(0, "attribute"), budget);
    if (!item.is_number() || !total.is_number()) fail("sum wants numbers, got " + type_of(item));
    if (item.is_real() || total.is_real()) {
      total = Value(total.as_real() + item.as_real());
    } else {
      int64_t whole = 0;
      if (__builtin_add_overflow(total.as_int(), item.as_int(), &whole)) fail("a sum is out of range");
      total = Value(whole);
    }
  }
  return total;
}

Value reversed(const Value& v, Budget& budget) {
  std::vector<Value> items = iterate(v, budget);
  std::reverse(items.begin(), items.end());
  if (!v.is_string()) return Value(List{std::move(items)});
  PromptText text;
  for (const Value& item : items) text += item.as_string();
  return Value(std::move(text));
}

Value json_filter(const Value& v, const Arguments& a, Budget& budget) {
  const Value* separators = a.get(2, "separators");
  std::string item_separator = ", ", key_separator = ": ";
  const int64_t width = want_int(a.get(1, "indent"), -1, "tojson's indent");
  if (width > 64) fail("tojson's indent is too wide");
  if (width >= 0) item_separator = ",";
  if (separators && separators->is_list() && separators->as_list().items.size() == 2) {
    item_separator = want_string(separators->as_list().items[0], "tojson's separators").text();
    key_separator = want_string(separators->as_list().items[1], "tojson's separators").text();
  }
  return Value(to_json(v, budget, static_cast<int>(width), item_separator, key_separator,
                       want_flag(a.get(3, "sort_keys"), false)));
}

using Filter = Value (*)(const Value&, const Arguments&, Budget&);

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> kFilters = [] {
    std::map<std::string, Filter, std::less<>> f;
    f["tojson"] = json_filter;
    f["trim"] = [](const Value& v, const Arguments& a, Budget& b) {
      return Value(strip(to_text(v, b), true, true, a.get(0, "chars") ? to_text(*a.get(0, "chars"), b).text() : ""));
    };
    f["string"] = [](const Value& v, const Arguments&, Budget& b) { return Value(to_text(v, b)); };
    f["safe"] = f["string"];
    f["escape"] =
        f["e"] = [](const Value& v, const Arguments&, Budget& b) { return Value(escape_html(to_text(v, b), b)); };
    f["upper"] = [](const Value& v, const Arguments&, Budget& b) {
      return Value(change_case(to_text(v, b), Case::upper));
    };
    f["lower"] = [](const Value& v, const Arguments&, Budget& b) {
      return Value(change_case(to_text(v, b), Case::lower));
    };
    f["title"] = [](const Value& v, const Arguments&, Budget& b) {
      return Value(change_case(to_text(v, b), Case::title));
    };
    f["capitalize"] = [](const Value& v, const Arguments&, Budget& b) {
      return Value(change_case(to_text(v, b), Case::capitalize));
    };
    f["replace"] = [](const Value& v, const Arguments& a, Budget& b) {
      if (!a.get(0, "old") || !a.get(1, "new")) fail("replace wants what and with what");
      return Value(replace(to_text(v, b), to_text(*a.get(0, "old"), b), to_text(*a.get(1, "new"), b),
                           want_int(a.get(2, "count"), -1, "replace"), b));
    };
    f["indent"] = [](const Value& v, const Arguments& a, Budget& b) {
      const Value* width = a.get(0, "width");
      const int64_t columns = width && width->is_string() ? 0 : want_int(width, 4, "indent");
      if (columns < 0 || columns > 1000) fail("indent's width is out of range");
      const PromptText prefix = width && width->is_string()
                                    ? width->as_string()
                                    : PromptText::trusted(std::string(static_cast<size_t>(columns), ' '));
      return Value(
          indent(to_text(v, b), prefix, want_flag(a.get(1, "first"), false), want_flag(a.get(2, "blank"), false), b));
    };
    f["length"] = f["count"] = [](const Value& v, const Arguments&, Budget&) { return Value(length(v)); };
    f["default"] = f["d"] = [](const Value& v, const Arguments& a, Budget&) {
      const bool absent = v.is_undefined() || (want_flag(a.get(1, "boolean"), false) && !v.truthy());
      return !absent ? v : a.get(0, "default_value") ? *a.get(0, "default_value") : Value::text("");
    };
    f["first"] = [](const Value& v, const Arguments&, Budget& b) {
      const auto items = iterate(v, b);
      return items.empty() ? Value::undefined("the first of nothing") : items.front();
    };
    f["last"] = [](const Value& v, const Arguments&, Budget& b) {
      const auto items = iterate(v, b);
      return items.empty() ? Value::undefined("the last of nothing") : items.back();
    };
    f["list"] = [](const Value& v, const Arguments&, Budget& b) { return Value(List{iterate(v, b)}); };
    f["join"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(join(v, a, b)); };
    f["map"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(mapped(v, a, b)); };
    f["select"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(chosen(v, a, false, true, b)); };
    f["reject"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(chosen(v, a, false, false, b)); };
    f["selectattr"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(chosen(v, a, true, true, b)); };
    f["rejectattr"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(chosen(v, a, true, false, b)); };
    f["items"] = [](const Value& v, const Arguments&, Budget& b) {
      if (v.is_undefined()) return Value(List{});
      if (!v.is_dict()) fail("items wants a dict, got " + type_of(v));
      b.charge_items(v.as_dict().entries.size() * 4);
      return Value(pairs(v.as_dict()));
    };
    f["dictsort"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(dictsorted(v, a, b)); };
    f["sort"] = [](const Value& v, const Arguments& a, Budget& b) {
      return Value(sorted(iterate(v, b), a.get(2, "attribute"), want_flag(a.get(0, "reverse"), false),
                          want_flag(a.get(1, "case_sensitive"), false), b));
    };
    f["unique"] = [](const Value& v, const Arguments& a, Budget& b) { return Value(unique(v, a, b)); };
    f["reverse"] = [](const Value& v, const Arguments&, Budget& b) { return reversed(v, b); };
    f["min"] = [](const Value& v, const Arguments& a, Budget& b) { return extreme(v, a, -1, b); };
    f["max"] = [](const Value& v, const Arguments& a, Budget& b) { return extreme(v, a, 1, b); };
    f["sum"] = sum;
    f["int"] = [](const Value& v, const Arguments& a, Budget&) { return to_int(v, a); };
    f["float"] = [](const Value& v, const Arguments& a, Budget&) { return to_real(v, a); };
    f["round"] = [](const Value& v, const Arguments& a, Budget&) { return round_number(v, a); };
    f["abs"] = [](const Value& v, const Arguments&, Budget&) {
      if (!v.is_number()) fail("abs wants a number, got " + type_of(v));
      if (v.is_real()) return Value(std::fabs(v.as_real()));
      if (v.as_int() == INT64_MIN) fail("a number is out of range");
      return Value(v.as_int() < 0 ? -v.as_int() : v.as_int());
    };
    return f;
  }();
  return kFilters;
}

bool is_iterable(const Value& v) {
  return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined();
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.step();
  if (container.is_string()) {
    return container.as_string().text().find(want_string(item, "`in` a text").text()) != std::string::npos;
  }
  if (container.is_dict()) return container.as_dict().find(item) != nullptr;
  const auto items = iterate(container, budget);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& other) { return budget.step(), equals(other, item); });
}

}  // namespace

Value apply_filter(std::string_view name, const Value& subject, const Arguments& arguments, Budget& budget) {
  budget.step();
  const auto it = filters().find(name);
  if (it == filters().end()) fail("there is no filter \"" + std::string(name) + "\"");
  return it->second(subject, arguments, budget);
}

bool apply_test(std::string_view name, const Value& v, const Arguments& a, Budget& budget) {
  budget.step();
  const auto operand = [&]() -> const Value& {
    if (a.positional.empty()) fail("the test \"" + std::string(name) + "\" wants a value to test against");
    return a.positional[0];
  };
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "string") return v.is_string();
  if (name == "number") return v.is_number();
  if (name == "integer") return v.is_int();
  if (name == "float") return v.is_real();
  if (name == "boolean") return v.is_bool();
  if (name == "true") return v.is_bool() && v.truthy();
  if (name == "false") return v.is_bool() && !v.truthy();
  if (name == "mapping") return v.is_dict();
  if (name == "iterable") return is_iterable(v);
  if (name == "sequence") return is_iterable(v);
  if (name == "callable") return v.is_callable();
  if (name == "equalto" || name == "eq" || name == "==") return equals(v, operand());
  if (name == "ne" || name == "!=") return !equals(v, operand());
  if (name == "lt" || name == "lessthan" || name == "<") return compare(v, operand()) < 0;
  if (name == "le" || name == "<=") return compare(v, operand()) <= 0;
  if (name == "gt" || name == "greaterthan" || name == ">") return compare(v, operand()) > 0;
  if (name == "ge" || name == ">=") return compare(v, operand()) >= 0;
  if (name == "in") return contains(operand(), v, budget);
  if (name == "sameas") return v.type_name() == operand().type_name() && equals(v, operand());
  if (name == "upper") return is_upper(to_text(v, budget).text());
  if (name == "lower") return is_lower(to_text(v, budget).text());
  if (name == "filter") return v.is_string() && filters().count(v.as_string().text()) > 0;
  if (name == "odd" || name == "even" || name == "divisibleby") {
    if (!v.is_int()) fail("the test \"" + std::string(name) + "\" wants a whole number, got " + type_of(v));
    const int64_t divisor = name == "divisibleby" ? want_int(&operand(), 0, "divisibleby") : 2;
    if (divisor == 0) fail("division by zero");
    const bool divides = divisor == -1 || v.as_int() % divisor == 0;
    return name == "odd" ? !divides : divides;
  }
  fail("there is no test \"" + std::string(name) + "\"");
}

}  // namespace tandem::jinja
