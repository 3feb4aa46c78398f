#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/detail/check.h"
#include "kernels/logits.h"

namespace tandem {
namespace {

std::vector<float> row_of(const LogitRows& x, int64_t row) {
  const float* first = x.logits + row * detail::stride_or(x.stride, x.vocab_size);
  std::vector<float> values(first, first + x.vocab_size);
  for (float& v : values) {
    if (std::isnan(v)) v = -std::numeric_limits<float>::infinity();
  }
  return values;
}

double log_sum_exp(const std::vector<float>& values) {
  const double largest = *std::max_element(values.begin(), values.end());
  if (std::isinf(largest)) return largest;
  double sum = 0;
  for (float v : values) sum += std::exp(v - largest);
  return largest + std::log(sum);
}

}  // namespace

void argmax_reference(const LogitRows& x, int32_t* tokens, float* values) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const std::vector<float> row = row_of(x, r);
    const auto best = std::max_element(row.begin(), row.end());
    tokens[r] = static_cast<int32_t>(best - row.begin());
    if (values != nullptr) values[r] = *best;
  }
}

void log_sum_exp_reference(const LogitRows& x, float* y) {
  for (int64_t r = 0; r < x.rows; ++r) y[r] = static_cast<float>(log_sum_exp(row_of(x, r)));
}

void log_softmax_reference(const LogitRows& x, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const std::vector<float> row = row_of(x, r);
    const double total = log_sum_exp(row);
    float* out = y + r * detail::stride_or(y_stride, x.vocab_size);
    for (int64_t i = 0; i < x.vocab_size; ++i) out[i] = static_cast<float>(row[i] - total);
  }
}

void top_logits_reference(const LogitRows& x, int64_t k, int32_t* tokens, float* values) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const std::vector<float> row = row_of(x, r);
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int64_t i = 0; i < k; ++i) {
      tokens[r * k + i] = order[i];
      values[r * k + i] = row[order[i]];
    }
  }
}

}  // namespace tandem
