#include "kernels/short_conv.h"

namespace tandem {

void short_conv(const ShortConvArgs& args) {
  short_conv_reference(args);
}

}  // namespace tandem
