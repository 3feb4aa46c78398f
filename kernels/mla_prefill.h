#pragma once

#include "kernels/mla_cache.h"

namespace tandem {

/// Gated MLA in the expanded form, for prompts: blocks of cached latents are expanded to keys and values per head,
///   [k_nope_t | v_t] = kv_b latent_t;   s_t = (q_nope . k_nope_t + q_rope . rope_key_t) * scale
///   o = sigmoid(gate) * sum_t softmax(s)_t v_t
/// and folded into a running softmax, so scratch memory is the same for any number of rows and positions.
///
/// Blocks are a function of the position alone: a row's bits do not depend on how the prompt is cut into calls, nor on
/// the pool. They differ from mla_decode's in the last bits.
int64_t mla_prefill_workspace(const MlaArgs& args);  // floats; a function of the dimensions and the pool, not of rows
void mla_prefill(const MlaArgs& args);
/// Needs no workspace: fp64, one softmax over the whole context.
void mla_prefill_reference(const MlaArgs& args);

}  // namespace tandem
