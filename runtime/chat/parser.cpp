// parser.cpp: a descent through Jinja's grammar, loosest binding first:
//   if-else < or < and < not < comparison < + - < ~ < * / // % < ** < unary < postfix (. [] () | is)

#include "runtime/chat/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "runtime/chat/lexer.h"

namespace tandem::jinja {
namespace {

using Kind = Expression::Kind;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    Block block = body({});
    return block;
  }

 private:
  // ---- tokens ----
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  [[noreturn]] void error(const std::string& what) const { throw SyntaxError{what, peek().line}; }

  bool is_op(std::string_view op) const { return peek().kind == Token::Kind::op && peek().text == op; }
  bool is_name(std::string_view name) const { return peek().kind == Token::Kind::name && peek().text == name; }
  bool accept_op(std::string_view op) { return is_op(op) && (next(), true); }
  bool accept_name(std::string_view name) { return is_name(name) && (next(), true); }
  void expect_op(std::string_view op) {
    if (!accept_op(op)) error("expected '" + std::string(op) + "', found " + shown());
  }
  std::string expect_name() {
    if (peek().kind != Token::Kind::name) error("expected a name, found " + shown());
    return next().text;
  }
  void expect(Token::Kind kind, const char* what) {
    if (peek().kind != kind) error(std::string("expected ") + what + ", found " + shown());
    next();
  }
  std::string shown() const {
    switch (peek().kind) {
      case Token::Kind::end:
        return "the end of the template";
      case Token::Kind::block_end:
        return "%}";
      case Token::Kind::variable_end:
        return "}}";
      default:
        return "'" + peek().text + "'";
    }
  }

  /// Hostile nesting must end in an error, not in a stack overflow.
  struct Nesting {
    explicit Nesting(Parser& parser) : depth(parser.depth_) {
      if (++depth > 200) parser.error("the template is nested too deeply");
    }
    ~Nesting() { --depth; }
    int& depth;
  };

  static ExpressionPtr make(Kind kind, int line, std::string name = "") {
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    e->line = line;
    e->name = std::move(name);
    return e;
  }
  template <typename... Children>
  static ExpressionPtr make(Kind kind, int line, std::string name, Children... children) {
    ExpressionPtr e = make(kind, line, std::move(name));
    (e->children.push_back(std::move(children)), ...);
    return e;
  }

