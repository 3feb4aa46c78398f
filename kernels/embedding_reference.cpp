#include "kernels/detail/check.h"
#include "kernels/embedding.h"

namespace tandem {

void embedding_reference(const EmbeddingArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    float* y = a.y + r * detail::stride_or(a.y_stride, a.hidden_size);
    const int64_t row = a.tokens[r] - a.first_token;
    for (int64_t i = 0; i < a.hidden_size; ++i) {
      y[i] = row >= 0 && row < a.table_rows ? load_float(a.table, a.format, row * a.hidden_size + i) : 0.0f;
    }
  }
}

}  // namespace tandem
