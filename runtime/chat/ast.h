#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/chat/value.h"

namespace tandem::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    literal,  // value
    name,     // name
    list,
    tuple,      // children
    dict,       // children: key, value, key, value, ...
    attribute,  // children[0] . name
    subscript,  // children[0] [ children[1] ]
    slice,      // children: start, stop, step (each may be null); only as a subscript's index
    call,       // children[0] ( children[1..], named )
    filter,     // children[0] | name ( children[1..], named ); children[0] null in a filter block
    test,       // children[0] is name ( children[1..] )
    unary,      // name: "-", "+", "not"
    binary,     // name: + - * / // % ** ~ and or
    compare,    // children[0] ops[0] children[1] ops[1] children[2] ...
    condition,  // children: value if true, condition, value if false (may be null)
  } kind;
  int line;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> ops;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    text,          // name: the text
    output,        // expression
    if_,           // expression, body, orelse
    for_,          // targets in expression [if condition]: body else orelse
    set,           // targets = expression
    set_block,     // targets = body, through the filter in expression (may be null)
    macro,         // name(parameters): body
    call_block,    // {% call(parameters) expression %} body
    filter_block,  // expression (a filter) applied to body
    with,          // parameters as name = default: body
    scope,         // body in a scope of its own ({% generation %})
    break_,
    continue_,
  } kind;
  int line;
  std::string name;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<ExpressionPtr> targets;                             // names, or ns.attribute
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // name, default (may be null)
  Block body;
  Block orelse;
};

}  // namespace tandem::jinja
