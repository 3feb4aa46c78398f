#include "runtime/chat/interpreter.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/chat/builtins.h"

namespace tandem::jinja {
namespace {

using Kind = Expression::Kind;

/// A loop's body, a macro's call and the template itself each have one. `if` has none: what it sets stays set.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
  std::map<std::string, Value, std::less<>> variables;
  std::shared_ptr<Scope> parent;
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { normal, break_, continue_ };

class Interpreter {
 public:
  Interpreter(const Dict& variables, Budget& budget, int max_depth)
      : budget_(budget), max_depth_(max_depth), root_(std::make_shared<Scope>(nullptr)) {
    for (const Entry& entry : global_functions(budget).entries)
      root_->variables[entry.first.as_string().text()] = entry.second;
    for (const Entry& entry : variables.entries) root_->variables[entry.first.as_string().text()] = entry.second;
  }

  PromptText run(const Block& block) {
    try {
      execute(block, std::make_shared<Scope>(root_));
    } catch (TemplateError& e) {
      throw RenderError{e.cause, std::move(e.what), line_};
    }
    return std::move(out_);
  }

 private:
  // ---- statements ----
  Flow execute(const Block& block, const ScopePtr& scope) {
    const Deeper deeper(*this);
    for (const Statement& statement : block) {
      const Flow flow = execute(statement, scope);
      if (flow != Flow::normal) return flow;
    }
    return Flow::normal;
  }

  Flow execute(const Statement& s, const ScopePtr& scope) {
    budget_.step();
    line_ = s.line;
    switch (s.kind) {
      case Statement::Kind::text:
        write(PromptText::trusted(s.name));
        break;
      case Statement::Kind::output:
        write(to_text(evaluate(*s.expression, scope), budget_));
        break;
      case Statement::Kind::if_:
        return execute(evaluate(*s.expression, scope).truthy() ? s.body : s.orelse, scope);
      case Statement::Kind::for_:
        run_loop(s, scope);
        break;
      case Statement::Kind::set:
        assign(s.targets, evaluate(*s.expression, scope), scope);
        break;
      case Statement::Kind::set_block: {
        Value value(capture(s.body, scope));
        if (s.expression) value = run_filter(*s.expression, std::move(value), scope);
        assign(s.targets, std::move(value), scope);
        break;
      }
      case Statement::Kind::macro:
        scope->variables.insert_or_assign(s.name, macro(s, scope));
        break;
      case Statement::Kind::call_block: {
        const Value caller = macro(s, scope);
        write(to_text(run_call(*s.expression, scope, &caller), budget_));
        break;
      }
      case Statement::Kind::filter_block:
        write(to_text(run_filter(*s.expression, Value(capture(s.body, scope)), scope), budget_));
        break;
      case Statement::Kind::with: {
        const auto inner = std::make_shared<Scope>(scope);
        for (const auto& [name, value] : s.parameters) inner->variables.insert_or_assign(name, evaluate(*value, scope));
        return execute(s.body, inner);
      }
      case Statement::Kind::scope:
        return execute(s.body, std::make_shared<Scope>(scope));
      case Statement::Kind::break_:
        return Flow::break_;
      case Statement::Kind::continue_:
        return Flow::continue_;
    }
    return Flow::normal;
  }

  void write(const PromptText& text) {
    budget_.charge(text.size());
    budget_.charge_total(out_.size() + text.size());
    out_ += text;
  }

  PromptText capture(const Block& block, const ScopePtr& scope) {
    PromptText outer = std::exchange(out_, {});
    execute(block, std::make_shared<Scope>(scope));
    return std::exchange(out_, std::move(outer));
  }

  void assign(const std::vector<ExpressionPtr>& targets, Value value, const ScopePtr& scope) {
    if (targets.size() == 1) return assign(*targets[0], std::move(value), scope);
    const std::vector<Value> parts = iterate(value, budget_);
    if (parts.size() != targets.size())
      fail("cannot unpack " + std::to_string(parts.size()) + " values into " + std::to_string(targets.size()) +
           " names");
    for (size_t i = 0; i < parts.size(); ++i) assign(*targets[i], parts[i], scope);
  }

