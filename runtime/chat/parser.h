#pragma once

#include <string_view>

#include "runtime/chat/ast.h"

namespace tandem::jinja {

/// @throws SyntaxError (lexer.h)
Block parse(std::string_view source);

}  // namespace tandem::jinja