  // ---- statements ----
  /// Statements up to a block tag whose name is in `ends`; that name is not consumed, "{%" before it is.
  Block body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block block;
    for (;;) {
      const int line = peek().line;
      switch (peek().kind) {
        case Token::Kind::end:
          if (ends.size() != 0) error("the template ends before {% " + std::string(*(ends.end() - 1)) + " %}");
          return block;
        case Token::Kind::data:
          block.push_back({Statement::Kind::text, line, next().text});
          break;
        case Token::Kind::variable_begin:
          next();
          block.push_back({Statement::Kind::output, line, "", tuple_or_expression()});
          expect(Token::Kind::variable_end, "}}");
          break;
        case Token::Kind::block_begin:
          next();
          for (const std::string_view end : ends)
            if (is_name(end)) return block;
          block.push_back(statement(line));
          break;
        default:
          error("unexpected " + shown());
      }
    }
  }

  void block_end() { expect(Token::Kind::block_end, "%}"); }

  Statement statement(int line) {
    const std::string name = expect_name();
    if (name == "if") return if_statement(line);
    if (name == "for") return for_statement(line);
    if (name == "set") return set_statement(line);
    if (name == "macro") return macro_statement(line);
    if (name == "call") return call_statement(line);
    if (name == "filter") {
      Statement s{Statement::Kind::filter_block, line};
      s.expression = filter_chain(nullptr);
      block_end();
      s.body = body({"endfilter"});
      finish();
      return s;
    }
    if (name == "with") {
      Statement s{Statement::Kind::with, line};
      while (peek().kind == Token::Kind::name) {
        std::string variable = expect_name();
        expect_op("=");
        s.parameters.emplace_back(std::move(variable), expression());
        if (!accept_op(",")) break;
      }
      block_end();
      s.body = body({"endwith"});
      finish();
      return s;
    }
    if (name == "generation") {  // marks the assistant's text for training; nothing to do here
      Statement s{Statement::Kind::scope, line};
      block_end();
      s.body = body({"endgeneration"});
      finish();
      return s;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) error("{% " + name + " %} outside of a loop");
      block_end();
      return {name == "break" ? Statement::Kind::break_ : Statement::Kind::continue_, line};
    }
    error("unknown tag {% " + name + " %}");
  }

  /// Consumes the closing tag's name and "%}".
  void finish() {
    next();
    block_end();
  }

  Statement if_statement(int line) {
    Statement s{Statement::Kind::if_, line};
    s.expression = tuple_or_expression();
    block_end();
    s.body = body({"elif", "else", "endif"});
    const int at = peek().line;
    if (accept_name("elif")) {
      const Nesting nesting(*this);
      s.orelse.push_back(if_statement(at));  // takes the shared endif with it
      return s;
    }
    if (accept_name("else")) {
      block_end();
      s.orelse = body({"endif"});
    }
    finish();
    return s;
  }

  Statement for_statement(int line) {
    Statement s{Statement::Kind::for_, line};
    s.targets = targets();
    if (!accept_name("in")) error("expected 'in', found " + shown());
    s.expression = tuple_or_expression(/*with_condition=*/false);
    if (accept_name("if")) s.condition = expression();
    if (is_name("recursive")) error("recursive loops are not supported");
    block_end();
    ++loops_;
    s.body = body({"else", "endfor"});
    --loops_;
    if (accept_name("else")) {
      block_end();
      s.orelse = body({"endfor"});
    }
    finish();
    return s;
  }

  Statement set_statement(int line) {
    Statement s{Statement::Kind::set, line};
    s.targets = targets();
    if (accept_op("=")) {
      s.expression = tuple_or_expression();
      block_end();
      return s;
    }
    s.kind = Statement::Kind::set_block;
    if (s.targets.size() != 1) error("a set block has one target");
    if (is_op("|")) s.expression = postfix_filters(nullptr);
    block_end();
    s.body = body({"endset"});
    finish();
    return s;
  }

  std::vector<std::pair<std::string, ExpressionPtr>> parameters() {
    std::vector<std::pair<std::string, ExpressionPtr>> list;
    expect_op("(");
    while (!accept_op(")")) {
      std::string name = expect_name();
      list.emplace_back(std::move(name), accept_op("=") ? expression() : nullptr);
      if (!is_op(")")) expect_op(",");
    }
    return list;
  }

  Statement macro_statement(int line) {
    Statement s{Statement::Kind::macro, line, expect_name()};
    s.parameters = parameters();
    block_end();
    const int outer_loops = std::exchange(loops_, 0);
    s.body = body({"endmacro"});
    loops_ = outer_loops;
    finish();
    return s;
  }

  Statement call_statement(int line) {
    Statement s{Statement::Kind::call_block, line};
    if (is_op("(")) s.parameters = parameters();
    s.expression = expression();
    if (s.expression->kind != Kind::call) error("{% call %} wants a call");
    block_end();
    const int outer_loops = std::exchange(loops_, 0);
    s.body = body({"endcall"});
    loops_ = outer_loops;
    finish();
    return s;
  }

  /// What may stand left of `=` or `in`: names or ns.attribute, separated by commas.
  std::vector<ExpressionPtr> targets() {
    std::vector<ExpressionPtr> list;
    const bool parenthesized = accept_op("(");
    do {
      const int line = peek().line;
      std::string name = expect_name();
      ExpressionPtr target = make(Kind::name, line, std::move(name));
      if (accept_op(".")) {
        std::string attribute = expect_name();
        target = make(Kind::attribute, line, std::move(attribute), std::move(target));
      }
      list.push_back(std::move(target));
    } while (accept_op(",") && peek().kind == Token::Kind::name);
    if (parenthesized) expect_op(")");
    return list;
  }

  // ---- expressions ----
  ExpressionPtr tuple_or_expression(bool with_condition = true) {
    const int line = peek().line;
    ExpressionPtr first = with_condition ? expression() : or_();
    if (!is_op(",")) return first;
    ExpressionPtr tuple = make(Kind::tuple, line, "", std::move(first));
    while (accept_op(",")) {
      if (peek().kind == Token::Kind::variable_end || peek().kind == Token::Kind::block_end || is_op(")")) break;
      tuple->children.push_back(with_condition ? expression() : or_());
    }
    return tuple;
  }

  ExpressionPtr expression() {
    const Nesting nesting(*this);
    ExpressionPtr value = or_();
    while (is_name("if")) {
      const int line = next().line;
      ExpressionPtr condition = or_();
      ExpressionPtr otherwise = accept_name("else") ? expression() : nullptr;
      value = make(Kind::condition, line, "", std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }

  template <typename Operand>
  ExpressionPtr left_associative(std::initializer_list<std::string_view> ops, Operand operand) {
    ExpressionPtr left = operand();
    for (;;) {
      const auto op = std::find_if(ops.begin(), ops.end(), [&](std::string_view o) { return is_op(o); });
      if (op == ops.end()) return left;
      const int line = next().line;
      left = make(Kind::binary, line, std::string(*op), std::move(left), operand());
    }
  }

  ExpressionPtr or_() {
    ExpressionPtr left = and_();
    while (is_name("or")) {
      const int line = next().line;
      left = make(Kind::binary, line, "or", std::move(left), and_());
    }
    return left;
  }

  ExpressionPtr and_() {
    ExpressionPtr left = not_();
    while (is_name("and")) {
      const int line = next().line;
      left = make(Kind::binary, line, "and", std::move(left), not_());
    }
    return left;
  }

  ExpressionPtr not_() {
    if (!is_name("not")) return comparison();
    const Nesting nesting(*this);
    const int line = next().line;
    return make(Kind::unary, line, "not", not_());
  }

  ExpressionPtr comparison() {
    ExpressionPtr first = sum();
    ExpressionPtr chain;
    for (;;) {
      std::string op;
      for (const std::string_view candidate : {"==", "!=", "<=", ">=", "<", ">"})
        if (is_op(candidate)) op = candidate;
      if (is_name("in")) op = "in";
      if (is_name("not") && peek(1).kind == Token::Kind::name && peek(1).text == "in") op = "not in", next();
      if (op.empty()) return chain ? std::move(chain) : std::move(first);
      const int line = next().line;
      if (!chain) chain = make(Kind::compare, line, "", std::move(first));
      chain->ops.push_back(op);
      chain->children.push_back(sum());
    }
  }

  ExpressionPtr sum() {
    return left_associative({"+", "-"}, [&] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    return left_associative({"~"}, [&] { return product(); });
  }
  ExpressionPtr product() {
    return left_associative({"*", "//", "/", "%"}, [&] { return power(); });
  }
  ExpressionPtr power() {
    return left_associative({"**"}, [&] { return unary(); });
  }

  ExpressionPtr unary(bool with_filters = true) {
    const Nesting nesting(*this);
    const int line = peek().line;
    ExpressionPtr e;
    if (accept_op("-"))
      e = make(Kind::unary, line, "-", unary(false));
    else if (accept_op("+"))
      e = make(Kind::unary, line, "+", unary(false));
    else
      e = primary();
    e = postfix(std::move(e));
    return with_filters ? postfix_filters(std::move(e)) : std::move(e);
  }

  ExpressionPtr literal(Value value) {
    ExpressionPtr e = make(Kind::literal, next().line);
    e->value = std::move(value);
    return e;
  }

  ExpressionPtr primary() {
    const Token& token = peek();
    switch (token.kind) {
      case Token::Kind::string: {
        std::string text = token.text;
        const int line = next().line;
        while (peek().kind == Token::Kind::string) text += next().text;
        ExpressionPtr e = make(Kind::literal, line);
        e->value = Value::text(text);
        return e;
      }
      case Token::Kind::integer: {
        int64_t value = 0;
        const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        if (read.ec != std::errc()) error("the number " + token.text + " is too large");
        return literal(Value(value));
      }
      case Token::Kind::real: {
        double value = 0;
        const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        if (read.ec != std::errc()) error("the number " + token.text + " is out of range");
        return literal(Value(value));
      }
      case Token::Kind::name:
        if (token.text == "true" || token.text == "True") return literal(Value(true));
        if (token.text == "false" || token.text == "False") return literal(Value(false));
        if (token.text == "none" || token.text == "None") return literal(Value());
        return make(Kind::name, token.line, next().text);
      case Token::Kind::op:
        if (token.text == "(") return parenthesized();
        if (token.text == "[") return list_display();
        if (token.text == "{") return dict_display();
        break;
      default:
        break;
    }
    error("unexpected " + shown());
  }

  ExpressionPtr parenthesized() {
    const int line = next().line;
    if (accept_op(")")) return make(Kind::tuple, line);
    ExpressionPtr inner = tuple_or_expression();
    expect_op(")");
    return inner;
  }

  ExpressionPtr list_display() {
    ExpressionPtr list = make(Kind::list, next().line);
    while (!accept_op("]")) {
      list->children.push_back(expression());
      if (!is_op("]")) expect_op(",");
    }
    return list;
  }

  ExpressionPtr dict_display() {
    ExpressionPtr dict = make(Kind::dict, next().line);
    while (!accept_op("}")) {
      dict->children.push_back(expression());
      expect_op(":");
      dict->children.push_back(expression());
      if (!is_op("}")) expect_op(",");
    }
    return dict;
  }

  ExpressionPtr postfix(ExpressionPtr e) {
    for (;;) {
      const int line = peek().line;
      if (accept_op(".")) {
        if (peek().kind == Token::Kind::integer) {
          ExpressionPtr index = primary();
          e = make(Kind::subscript, line, "", std::move(e), std::move(index));
        } else {
          std::string name = expect_name();
          e = make(Kind::attribute, line, std::move(name), std::move(e));
        }
      } else if (accept_op("[")) {
        ExpressionPtr index = subscript_index();
        e = make(Kind::subscript, line, "", std::move(e), std::move(index));
      } else if (is_op("(")) {
        e = make(Kind::call, line, "", std::move(e));
        arguments(*e);
      } else {
        return e;
      }
    }
  }

  ExpressionPtr subscript_index() {
    const int line = peek().line;
    ExpressionPtr parts[3];
    int colons = 0;
    for (; !is_op("]");) {
      if (accept_op(":")) {
        if (++colons > 2) error("a slice has at most three parts");
      } else {
        if (parts[colons]) error("expected ']', found " + shown());
        parts[colons] = expression();
      }
    }
    expect_op("]");
    if (colons) return make(Kind::slice, line, "", std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
    if (!parts[0]) error("a subscript is empty");
    return std::move(parts[0]);
  }

  void arguments(Expression& call) {
    expect_op("(");
    while (!accept_op(")")) {
      if (is_op("*") || is_op("**")) error("* and ** arguments are not supported");
      if (peek().kind == Token::Kind::name && peek(1).kind == Token::Kind::op && peek(1).text == "=") {
        std::string name = next().text;
        next();
        call.named.emplace_back(std::move(name), expression());
      } else {
        if (!call.named.empty()) error("a positional argument after a named one");
        call.children.push_back(expression());
      }
      if (!is_op(")")) expect_op(",");
    }
  }

  /// name(arguments) | name(arguments) ...: after the first bar, or of a filter block.
  ExpressionPtr filter_chain(ExpressionPtr e) {
    do {
      const int line = peek().line;
      std::string name = expect_name();
      e = make(Kind::filter, line, std::move(name), std::move(e));
      if (is_op("(")) arguments(*e);
    } while (accept_op("|"));
    return e;
  }

  ExpressionPtr postfix_filters(ExpressionPtr e) {
    for (;;) {
      if (accept_op("|"))
        e = filter_chain(std::move(e));
      else if (is_name("is"))
        e = test(std::move(e));
      else if (is_op("("))
        e = postfix(std::move(e));
      else
        return e;
    }
  }

  ExpressionPtr test(ExpressionPtr subject) {
    const int line = next().line;
    const bool negated = accept_name("not");
    std::string name = expect_name();
    ExpressionPtr e = make(Kind::test, line, std::move(name), std::move(subject));
    const Token& token = peek();
    const bool keyword = token.kind == Token::Kind::name &&
                         (token.text == "else" || token.text == "or" || token.text == "and" || token.text == "is" ||
                          token.text == "if" || token.text == "in" || token.text == "not");
    if (is_op("(")) {
      arguments(*e);
    } else if ((token.kind == Token::Kind::name && !keyword) || token.kind == Token::Kind::string ||
               token.kind == Token::Kind::integer || token.kind == Token::Kind::real || is_op("[") || is_op("{")) {
      e->children.push_back(postfix(primary()));
    }
    return negated ? make(Kind::unary, line, "not", std::move(e)) : std::move(e);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(source).run();
}

}  // namespace tandem::jinja
