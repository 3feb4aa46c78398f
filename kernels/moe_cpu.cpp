#include "kernels/moe.h"

namespace tandem {

void moe_combine(const MoeCombineArgs& args) {
  moe_combine_reference(args);
}

}  // namespace tandem
