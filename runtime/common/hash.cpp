#include "runtime/common/hash.h"

#include <fcntl.h>
#include <openssl/evp.h>

#include <utility>
#include <vector>

#include "runtime/common/error.h"
#include "runtime/common/file.h"

namespace tandem {
namespace {

void start(EVP_MD_CTX* context, HashKind kind) {
  if (EVP_DigestInit_ex(context, kind == HashKind::sha1 ? EVP_sha1() : EVP_sha256(), nullptr) != 1)
    throw Error(ErrorKind::internal, "OpenSSL refuses to hash");
}

}  // namespace

Hasher::Hasher(HashKind kind) : kind_(kind), context_(EVP_MD_CTX_new()) {
  if (!context_) throw std::bad_alloc();
  start(context_, kind_);
}

Hasher::Hasher(Hasher&& other) noexcept : kind_(other.kind_), context_(std::exchange(other.context_, nullptr)) {}

Hasher& Hasher::operator=(Hasher&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(context_, other.context_);
  return *this;
}

Hasher::~Hasher() {
  EVP_MD_CTX_free(context_);
}

void Hasher::update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_, bytes.data(), bytes.size());
}

void Hasher::update(std::string_view text) {
  EVP_DigestUpdate(context_, text.data(), text.size());
}

std::string Hasher::finish_hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_, digest, &size);
  start(context_, kind_);
  constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(size * 2);
  for (unsigned int i = 0; i < size; ++i) {
    hex += kHex[digest[i] >> 4];
    hex += kHex[digest[i] & 15];
  }
  return hex;
}

std::string sha256_hex(std::string_view bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.finish_hex();
}

std::string hash_file_hex(const std::filesystem::path& path, HashKind kind, const std::atomic<bool>* cancel) {
  const FileDescriptor file = open_for_reading(path, ErrorKind::node);
  const int64_t size = file_bytes(file, path, ErrorKind::node);
  Hasher hasher(kind);
  std::vector<std::byte> buffer(1 << 20);
  for (int64_t offset = 0; offset < size;) {
    if (cancel && *cancel) throw Error(ErrorKind::interrupted, "hashing was interrupted", path.string());
    const auto piece = std::span(buffer).first(std::min<size_t>(buffer.size(), size - offset));
    read_exactly(file, offset, piece, path, ErrorKind::node);
    hasher.update(piece);
    ::posix_fadvise(file.get(), offset, static_cast<off_t>(piece.size()), POSIX_FADV_DONTNEED);
    offset += static_cast<int64_t>(piece.size());
  }
  return hasher.finish_hex();
}

}  // namespace tandem
