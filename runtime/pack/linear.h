#pragma once

#include <cstdint>
#include <variant>

#include "kernels/exl3.h"
#include "kernels/float_format.h"

namespace tandem {

/// The weight of a linear as checkpoints store it, unquantized. Owns nothing; may be unaligned.
struct DenseWeight {
  const void* data = nullptr;  // (out_features, in_features)
  FloatFormat format = FloatFormat::bf16;
  const float* bias = nullptr;  // (out_features), or null
};

/// y = x W: one matrix of the model, in whichever form the pack has it. Sizes are this rank's and the model's own:
/// an EXL3 weight may be padded beyond them.
struct Linear {
  int64_t in_features = 0;
  int64_t out_features = 0;
  std::variant<DenseWeight, Exl3Weight> weight;

  /// What one pass over it reads.
  int64_t bytes() const {
    if (const auto* exl3 = std::get_if<Exl3Weight>(&weight)) {
      return exl3->in_features * exl3->out_features * exl3->bits / 8 + 2 * (exl3->in_features + exl3->out_features);
    }
    return in_features * out_features * float_format_bytes(std::get<DenseWeight>(weight).format);
  }
};

}  // namespace tandem
