#include "kernels/short_conv.h"

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/short_conv_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// Channels [first, last) of all rows: the taps of a vector of channels stay in registers while the rows pass.
void short_conv_channels(const ShortConvArgs& a, int64_t first, int64_t last) {
  const int64_t past = a.taps - 1;
  const int64_t x_stride = stride_or(a.x_stride, a.channels);
  const int64_t y_stride = stride_or(a.y_stride, a.channels);
  for (int64_t c = first; c < last; c += kLanes) {
    const int64_t n = last - c;
    Vec weight[kMaxShortConvTaps];
    Vec window[kMaxShortConvTaps];  // the rows that the next output needs, oldest first
    for (int64_t j = 0; j < a.taps; ++j) weight[j] = load(a.weight + j * a.channels + c, n);
    for (int64_t j = 0; j < past; ++j) window[j] = load(a.history + j * a.channels + c, n);
    for (int64_t t = 0; t < a.rows; ++t) {
      window[past] = load(a.x + t * x_stride + c, n);
      Vec sum = hn::Mul(window[0], weight[0]);
      for (int64_t j = 1; j < a.taps; ++j) sum = hn::MulAdd(window[j], weight[j], sum);
      store(silu(sum), a.y + t * y_stride + c, n);
      for (int64_t j = 0; j < past; ++j) window[j] = window[j + 1];
    }
    if (a.next_history != nullptr) {
      for (int64_t j = 0; j < past; ++j) store(window[j], a.next_history + j * a.channels + c, n);
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(short_conv_channels);

void short_conv(const ShortConvArgs& a) {
  detail::require(a.taps >= 2 && a.taps <= kMaxShortConvTaps, "short_conv", "taps must be 2..8");
  // Whole cache lines a piece.
  constexpr int64_t kBlock = 64;
  const int64_t grain = detail::grain_items(kBlock * (a.rows * 3 + a.taps));
  detail::parallel_ranges(a.pool, detail::ceil_div(a.channels, kBlock), grain, [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(short_conv_channels)(a, first * kBlock, std::min(last * kBlock, a.channels));
  });
}

}  // namespace tandem
#endif
