#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

/// The pairs (row, expert) that a router chose, sorted by expert so that each expert works on its rows together.
/// Pair p of a batch is row p / num_experts_chosen, choice p % num_experts_chosen.
struct MoeGroupArgs {
  int64_t rows = 0;
  int64_t num_experts = 0;
  int64_t num_experts_chosen = 0;
  const int32_t* experts = nullptr;  // (rows, num_experts_chosen) packed, each in [0, num_experts)
  int64_t* first_slot = nullptr;     // (num_experts + 1): expert e has slots first_slot[e] .. first_slot[e + 1] - 1
  int32_t* row_of_slot = nullptr;    // (rows * num_experts_chosen), ascending within an expert
  int32_t* slot_of_pair = nullptr;   // (rows, num_experts_chosen): the inverse map
};

/// @throws Error  kind `internal`, when an expert is out of range
void moe_group(const MoeGroupArgs& args);

/// y[row] = sum over the row's choices, in order, of weight * expert output, then + shared.
/// Strides count floats from row to row; 0 stands for packed rows.
struct MoeCombineArgs {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t num_experts_chosen = 0;
  const float* expert_outputs = nullptr;  // (slots, width)
  int64_t expert_outputs_stride = 0;
  const int32_t* slot_of_pair = nullptr;  // (rows, num_experts_chosen) packed; null: slot = pair
  const float* weights = nullptr;         // (rows, num_experts_chosen) packed
  const float* shared = nullptr;          // (rows, width), or null
  int64_t shared_stride = 0;
  float* y = nullptr;  // (rows, width); may be shared
  int64_t y_stride = 0;
  ThreadPool* pool = nullptr;
};

void moe_combine(const MoeCombineArgs& args);
void moe_combine_reference(const MoeCombineArgs& args);

}  // namespace tandem
