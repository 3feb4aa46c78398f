#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

/// What a request line asks a mirror for.
struct MirrorRequest {
  enum class Kind { unknown, index, info, tree, file };
  Kind kind = Kind::unknown;
  std::string repo;
  std::string revision;
  std::string path;      ///< of a file: only ever looked up in a list
  int64_t limit = 1000;  ///< of a tree
  int64_t cursor = 0;
};

/// "/", "/api/models/REPO[/revision/REV]", "/api/models/REPO/tree/REV?...", "/REPO/resolve/REV/PATH".
/// @param target  as it came over the wire, percent-encoded
MirrorRequest parse_mirror_request(std::string_view target);

struct ByteRange {
  int64_t first = 0;
  int64_t last = -1;  ///< inclusive
};

/// A Range header against a file of `size` bytes: "bytes=A-B", "bytes=A-", "bytes=-N". Nothing for several ranges, for
/// other units, and when no byte of it is in the file.
std::optional<ByteRange> parse_byte_range(std::string_view header, int64_t size);

}  // namespace tandem
