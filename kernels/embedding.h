#pragma once

#include <cstdint>

#include "kernels/float_format.h"

namespace tandem {

class ThreadPool;

/// y[row] = table[tokens[row]], in fp32. A rank that holds only some rows of the vocabulary gives zeros for the others,
/// so that the sum over ranks is the lookup.
struct EmbeddingArgs {
  int64_t rows = 0;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;   // tokens are in [0, vocab_size)
  int64_t first_token = 0;  // of the table
  int64_t table_rows = 0;   // tokens the table holds
  FloatFormat format = FloatFormat::bf16;
  const void* table = nullptr;      // (table_rows, hidden_size) packed
  const int32_t* tokens = nullptr;  // (rows)
  float* y = nullptr;               // (rows, hidden_size)
  int64_t y_stride = 0;             // floats; 0: packed
  ThreadPool* pool = nullptr;
};

/// @throws Error  kind `usage`, when a token is not in the vocabulary
void embedding(const EmbeddingArgs& args);
void embedding_reference(const EmbeddingArgs& args);

}  // namespace tandem
