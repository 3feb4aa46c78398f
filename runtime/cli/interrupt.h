#pragma once

namespace tandem {

/// From now on the first SIGINT or SIGTERM only sets a flag; a second one ends the process at once.
void catch_interrupts();
bool interrupted();
/// @throws Error  kind `interrupted`, when it was
void throw_if_interrupted();

}  // namespace tandem
