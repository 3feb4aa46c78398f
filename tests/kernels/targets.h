#pragma once

#include <hwy/targets.h>

#include <cstdint>

#include "tests/catch.h"

namespace tandem {

/// Runs `test` once for every instruction set of this machine, as if it had no better one: bit 0 is the best, and a
/// kernel that was not compiled for the set in question takes the next.
template <typename Test>
void for_each_target(Test&& test) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t left = all; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left);
    INFO("instruction set " << hwy::TargetName(left & -left));
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tandem
