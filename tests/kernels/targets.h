#pragma once

#include <hwy/highway.h>

#include <cstdint>

#include "tests/catch.h"

namespace tandem {

/// Runs `test` once for every instruction set that this program was built for and this machine has; the kernels it
/// calls use no other meanwhile.
template <typename Test>
void for_each_target(Test&& test) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t left = all; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    INFO("instruction set " << hwy::TargetName(target));
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tandem
