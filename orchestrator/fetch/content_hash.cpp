// OpenSSL's EVP interface cannot save a hash's state; the older one can, and runs the same code underneath. Its
// functions carry a deprecation mark since 3.0, which is switched off in this file only.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "orchestrator/fetch/content_hash.h"

#include <openssl/sha.h>

#include <array>

namespace tandem {
namespace {

std::string hex(const unsigned char* bytes, size_t size) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    out += kHex[bytes[i] >> 4];
    out += kHex[bytes[i] & 15];
  }
  return out;
}

}  // namespace

struct ResumableSha256::Context {
  SHA256_CTX sha;
  int64_t bytes = 0;
};

ResumableSha256::ResumableSha256() : context_(std::make_unique<Context>()) {
  SHA256_Init(&context_->sha);
}
ResumableSha256::~ResumableSha256() = default;
ResumableSha256::ResumableSha256(ResumableSha256&&) noexcept = default;
ResumableSha256& ResumableSha256::operator=(ResumableSha256&&) noexcept = default;

void ResumableSha256::update(std::string_view data) {
  SHA256_Update(&context_->sha, data.data(), data.size());
  context_->bytes += static_cast<int64_t>(data.size());
}

std::string ResumableSha256::hex_digest() {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256_Final(digest.data(), &context_->sha);
  return hex(digest.data(), digest.size());
}

std::optional<std::string> ResumableSha256::state() const {
  if (context_->bytes % 64 != 0) return std::nullopt;
  std::array<unsigned char, 32> words{};
  for (size_t i = 0; i < 8; ++i) {
    for (size_t k = 0; k < 4; ++k) words[i * 4 + k] = static_cast<unsigned char>(context_->sha.h[i] >> (24 - 8 * k));
  }
  return hex(words.data(), words.size());
}

bool ResumableSha256::restore(std::string_view state, int64_t bytes) {
  SHA256_Init(&context_->sha);
  context_->bytes = 0;
  if (state.size() != 64 || bytes < 0 || bytes % 64 != 0) return false;
  std::array<uint32_t, 8> words{};
  for (size_t i = 0; i < 64; ++i) {
    const char c = state[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    words[i / 8] = words[i / 8] << 4 | static_cast<uint32_t>(digit);
  }
  for (size_t i = 0; i < 8; ++i) context_->sha.h[i] = words[i];
  const auto bits = static_cast<uint64_t>(bytes) * 8;
  context_->sha.Nl = static_cast<SHA_LONG>(bits & 0xffffffffU);
  context_->sha.Nh = static_cast<SHA_LONG>(bits >> 32);
  context_->bytes = bytes;
  return true;
}

namespace {

Hasher git_blob_hasher(int64_t size) {
  Hasher hasher(HashKind::sha1);
  hasher.update("blob " + std::to_string(size));
  hasher.update(std::string_view("\0", 1));
  return hasher;
}

}  // namespace

ContentHash::ContentHash(const HubFile& file) : file_(file) {
  if (!file.sha256.empty()) sha256_.emplace();
  if (!file.git_sha1.empty()) git_.emplace(git_blob_hasher(file.size));
}

void ContentHash::update(std::string_view data) {
  if (sha256_) sha256_->update(data);
  if (git_) git_->update(data);
}

std::string ContentHash::mismatch() {
  if (sha256_) {
    const std::string found = sha256_->hex_digest();
    if (found != file_.sha256) return "sha256 is " + found + ", expected " + file_.sha256;
  }
  if (git_) {
    const std::string found = git_->finish_hex();
    if (found != file_.git_sha1) return "git blob sha1 is " + found + ", expected " + file_.git_sha1;
  }
  return "";
}

std::optional<std::string> ContentHash::state() const {
  return sha256_ && !git_ ? sha256_->state() : std::nullopt;
}

bool ContentHash::restore(std::string_view state, int64_t bytes) {
  return sha256_ && !git_ && sha256_->restore(state, bytes);
}

std::string git_blob_sha1(std::string_view content) {
  Hasher hasher = git_blob_hasher(static_cast<int64_t>(content.size()));
  hasher.update(content);
  return hasher.finish_hex();
}

}  // namespace tandem
