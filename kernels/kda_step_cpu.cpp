#include "kernels/kda_step.h"

namespace tandem {

void kda_step(const KdaStepArgs& args) {
  kda_step_reference(args);
}

}  // namespace tandem
