#pragma once

#include <cstdint>
#include <string>

#include "runtime/common/error.h"

namespace tandem::detail {

/// Arguments that no caller of ours may pass; what comes from packs and users has been checked before.
inline void require(bool holds, const char* operation, const char* what) {
  if (!holds) throw Error(ErrorKind::internal, std::string(operation) + ": " + what);
}

inline int64_t stride_or(int64_t stride, int64_t packed) {
  return stride != 0 ? stride : packed;
}

}  // namespace tandem::detail
