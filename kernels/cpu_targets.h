#pragma once

#include <string>
#include <vector>

namespace tandem {

/// Names of the instruction sets that the kernels were compiled for and this machine has, the one in use first
/// ("AVX3_DL", "AVX2", "NEON", ...).
std::vector<std::string> cpu_targets();

}  // namespace tandem
