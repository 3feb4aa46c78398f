#pragma once

// Values of the template language: Python's, as far as chat templates see them.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/tokenizer/prompt_text.h"

namespace tandem::jinja {

class Value;
class Budget;

struct Undefined {
  std::string name;  // for the error, should the template use it
};
struct None {};
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
};
using Entry = std::pair<Value, Value>;
/// Insertion-ordered, as Python's.
struct Dict {
  std::vector<Entry> entries;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};
/// `namespace(...)`: the one thing a template may change from inside a loop.
struct Namespace {
  Dict attributes;
};
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  /// The i-th positional argument, or the one called `name`, or nullptr.
  const Value* get(size_t i, std::string_view name) const;
};
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

/// Lists, dicts and strings are immutable and shared.
class Value {
 public:
  using Text = std::shared_ptr<const PromptText>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using NamespacePtr = std::shared_ptr<Namespace>;
  using CallablePtr = std::shared_ptr<const Callable>;

  Value() : data_(None{}) {}
  Value(bool v) : data_(v) {}
  Value(int64_t v) : data_(v) {}
  Value(double v) : data_(v) {}
  Value(PromptText v) : data_(std::make_shared<const PromptText>(std::move(v))) {}
  Value(List v) : data_(std::make_shared<const List>(std::move(v))) {}
  Value(Dict v) : data_(std::make_shared<const Dict>(std::move(v))) {}
  Value(NamespacePtr v) : data_(std::move(v)) {}
  Value(Callable v) : data_(std::make_shared<const Callable>(std::move(v))) {}
  Value(const char*) = delete;  // would be a bool
  static Value undefined(std::string name) { return Value(Undefined{std::move(name)}); }
  static Value text(std::string_view trusted) { return Value(PromptText::trusted(trusted)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_real() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_real(); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_namespace() const { return std::holds_alternative<NamespacePtr>(data_); }
  bool is_callable() const { return std::holds_alternative<CallablePtr>(data_); }

  // Each wants the kind it names.
  const Undefined& as_undefined() const { return std::get<Undefined>(data_); }
  const PromptText& as_string() const { return *std::get<Text>(data_); }
  const List& as_list() const { return *std::get<ListPtr>(data_); }
  const Dict& as_dict() const { return *std::get<DictPtr>(data_); }
  Namespace& as_namespace() const { return *std::get<NamespacePtr>(data_); }
  const Callable& as_callable() const { return *std::get<CallablePtr>(data_); }
  int64_t as_int() const { return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double as_real() const { return is_real() ? std::get<double>(data_) : static_cast<double>(as_int()); }

  bool truthy() const;
  /// What Python calls the type: for errors.
  std::string_view type_name() const;

 private:
  explicit Value(Undefined v) : data_(std::move(v)) {}
  std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr, NamespacePtr, CallablePtr> data_;
};

/// A fault of the template or of what it was given; the interpreter adds the line.
struct TemplateError {
  enum class Cause { arguments, limit } cause;
  std::string what;
};
[[noreturn]] void fail(std::string what);

/// Counts what a rendering costs, and ends it when it costs too much.
class Budget {
 public:
  Budget(long steps, size_t max_value_bytes)
      : steps_(steps), max_value_bytes_(max_value_bytes), total_bytes_(32 * max_value_bytes) {}
  void step() {
    if (--steps_ < 0) throw TemplateError{TemplateError::Cause::limit, "the template takes too many steps"};
  }
  /// Call before making a value of this size.
  void charge(size_t bytes) {
    if (bytes > max_value_bytes_ || bytes > total_bytes_)
      throw TemplateError{TemplateError::Cause::limit, "the template makes too much text"};
    total_bytes_ -= bytes;
    if (bytes > 4096) steps_ -= static_cast<long>(bytes >> 12);
  }
  /// Bounds a text that grows piece by piece.
  void charge_total(size_t bytes) const {
    if (bytes > max_value_bytes_) throw TemplateError{TemplateError::Cause::limit, "the template makes too much text"};
  }
  void charge_items(size_t count) { charge(count * sizeof(Value)); }

 private:
  long steps_;
  size_t max_value_bytes_, total_bytes_;
};

/// A request's JSON: every string in it is untrusted.
Value from_json(const nlohmann::ordered_json& json, Budget& budget, int depth = 0);

bool equals(const Value& a, const Value& b);
/// < 0, 0, > 0; fails for kinds that Python does not order.
int compare(const Value& a, const Value& b);

/// str(value), as `{{ value }}` prints it.
PromptText to_text(const Value& value, Budget& budget);
/// json.dumps(value, ensure_ascii=False, ...). `indent` < 0: one line.
PromptText to_json(const Value& value, Budget& budget, int indent = -1, std::string_view item_separator = ", ",
                   std::string_view key_separator = ": ", bool sort_keys = false);

/// The items that `for` walks over: of a list, a dict's keys, a string's characters.
std::vector<Value> iterate(const Value& value, Budget& budget);
/// len(value).
int64_t length(const Value& value);

/// Byte offsets of a string's characters, and its size at the end.
std::vector<size_t> character_offsets(std::string_view text);

}  // namespace tandem::jinja
