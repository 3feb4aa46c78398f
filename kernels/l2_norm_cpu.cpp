#include "kernels/l2_norm.h"

namespace tandem {

void l2_norm(const L2NormArgs& args) {
  l2_norm_reference(args);
}

}  // namespace tandem
