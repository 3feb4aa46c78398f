#include "kernels/logits.h"

namespace tandem {

void argmax(const LogitRows& x, int32_t* tokens, float* values) {
  argmax_reference(x, tokens, values);
}
void log_sum_exp(const LogitRows& x, float* y) {
  log_sum_exp_reference(x, y);
}
void log_softmax(const LogitRows& x, float* y, int64_t y_stride) {
  log_softmax_reference(x, y, y_stride);
}
void top_logits(const LogitRows& x, int64_t k, int32_t* tokens, float* values) {
  top_logits_reference(x, k, tokens, values);
}

}  // namespace tandem
