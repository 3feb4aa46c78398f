#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "orchestrator/fetch/hub.h"
#include "runtime/common/hash.h"

namespace tandem {

/// A SHA-256 under way whose state can be written down and taken up again by another process: that is what lets a
/// resumed download finish its hash without reading the file a second time.
class ResumableSha256 {
 public:
  ResumableSha256();
  ~ResumableSha256();
  ResumableSha256(ResumableSha256&&) noexcept;
  ResumableSha256& operator=(ResumableSha256&&) noexcept;

  void update(std::string_view data);
  std::string hex_digest();  ///< ends it; 64 lower-case digits

  /// 64 hex digits. Only after a multiple of 64 bytes; nothing otherwise.
  std::optional<std::string> state() const;
  /// Continues from state() after `bytes`. False when `state` is no such text; the object is then fresh.
  bool restore(std::string_view state, int64_t bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// The hashes a listed file must have, computed over its content in order. A file in LFS has a sha256; a small one has
/// git's blob hash, sha1("blob <size>\0" + content); one from a lock file may have both.
class ContentHash {
 public:
  explicit ContentHash(const HubFile& file);

  void update(std::string_view data);
  /// Ends it. "" when all hashes are as listed, else "sha256 is ..., expected ...".
  std::string mismatch();

  /// As ResumableSha256: for files whose one hash is a sha256. Others are small enough to be read again.
  std::optional<std::string> state() const;
  bool restore(std::string_view state, int64_t bytes);

 private:
  const HubFile file_;
  std::optional<ResumableSha256> sha256_;
  std::optional<Hasher> git_;
};

/// git's hash of a blob, 40 hex digits.
std::string git_blob_sha1(std::string_view content);

}  // namespace tandem
