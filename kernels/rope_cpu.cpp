#include "kernels/rope.h"

namespace tandem {

void rope(const RopeArgs& args) {
  rope_reference(args);
}

}  // namespace tandem
