#include "kernels/embedding.h"

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

template <FloatFormat kFormat>
void convert_row(const void* table, int64_t row, int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    store(load_as<kFormat>(table, row * width + i, width - i), y + i, width - i);
  }
}

void embedding_rows(const EmbeddingArgs& a, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) {
    const int64_t row = a.tokens[r] - a.first_token;
    float* y = a.y + r * stride_or(a.y_stride, a.hidden_size);
    if (row < 0 || row >= a.table_rows) {
      std::fill(y, y + a.hidden_size, 0.0f);
      continue;
    }
    switch (a.format) {
      case FloatFormat::fp32:
        convert_row<FloatFormat::fp32>(a.table, row, a.hidden_size, y);
        break;
      case FloatFormat::bf16:
        convert_row<FloatFormat::bf16>(a.table, row, a.hidden_size, y);
        break;
      case FloatFormat::fp16:
        convert_row<FloatFormat::fp16>(a.table, row, a.hidden_size, y);
        break;
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(embedding_rows);

void embedding(const EmbeddingArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    if (a.tokens[r] < 0 || a.tokens[r] >= a.vocab_size) {
      throw Error(ErrorKind::usage, "token " + std::to_string(a.tokens[r]) + " is not in the vocabulary",
                  "row " + std::to_string(r), "use tokens from 0 to " + std::to_string(a.vocab_size - 1));
    }
  }
  detail::parallel_ranges(a.pool, a.rows, detail::grain_items(a.hidden_size), [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(embedding_rows)(a, first, last);
  });
}

}  // namespace tandem
#endif
