#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/common/ling_config.h"
#include "runtime/pack/ling_weights.h"

namespace tandem {

struct LingPackOptions {
  std::filesystem::path folder;  ///< a whole pack, or with world_size > 1 the folder of this rank
  int rank = 0;
  int world_size = 1;
  bool with_mtp = true;  ///< false: weights().mtp stays empty
  /// Told each tensor's bytes once; returns where operations shall read them: the same address to use them where they
  /// are, in the mapping of the pack or in host memory, or a copy that lives as long as the LingPack. This is where a
  /// device with its own memory takes the weights. Empty: all stay where they are.
  std::function<const std::byte*(std::span<const std::byte>)> place;
  /// Told the share of the weights that is ready, 0..1, on the calling thread.
  std::function<void(double)> progress;
};

/// Identity of the pack that a whole pack's or a rank folder's content comes from, 64 hex digits: what ranks compare
/// before they load. @throws Error kind `pack`
std::string pack_identity(const std::filesystem::path& folder);

/// A pack or rank folder of the Ling family, checked whole and ready for the kernels. Trellises, plain matrices and the
/// embedding are used straight from the mapped files; norms, convolutions and biases become fp32 copies.
class LingPack {
 public:
  /// Reads every byte once, so that passes do not wait for the disk.
  /// @throws Error  kind `pack`, one sentence naming the tensor or the field with what was found and expected: a folder
  ///                of another rank, world size or layout; a whole pack for world_size > 1; another architecture; a
  ///                tensor that is missing, has the wrong shape or type, or is coded in an unknown way
  static std::unique_ptr<LingPack> load(const LingPackOptions& options);
  ~LingPack();
  LingPack(const LingPack&) = delete;
  LingPack& operator=(const LingPack&) = delete;

  const LingConfig& config() const;
  const LingWeights& weights() const;
  /// Identity of the whole pack, 64 hex digits; ranks of one model must agree on it.
  const std::string& pack_hash() const;

  int64_t mapped_bytes() const;  ///< used in place
  int64_t copied_bytes() const;  ///< converted, realigned or placed elsewhere
  /// Weights that one token reads in a serial decode step: everything but the MTP layer, the embedding table, and the
  /// experts that were not chosen.
  int64_t bytes_per_decode() const;

 private:
  struct Parts;
  explicit LingPack(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tandem
