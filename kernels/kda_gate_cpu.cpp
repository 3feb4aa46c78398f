#include "kernels/kda_gate.h"

namespace tandem {

void kda_gate(const KdaGateArgs& args) {
  kda_gate_reference(args);
}

}  // namespace tandem
