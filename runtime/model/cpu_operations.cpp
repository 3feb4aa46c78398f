#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/dense_linear.h"
#include "kernels/exl3.h"
#include "kernels/mla_decode.h"
#include "kernels/mla_prefill.h"
#include "kernels/moe.h"
#include "kernels/thread_pool.h"
#include "runtime/common/error.h"
#include "runtime/common/units.h"
#include "runtime/model/operations.h"

namespace tandem {
namespace {

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

/// Scratch memory that keeps the largest size asked for.
class Scratch {
 public:
  std::byte* bytes(int64_t count) {
    if (count > bytes_) {
      memory_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(count), kAlignment)));
      bytes_ = count;
    }
    return memory_.get();
  }
  float* floats(int64_t count) { return reinterpret_cast<float*>(bytes(count * 4)); }
  int64_t size() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Release {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<std::byte, Release> memory_;
  int64_t bytes_ = 0;
};

/// The kernels' CPU versions over one team of threads.
class CpuOperations : public Operations {
 public:
  explicit CpuOperations(int threads) : pool_(threads > 0 ? threads : usable_cores()) {}

  DeviceBuffer allocate(int64_t bytes) override {
    // Anonymous pages: zeroed, and taken when first written, so that a long context costs what it holds.
    void* data = mmap(nullptr, static_cast<size_t>(std::max<int64_t>(bytes, 1)), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(ErrorKind::memory,
                  "cannot reserve " + format_bytes(bytes) + " of memory: " + std::string(strerror(errno)), "",
                  "use a shorter --context or fewer --slots");
    }
    return DeviceBuffer(data, bytes,
                        [bytes](void* memory) { munmap(memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))); });
  }

  const std::byte* place(std::span<const std::byte> weight) override { return weight.data(); }
  void copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  void copy_to_host(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void clear(void* data, int64_t bytes) override { std::memset(data, 0, static_cast<size_t>(bytes)); }
  int threads() const override { return pool_.threads(); }
  int64_t workspace_bytes() const override { return scratch_.size() + moe_scratch_.size(); }

  using Operations::linear;
  void linear(std::span<const LinearArgs> products) override {
    clear_products();
    for (const LinearArgs& product : products) add_product(product, nullptr);
    run_products();
  }

  void embedding(EmbeddingArgs args) override { tandem::embedding(with_pool(args)); }
  void rms_norm(RmsNormArgs args) override { tandem::rms_norm(with_pool(args)); }
  void swiglu(SwigluArgs args) override { tandem::swiglu(with_pool(args)); }
  void short_conv(ShortConvArgs args) override { tandem::short_conv(with_pool(args)); }
  void short_conv_advance(const float* history, const float* x, int64_t rows, int64_t channels, int64_t taps,
                          float* next_history) override {
    tandem::short_conv_advance(history, x, channels, rows, channels, taps, next_history);
  }
  void l2_norm(L2NormArgs args) override { tandem::l2_norm(with_pool(args)); }
  void kda_gate(KdaGateArgs args) override { tandem::kda_gate(with_pool(args)); }
  void kda_step(KdaStepArgs args) override { tandem::kda_step(with_pool(args)); }
  void kda_chunked(KdaChunkedArgs args) override {
    args = with_pool(args);
    args.workspace = scratch_.floats(kda_chunked_workspace(args));
    tandem::kda_chunked(args);
  }
  void gated_rms_norm(GatedRmsNormArgs args) override { tandem::gated_rms_norm(with_pool(args)); }
  void rope(RopeArgs args) override { tandem::rope(with_pool(args)); }
  void mla_cache_append(MlaCacheAppendArgs args) override { tandem::mla_cache_append(args); }
  void mla_decode(MlaArgs args) override {
    args = with_pool(args);
    args.workspace = scratch_.floats(mla_decode_workspace(args));
    tandem::mla_decode(args);
  }
  void mla_prefill(MlaArgs args) override {
    args = with_pool(args);
    args.workspace = scratch_.floats(mla_prefill_workspace(args));
    tandem::mla_prefill(args);
  }
  void router(RouterArgs args) override {
    args = with_pool(args);
    args.workspace = scratch_.floats(router_workspace(args));
    tandem::router(args);
  }
  void moe(const MoeArgs& args) override;
  void argmax(LogitRows logits, int32_t* tokens, float* values) override {
    tandem::argmax(with_pool(logits), tokens, values);
  }

 private:
  template <typename Args>
  Args with_pool(Args args) {
    args.pool = &pool_;
    return args;
  }

  void add_product(const LinearArgs& product, const int32_t* input_rows);
  void run_products();
  void clear_products() {
    exl3_products_.clear();
    dense_products_.clear();
  }

  struct DenseProduct {
    LinearArgs args;
    const int32_t* input_rows;
  };

  ThreadPool pool_;
  Scratch scratch_;      // of one operation at a time
  Scratch moe_scratch_;  // of moe(), which runs others
  std::vector<Exl3Product> exl3_products_;
  std::vector<DenseProduct> dense_products_;
  std::vector<int64_t> first_slot_;
  std::vector<int32_t> row_of_slot_;
  std::vector<int32_t> slot_of_pair_;
};

void CpuOperations::add_product(const LinearArgs& product, const int32_t* input_rows) {
  const Linear& linear = *product.linear;
  const int64_t x_stride = product.x_stride ? product.x_stride : linear.in_features;
  const int64_t y_stride = product.y_stride ? product.y_stride : linear.out_features;
  if (const auto* weight = std::get_if<Exl3Weight>(&linear.weight)) {
    exl3_products_.push_back({.weight = weight,
                              .x = product.x,
                              .x_stride = x_stride,
                              .input_rows = input_rows,
                              .rows = product.rows,
                              .y = product.y,
                              .y_stride = y_stride,
                              .valid_in = linear.in_features,
                              .valid_out = linear.out_features});
    return;
  }
  LinearArgs args = product;
  args.x_stride = x_stride;
  args.y_stride = y_stride;
  dense_products_.push_back({args, input_rows});
}