  void assign(const Expression& target, Value value, const ScopePtr& scope) {
    if (target.kind == Kind::name) {
      scope->variables.insert_or_assign(target.name, std::move(value));
      return;
    }
    const Value object = evaluate(*target.children[0], scope);
    if (!object.is_namespace())
      fail("only a namespace's attributes can be set, not those of a value of type " + std::string(object.type_name()));
    object.as_namespace().attributes.set(Value::text(target.name), std::move(value));
  }

  void run_loop(const Statement& s, const ScopePtr& scope) {
    std::vector<Value> items = iterate(evaluate(*s.expression, scope), budget_);
    if (s.condition) {
      std::vector<Value> kept;
      for (Value& item : items) {
        const auto inner = std::make_shared<Scope>(scope);
        assign(s.targets, item, inner);
        if (evaluate(*s.condition, inner).truthy()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      execute(s.orelse, scope);
      return;
    }
    auto changed = std::make_shared<std::vector<Value>>();
    for (size_t i = 0; i < items.size(); ++i) {
      budget_.step();
      const auto inner = std::make_shared<Scope>(scope);
      inner->variables.insert_or_assign("loop", loop_variable(items, i, changed));
      assign(s.targets, items[i], inner);
      if (execute(s.body, inner) == Flow::break_) break;
    }
  }

  Value loop_variable(const std::vector<Value>& items, size_t i, const std::shared_ptr<std::vector<Value>>& changed) {
    const auto count = static_cast<int64_t>(items.size()), index = static_cast<int64_t>(i);
    auto loop = std::make_shared<Namespace>();
    const auto add = [&](const char* name, Value value) {
      loop->attributes.entries.emplace_back(Value::text(name), std::move(value));
    };
    add("index", Value(index + 1));
    add("index0", Value(index));
    add("revindex", Value(count - index));
    add("revindex0", Value(count - index - 1));
    add("first", Value(i == 0));
    add("last", Value(i + 1 == items.size()));
    add("length", Value(count));
    add("depth", Value(int64_t{1}));  // counts recursive loops only, which templates do not use
    add("depth0", Value(int64_t{0}));
    if (i > 0) add("previtem", items[i - 1]);
    if (i + 1 < items.size()) add("nextitem", items[i + 1]);
    add("cycle", Value(Callable{"cycle", [i](const Arguments& a) {
                                  if (a.positional.empty()) fail("loop.cycle wants values");
                                  return a.positional[i % a.positional.size()];
                                }}));
    add("changed", Value(Callable{"changed", [changed](const Arguments& a) {
                                    const bool differs = !std::equal(a.positional.begin(), a.positional.end(),
                                                                     changed->begin(), changed->end(), equals);
                                    *changed = a.positional;
                                    return Value(differs);
                                  }}));
    return Value(std::move(loop));
  }

  /// A macro sees the variables of where it was defined, as they are when it is called.
  Value macro(const Statement& s, const ScopePtr& scope) {
    const std::weak_ptr<Scope> home = scope;  // weak: the scope holds the macro
    return Value(Callable{s.name.empty() ? "caller" : s.name, [this, &s, home](const Arguments& arguments) {
                            const ScopePtr outer = home.lock();
                            if (!outer) fail("the macro \"" + s.name + "\" is called outside of its scope");
                            return call_macro(s, arguments, outer);
                          }});
  }

  Value call_macro(const Statement& s, const Arguments& arguments, const ScopePtr& outer) {
    const Deeper deeper(*this);
    const int line = line_;
    const auto inner = std::make_shared<Scope>(outer);
    if (arguments.positional.size() > s.parameters.size())
      fail("the macro \"" + s.name + "\" takes " + std::to_string(s.parameters.size()) + " arguments, got " +
           std::to_string(arguments.positional.size()));
    for (const auto& [name, value] : arguments.named) {
      const bool known = name == "caller" || std::any_of(s.parameters.begin(), s.parameters.end(),
                                                         [&](const auto& p) { return p.first == name; });
      if (!known) fail("the macro \"" + s.name + "\" has no argument \"" + name + "\"");
    }
    for (size_t i = 0; i < s.parameters.size(); ++i) {
      const auto& [name, fallback] = s.parameters[i];
      const Value* given = arguments.get(i, name);
      inner->variables.insert_or_assign(name, given      ? *given
                                              : fallback ? evaluate(*fallback, inner)
                                                         : Value::undefined(name));
    }
    if (const Value* caller = arguments.get(SIZE_MAX, "caller")) inner->variables.insert_or_assign("caller", *caller);
    PromptText before = std::exchange(out_, {});
    execute(s.body, inner);
    line_ = line;
    return Value(std::exchange(out_, std::move(before)));
  }

  // ---- expressions ----
  Value evaluate(const Expression& e, const ScopePtr& scope) {
    const Deeper deeper(*this);
    budget_.step();
    line_ = e.line;
    switch (e.kind) {
      case Kind::literal:
        return e.value;
      case Kind::name:
        return look_up(e.name, scope);
      case Kind::list:
      case Kind::tuple: {
        List list{{}, e.kind == Kind::tuple};
        budget_.charge_items(e.children.size());
        for (const auto& child : e.children) list.items.push_back(evaluate(*child, scope));
        return Value(std::move(list));
      }
      case Kind::dict: {
        Dict dict;
        budget_.charge_items(e.children.size());
        for (size_t i = 0; i + 1 < e.children.size(); i += 2)
          dict.set(evaluate(*e.children[i], scope), evaluate(*e.children[i + 1], scope));
        return Value(std::move(dict));
      }
      case Kind::attribute:
        return get_attribute(evaluate(*e.children[0], scope), e.name, budget_);
      case Kind::subscript: {
        const Value object = evaluate(*e.children[0], scope);
        if (e.children[1]->kind == Kind::slice) return slice(object, *e.children[1], scope);
        return get_item(object, evaluate(*e.children[1], scope), budget_);
      }
      case Kind::slice:
        fail("a slice outside of a subscript");
      case Kind::call:
        return run_call(e, scope, nullptr);
      case Kind::filter:
        return run_filter(e, Value(), scope);
      case Kind::test:
        return Value(apply_test(e.name, evaluate(*e.children[0], scope), arguments(e, scope), budget_));
      case Kind::unary:
        return unary(e.name, evaluate(*e.children[0], scope));
      case Kind::binary:
        return binary(e, scope);
      case Kind::compare:
        return comparison(e, scope);
      case Kind::condition:
        if (evaluate(*e.children[1], scope).truthy()) return evaluate(*e.children[0], scope);
        return e.children[2] ? evaluate(*e.children[2], scope) : Value::undefined("the missing else");
    }
    fail("an expression of no known kind");
  }

  Value look_up(const std::string& name, const ScopePtr& scope) {
    for (const Scope* s = scope.get(); s; s = s->parent.get()) {
      const auto it = s->variables.find(name);
      if (it != s->variables.end()) return it->second;
    }
    return Value::undefined(name);
  }

  Arguments arguments(const Expression& e, const ScopePtr& scope) {
    Arguments list;
    for (size_t i = 1; i < e.children.size(); ++i) list.positional.push_back(evaluate(*e.children[i], scope));
    for (const auto& [name, value] : e.named) list.named.emplace_back(name, evaluate(*value, scope));
    return list;
  }

  Value run_call(const Expression& e, const ScopePtr& scope, const Value* caller) {
    const Value function = evaluate(*e.children[0], scope);
    if (function.is_undefined()) fail("\"" + function.as_undefined().name + "\" is undefined, so it cannot be called");
    if (!function.is_callable()) fail("a value of type " + std::string(function.type_name()) + " cannot be called");
    Arguments list = arguments(e, scope);
    if (caller) list.named.emplace_back("caller", *caller);
    line_ = e.line;
    return function.as_callable().call(list);
  }

  /// A chain of filters; its innermost one, in a filter block, has no subject but `block`.
  Value run_filter(const Expression& e, Value block, const ScopePtr& scope) {
    const Deeper deeper(*this);
    const Expression* inner = e.children[0].get();
    const bool chained = inner && inner->kind == Kind::filter;
    const Value subject = !inner    ? std::move(block)
                          : chained ? run_filter(*inner, std::move(block), scope)
                                    : evaluate(*inner, scope);
    const Arguments list = arguments(e, scope);
    line_ = e.line;
    return apply_filter(e.name, subject, list, budget_);
  }

  Value slice(const Value& object, const Expression& e, const ScopePtr& scope) {
    if (!object.is_list() && !object.is_string())
      fail("a value of type " + std::string(object.type_name()) + " cannot be sliced");
    const int64_t size = length(object);
    const auto part = [&](size_t i, int64_t fallback) {
      if (!e.children[i]) return fallback;
      const Value v = evaluate(*e.children[i], scope);
      if (v.is_none()) return fallback;
      if (!v.is_int()) fail("a slice wants whole numbers, got " + std::string(v.type_name()));
      return v.as_int();
    };
    const int64_t step = part(2, 1);
    if (step == 0) fail("a slice's step is zero");
    const auto clamped = [&](int64_t i) {
      return std::clamp(i < 0 ? i + size : i, step > 0 ? int64_t{0} : int64_t{-1}, step > 0 ? size : size - 1);
    };
    const int64_t start = e.children[0] ? clamped(part(0, step > 0 ? 0 : size - 1)) : step > 0 ? 0 : size - 1;
    const int64_t stop = e.children[1] ? clamped(part(1, step > 0 ? size : -size - 1)) : step > 0 ? size : -1;
    if (object.is_string() && step == 1) {
      const auto offsets = character_offsets(object.as_string().text());
      budget_.charge(offsets.size());
      if (start >= stop) return Value(PromptText());
      const size_t begin = offsets[static_cast<size_t>(start)];
      return Value(object.as_string().substr(begin, offsets[static_cast<size_t>(stop)] - begin));
    }
    const std::vector<Value> items = iterate(object, budget_);
    List list;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
      list.items.push_back(items[static_cast<size_t>(i)]);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (!object.is_string()) return Value(std::move(list));
    PromptText text;
    for (const Value& item : list.items) text += item.as_string();
    return Value(std::move(text));
  }

  Value unary(const std::string& op, const Value& v) {
    if (op == "not") return Value(!v.truthy());
    if (!v.is_number()) fail("unary " + op + " wants a number, got " + std::string(v.type_name()));
    if (v.is_real()) return Value(op == "-" ? -v.as_real() : v.as_real());
    if (v.as_int() == INT64_MIN) fail("a number is out of range");
    return Value(op == "-" ? -v.as_int() : v.as_int());
  }

  Value binary(const Expression& e, const ScopePtr& scope) {
    const std::string& op = e.name;
    Value a = evaluate(*e.children[0], scope);
    if (op == "and") return a.truthy() ? evaluate(*e.children[1], scope) : a;
    if (op == "or") return a.truthy() ? a : evaluate(*e.children[1], scope);
    const Value b = evaluate(*e.children[1], scope);
    line_ = e.line;
    if (op == "~") return Value(concatenated(to_text(a, budget_), to_text(b, budget_)));
    if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
    if (op == "+" && a.is_string() && b.is_string()) return Value(concatenated(a.as_string(), b.as_string()));
    if (op == "+" && a.is_list() && b.is_list()) {
      List joined = a.as_list();
      budget_.charge_items(joined.items.size() + b.as_list().items.size());
      joined.items.insert(joined.items.end(), b.as_list().items.begin(), b.as_list().items.end());
      return Value(std::move(joined));
    }
    if (op == "*" && a.is_string() && b.is_int()) {
      PromptText text;
      for (int64_t i = 0; i < b.as_int(); ++i) text = concatenated(text, a.as_string());
      return Value(std::move(text));
    }
    for (const Value* operand : {static_cast<const Value*>(&a), &b})
      if (operand->is_undefined()) fail("\"" + operand->as_undefined().name + "\" is undefined");
    fail("cannot use " + op + " between " + std::string(a.type_name()) + " and " + std::string(b.type_name()));
  }

  PromptText concatenated(PromptText a, const PromptText& b) {
    budget_.step();
    budget_.charge(a.size() + b.size());
    a += b;
    return a;
  }

  Value arithmetic(const std::string& op, const Value& a, const Value& b) {
    if (op == "**" || op == "/" || a.is_real() || b.is_real()) {
      const double x = a.as_real(), y = b.as_real();
      if ((op == "/" || op == "//" || op == "%") && y == 0) fail("division by zero");
      if (op == "+") return Value(x + y);
      if (op == "-") return Value(x - y);
      if (op == "*") return Value(x * y);
      if (op == "/") return Value(x / y);
      if (op == "//") return Value(std::floor(x / y));
      if (op == "%") return Value(x - y * std::floor(x / y));
      const double power = std::pow(x, y);
      if (!a.is_real() && !b.is_real() && y >= 0) {
        if (std::fabs(power) > 9e15) fail("a power is out of range");
        return Value(static_cast<int64_t>(power));
      }
      return Value(power);
    }
    const int64_t x = a.as_int(), y = b.as_int();
    int64_t result = 0;
    bool overflow = false;
    if (op == "+")
      overflow = __builtin_add_overflow(x, y, &result);
    else if (op == "-")
      overflow = __builtin_sub_overflow(x, y, &result);
    else if (op == "*")
      overflow = __builtin_mul_overflow(x, y, &result);
    else {
      if (y == 0) fail("division by zero");
      if (y == -1) {  // also keeps INT64_MIN / -1 from trapping
        overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, x, &result);
      } else {
        const int64_t quotient = x / y, rest = x % y;
        const bool floor_differs = rest != 0 && (rest < 0) != (y < 0);
        result = op == "//" ? quotient - floor_differs : rest + (floor_differs ? y : 0);
      }
    }
    if (overflow) fail("a number is out of range");
    return Value(result);
  }

  Value comparison(const Expression& e, const ScopePtr& scope) {
    Value left = evaluate(*e.children[0], scope);
    for (size_t i = 0; i < e.ops.size(); ++i) {
      Value right = evaluate(*e.children[i + 1], scope);
      line_ = e.line;
      const std::string& op = e.ops[i];
      const bool holds = op == "=="       ? equals(left, right)
                         : op == "!="     ? !equals(left, right)
                         : op == "in"     ? apply_test("in", left, Arguments{{right}, {}}, budget_)
                         : op == "not in" ? !apply_test("in", left, Arguments{{right}, {}}, budget_)
                         : op == "<"      ? compare(left, right) < 0
                         : op == "<="     ? compare(left, right) <= 0
                         : op == ">"      ? compare(left, right) > 0
                                          : compare(left, right) >= 0;
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  struct Deeper {
    explicit Deeper(Interpreter& i) : depth(i.depth_) {
      if (++depth > 16 * i.max_depth_)
        throw TemplateError{TemplateError::Cause::limit, "the template recurses too deeply"};
    }
    ~Deeper() { --depth; }
    int& depth;
  };

  Budget& budget_;
  const int max_depth_;
  ScopePtr root_;
  PromptText out_;
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace

PromptText render(const Block& block, const Dict& variables, Budget& budget, int max_depth) {
  return Interpreter(variables, budget, max_depth).run(block);
}

}  // namespace tandem::jinja
