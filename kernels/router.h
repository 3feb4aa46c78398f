#pragma once

#include <cstdint>

#include "kernels/float_format.h"

namespace tandem {

class ThreadPool;

/// Chooses each row's experts: sigmoid scores of fp32 logits; a bias and a limit to the best groups steer the choice
/// alone; the weights are the chosen scores, divided by their sum if `normalize`, times `scaling`.
///
/// Ties go to the lower group and the lower expert. A group's score is the sum of its two best. Logits and scores use
/// one order of operations without fused multiply-add, so every rank chooses alike even on CPUs of different kinds.
/// Strides count floats from row to row; 0 stands for packed rows.
struct RouterArgs {
  int64_t rows = 0;
  int64_t hidden_size = 0;
  int64_t num_experts = 0;
  int64_t num_groups = 1;          // n_group; divides num_experts
  int64_t num_groups_chosen = 1;   // topk_group
  int64_t num_experts_chosen = 0;  // num_experts_per_tok; at most what the chosen groups hold
  bool normalize = true;           // norm_topk_prob; without effect for one expert, as in the family's code
  float scaling = 1.0f;            // routed_scaling_factor
  const float* x = nullptr;        // (rows, hidden_size)
  int64_t x_stride = 0;
  FloatFormat weight_format = FloatFormat::fp32;
  const void* weight = nullptr;  // (num_experts, hidden_size) packed
  const float* bias = nullptr;   // (num_experts), or null
  int32_t* experts = nullptr;    // (rows, num_experts_chosen) packed, ascending in each row
  float* weights = nullptr;      // (rows, num_experts_chosen) packed, of the experts above
  float* workspace = nullptr;    // router_workspace(args) floats
  ThreadPool* pool = nullptr;
};

int64_t router_workspace(const RouterArgs& args);  // floats: grows with rows
void router(const RouterArgs& args);
/// Logits in fp64; the workspace has the same size.
void router_reference(const RouterArgs& args);

}  // namespace tandem
