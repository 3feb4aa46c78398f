#pragma once

#include "kernels/mla_cache.h"

namespace tandem::detail {

void check_mla(const MlaArgs& args, const char* operation);

/// The same call for some of its rows.
MlaArgs rows_of(const MlaArgs& args, int64_t first, int64_t rows);

}  // namespace tandem::detail
