#include "kernels/rms_norm.h"

namespace tandem {

void rms_norm(const RmsNormArgs& args) {
  rms_norm_reference(args);
}
void gated_rms_norm(const GatedRmsNormArgs& args) {
  gated_rms_norm_reference(args);
}

}  // namespace tandem
