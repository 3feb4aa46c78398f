#pragma once

#include "runtime/chat/ast.h"
#include "runtime/chat/value.h"

namespace tandem::jinja {

/// A fault while rendering: what went wrong, where, and whose fault it is.
struct RenderError {
  TemplateError::Cause cause;
  std::string what;
  int line;
};

/// Renders a parsed template. `variables` are the template's globals.
/// @throws RenderError
PromptText render(const Block& block, const Dict& variables, Budget& budget, int max_depth);

}  // namespace tandem::jinja
