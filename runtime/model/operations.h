#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "kernels/embedding.h"
#include "kernels/kda_chunked.h"
#include "kernels/kda_gate.h"
#include "kernels/kda_step.h"
#include "kernels/l2_norm.h"
#include "kernels/logits.h"
#include "kernels/mla_cache.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/short_conv.h"
#include "kernels/swiglu.h"
#include "runtime/pack/ling_weights.h"

namespace tandem {

/// Zeroed memory of a device. Moves, and frees itself.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(void* data, int64_t bytes, std::function<void(void*)> release)
      : data_(data, std::move(release)), bytes_(bytes) {}

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, std::function<void(void*)>> data_;
  int64_t bytes_ = 0;
};

/// y = x W for some rows: one use of a linear.
struct LinearArgs {
  const Linear* linear = nullptr;
  int64_t rows = 0;
  const float* x = nullptr;  // (rows, in_features)
  int64_t x_stride = 0;      // floats from row to row; 0: packed
  float* y = nullptr;        // (rows, out_features)
  int64_t y_stride = 0;
};

/// The experts of a layer, routed and shared, once the router has chosen.
struct MoeArgs {
  const MoeWeights* weights = nullptr;
  int64_t rows = 0;
  int64_t hidden_size = 0;
  int64_t num_experts_chosen = 0;
  const float* x = nullptr;               // (rows, hidden_size) packed
  const int32_t* experts = nullptr;       // (rows, num_experts_chosen) packed
  const float* expert_weights = nullptr;  // (rows, num_experts_chosen) packed
  float* y = nullptr;                     // (rows, hidden_size) packed: this rank's partial sum
};

/// The seam between the model's graph and a device. The graph (ling.cpp) is written once against this interface; a
/// device is one class that implements it, as cpu_operations.cpp does for the kernels' CPU versions. Args are the
/// kernels' own; `pool` and `workspace` are left empty by the graph and filled in by the device.
///
/// Pointers in Args are memory of the device, activations fp32, with two exceptions that are host memory: tokens
/// (EmbeddingArgs::tokens) and positions (RopeArgs::positions). Operations run in the order of the calls; copy_to_host
/// and argmax wait for them. Every operation is row-invariant: a row's bits do not depend on the other rows of the
/// call, kda_chunked, mla_prefill and the grouping of rows into prefill passes aside.
///
/// Not operations: sums and gathers over ranks. A device with its own memory brings a Communicator that takes pointers
/// there.
class Operations {
 public:
  virtual ~Operations() = default;

  /// Zeroed memory, aligned to 64 bytes. Where the device allows it, pages are taken when they are first written.
  virtual DeviceBuffer allocate(int64_t bytes) = 0;
  /// Where operations read a weight: the bytes themselves, or a copy on the device that lives as long as this object.
  virtual const std::byte* place(std::span<const std::byte> weight) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, int64_t bytes) = 0;
  virtual void clear(void* data, int64_t bytes) = 0;
  virtual int threads() const = 0;
  /// Scratch memory that operations took for themselves so far.
  virtual int64_t workspace_bytes() const = 0;

  /// Independent products, as one piece of work: outputs must not overlap each other or any input.
  virtual void linear(std::span<const LinearArgs> products) = 0;
  void linear(const LinearArgs& product) { linear(std::span(&product, 1)); }

  virtual void embedding(EmbeddingArgs args) = 0;
  virtual void rms_norm(RmsNormArgs args) = 0;
  virtual void swiglu(SwigluArgs args) = 0;

  virtual void short_conv(ShortConvArgs args) = 0;
  virtual void short_conv_advance(const float* history, const float* x, int64_t rows, int64_t channels, int64_t taps,
                                  float* next_history) = 0;
  virtual void l2_norm(L2NormArgs args) = 0;
  virtual void kda_gate(KdaGateArgs args) = 0;
  virtual void kda_step(KdaStepArgs args) = 0;
  virtual void kda_chunked(KdaChunkedArgs args) = 0;
  virtual void gated_rms_norm(GatedRmsNormArgs args) = 0;

  virtual void rope(RopeArgs args) = 0;
  virtual void mla_cache_append(MlaCacheAppendArgs args) = 0;
  virtual void mla_decode(MlaArgs args) = 0;
  virtual void mla_prefill(MlaArgs args) = 0;

  virtual void router(RouterArgs args) = 0;
  virtual void moe(const MoeArgs& args) = 0;

  /// @param tokens, values  host memory, (rows)
  virtual void argmax(LogitRows logits, int32_t* tokens, float* values) = 0;
};

/// @param threads  0: one for each core this process may use
std::unique_ptr<Operations> make_cpu_operations(int threads);

}  // namespace tandem
