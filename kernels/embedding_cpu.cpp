#include "kernels/embedding.h"

namespace tandem {

void embedding(const EmbeddingArgs& args) {
  embedding_reference(args);
}

}  // namespace tandem
