#include "kernels/cpu_targets.h"

#include <hwy/targets.h>

namespace tandem {

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  // Better sets have lower bits.
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    names.emplace_back(hwy::TargetName(left & -left));
  }
  return names;
}

}  // namespace tandem