void CpuOperations::run_products() {
  if (!exl3_products_.empty()) {
    int64_t max_in_features = 0;
    for (const Exl3Product& product : exl3_products_) {
      max_in_features = std::max(max_in_features, product.weight->in_features);
    }
    const int64_t bytes = exl3_workspace_bytes(max_in_features, pool_.threads());
    exl3_linear(
        {.products = exl3_products_, .workspace = scratch_.bytes(bytes), .workspace_bytes = bytes, .pool = &pool_});
    exl3_products_.clear();
  }
  for (const DenseProduct& product : dense_products_) {
    const Linear& linear = *product.args.linear;
    const auto& weight = std::get<DenseWeight>(linear.weight);
    DenseLinearArgs args{.weight = weight.data,
                         .format = weight.format,
                         .in_features = linear.in_features,
                         .out_features = linear.out_features,
                         .bias = weight.bias,
                         .x = product.args.x,
                         .x_stride = product.args.x_stride,
                         .rows = product.args.rows,
                         .y = product.args.y,
                         .y_stride = product.args.y_stride,
                         .pool = &pool_};
    if (product.input_rows) {
      float* gathered = scratch_.floats(args.rows * args.in_features);
      for (int64_t row = 0; row < args.rows; ++row) {
        std::copy_n(args.x + product.input_rows[row] * args.x_stride, args.in_features,
                    gathered + row * args.in_features);
      }
      args.x = gathered;
      args.x_stride = args.in_features;
    }
    dense_linear(args);
  }
  clear_products();
}

void CpuOperations::moe(const MoeArgs& args) {
  const MoeWeights& moe = *args.weights;
  const auto num_experts = static_cast<int64_t>(moe.experts.size());
  const int64_t slots = args.rows * args.num_experts_chosen;
  first_slot_.resize(static_cast<size_t>(num_experts + 1));
  row_of_slot_.resize(static_cast<size_t>(slots));
  slot_of_pair_.resize(static_cast<size_t>(slots));
  moe_group({.rows = args.rows,
             .num_experts = num_experts,
             .num_experts_chosen = args.num_experts_chosen,
             .experts = args.experts,
             .first_slot = first_slot_.data(),
             .row_of_slot = row_of_slot_.data(),
             .slot_of_pair = slot_of_pair_.data()});

  const int64_t hidden_size = args.hidden_size;
  const int64_t width = moe.experts.front().gate_proj.out_features;
  const int64_t shared_width = moe.shared_experts ? moe.shared_experts->gate_proj.out_features : 0;
  float* gate = moe_scratch_.floats(slots * (2 * width + hidden_size) + 2 * args.rows * shared_width);
  float* up = gate + slots * width;
  float* outputs = up + slots * width;  // (slots, hidden_size)
  float* shared_gate = outputs + slots * hidden_size;
  float* shared_up = shared_gate + args.rows * shared_width;

  clear_products();  // an error may have left some
  // Gate and up of all chosen experts and of the shared one are independent: one loop keeps all threads busy.
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t first = first_slot_[expert];
    const int64_t rows = first_slot_[expert + 1] - first;
    if (rows == 0) continue;
    const MlpWeights& mlp = moe.experts[expert];
    const int32_t* input_rows = row_of_slot_.data() + first;
    add_product({.linear = &mlp.gate_proj, .rows = rows, .x = args.x, .y = gate + first * width}, input_rows);
    add_product({.linear = &mlp.up_proj, .rows = rows, .x = args.x, .y = up + first * width}, input_rows);
  }
  if (moe.shared_experts) {
    add_product({.linear = &moe.shared_experts->gate_proj, .rows = args.rows, .x = args.x, .y = shared_gate}, nullptr);
    add_product({.linear = &moe.shared_experts->up_proj, .rows = args.rows, .x = args.x, .y = shared_up}, nullptr);
  }
  run_products();

  swiglu({.rows = slots, .width = width, .limit = moe.experts_swiglu_limit, .gate = gate, .up = up, .y = gate});
  if (moe.shared_experts) {
    swiglu({.rows = args.rows,
            .width = shared_width,
            .limit = moe.shared_swiglu_limit,
            .gate = shared_gate,
            .up = shared_up,
            .y = shared_gate});
  }

  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t first = first_slot_[expert];
    const int64_t rows = first_slot_[expert + 1] - first;
    if (rows == 0) continue;
    add_product({.linear = &moe.experts[expert].down_proj,
                 .rows = rows,
                 .x = gate + first * width,
                 .y = outputs + first * hidden_size},
                nullptr);
  }
  if (moe.shared_experts) {
    add_product({.linear = &moe.shared_experts->down_proj, .rows = args.rows, .x = shared_gate, .y = args.y}, nullptr);
  }
  run_products();

  moe_combine(with_pool(MoeCombineArgs{.rows = args.rows,
                                       .width = hidden_size,
                                       .num_experts_chosen = args.num_experts_chosen,
                                       .expert_outputs = outputs,
                                       .slot_of_pair = slot_of_pair_.data(),
                                       .weights = args.expert_weights,
                                       .shared = moe.shared_experts ? args.y : nullptr,
                                       .y = args.y}));
}

}  // namespace

std::unique_ptr<Operations> make_cpu_operations(int threads) {
  return std::make_unique<CpuOperations>(threads);
}

}  // namespace tandem
