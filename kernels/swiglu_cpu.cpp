#include "kernels/swiglu.h"

namespace tandem {

void swiglu(const SwigluArgs& args) {
  swiglu_reference(args);
}

}  // namespace tandem
