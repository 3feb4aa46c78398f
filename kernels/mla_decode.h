#pragma once

#include "kernels/mla_cache.h"

namespace tandem {

/// Gated MLA in the absorbed form, for a few rows against a long cache: all heads share the cached latent as key and
/// value, and kv_b's two halves move to the query and to the output:
///   qL = q_nope Wk;   s_t = (qL . latent_t + q_rope . rope_key_t) * scale;   cL = sum_t softmax(s)_t latent_t
///   o = sigmoid(gate) * (Wv cL)
///
/// The context is cut into fixed segments and blocks of positions whose partial softmaxes are merged in order, so a
/// row's bits depend on its position, not on the rows beside it, the grouping into calls, or the pool.
int64_t mla_decode_workspace(const MlaArgs& args);  // floats; a function of the dimensions and the pool, not of rows
void mla_decode(const MlaArgs& args);
/// Needs no workspace: fp64, one softmax over the whole context.
void mla_decode_reference(const MlaArgs& args);

}  // namespace tandem
