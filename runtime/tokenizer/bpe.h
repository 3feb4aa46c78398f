#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem {

/// Byte-pair merging over token ids: the pair with the lowest rank merges first, the leftmost of equals before the
/// others.
class Bpe {
 public:
  /// `byte_ids[b]` is the token of the single byte b.
  explicit Bpe(std::vector<int32_t> byte_ids) : byte_ids_(std::move(byte_ids)) {}

  /// Merges are added in rank order. A pair that was added before keeps its first rank.
  void add_merge(int32_t left, int32_t right, int32_t merged);

  /// Appends the tokens of one word. Time n log n, so a word of a million letters is no attack.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged;
  };
  const Merge* find(int32_t left, int32_t right) const;

  std::vector<int32_t> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;  // key: left << 32 | right
};

}  // namespace tandem
