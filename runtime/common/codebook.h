#pragma once

#include <cstdint>

namespace tandem {

/// EXL3's three ways to make a weight of a 16-bit trellis state. A pack names mcg and mul1 by a marker tensor; without
/// a marker it is 3INST.
enum class Codebook : uint8_t { three_inst, mcg, mul1 };

}  // namespace tandem
