#pragma once

// The filters, tests, methods and functions that chat templates use.

#include <string_view>

#include "runtime/chat/value.h"

namespace tandem::jinja {

/// subject | name(arguments). Fails for a name it does not know.
Value apply_filter(std::string_view name, const Value& subject, const Arguments& arguments, Budget& budget);

/// subject is name(arguments).
bool apply_test(std::string_view name, const Value& subject, const Arguments& arguments, Budget& budget);

/// subject.name as a bound method ("text".split, dict.items), or undefined.
Value find_method(const Value& subject, std::string_view name, Budget& budget);

/// The functions every template sees: range, namespace, dict, raise_exception, strftime_now.
Dict global_functions(Budget& budget);

/// value.name, then value["name"]: undefined when there is neither.
Value get_attribute(const Value& value, std::string_view name, Budget& budget);
/// value[key], then value.key.
Value get_item(const Value& value, const Value& key, Budget& budget);

}  // namespace tandem::jinja
