#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/common/codebook.h"
#include "runtime/common/safetensors.h"

namespace tandem {

std::string_view codebook_name(Codebook codebook);

/// One weight file of a pack.
struct PackFile {
  std::string name;  ///< "model-00001-of-00003.safetensors"
  int64_t bytes = 0;
  int64_t data_offset = 0;
};

/// One tensor of a pack and where it is.
struct PackTensor {
  TensorInfo info;
  int file = 0;             ///< index into Pack::files()
  int64_t file_offset = 0;  ///< from the start of the file
};

/// A quantized linear, its tensors found and checked against each other. Pointers live as long as the Pack.
struct Exl3Linear {
  std::string module;
  int64_t in_features = 0;   ///< padded to a multiple of 128
  int64_t out_features = 0;  ///< likewise
  int words_per_tile = 0;    ///< u16 words per 16 x 16 tile
  Codebook codebook = Codebook::three_inst;
  const PackTensor* trellis = nullptr;  ///< [in_features/16, out_features/16, words_per_tile] I16
  const PackTensor* suh = nullptr;      ///< [in_features] F16; null when `su` is there instead (packs before 0.0.2)
  const PackTensor* svh = nullptr;      ///< [out_features] F16
  const PackTensor* su = nullptr;       ///< [in_features/16] I16 sign bits
  const PackTensor* sv = nullptr;
  const PackTensor* bias = nullptr;  ///< [out_features] F16 or F32, optional

  double bits_per_weight() const { return words_per_tile / 16.0; }  ///< 1..8; 1.5, 2.5, 3.5 with mul1
};

/// A folder with config.json and safetensors files: a whole pack or a rank folder. Opening reads headers only; tensor
/// bytes are mapped on first use. Movable; safe to read from several threads.
class Pack {
 public:
  /// @throws Error  kind `pack`: a file missing, a hostile header, a tensor in two files, model.safetensors.index.json
  ///                that disagrees with the files, a link that leaves the folder (links of the Hugging Face cache,
  ///                snapshots/COMMIT/NAME -> ../../blobs/HASH, are fine)
  static Pack open(const std::filesystem::path& folder);

  Pack(Pack&&) noexcept;
  Pack& operator=(Pack&&) noexcept;
  ~Pack();

  const std::filesystem::path& folder() const;
  const std::string& config_text() const;          ///< config.json, at most 4 MiB
  const std::vector<PackFile>& files() const;      ///< by name
  const std::vector<PackTensor>& tensors() const;  ///< by file, then by offset
  const PackTensor* find(std::string_view name) const;
  /// Like find, but a missing tensor is an Error(pack) that names it.
  const PackTensor& at(std::string_view name) const;
  int64_t tensor_bytes() const;  ///< of all tensors

  /// Names of the files next to the weights that serving needs: config.json, generation_config.json, the tokenizer's
  /// and the chat template's. Checked like the weights: regular files, no links out of the folder.
  std::vector<std::string> small_files() const;

  /// A tensor's bytes in a read-only mapping that lives as long as the Pack. No alignment is promised for packs; in
  /// rank folders a tensor lies at a multiple of the largest power of two up to 64 that divides its size.
  std::span<const std::byte> data(const PackTensor& tensor) const;

  /// The linear stored under `module` as EXL3, or none when it has no trellis tensor.
  /// @param read_marker  false leaves the codebook marker's value unread: what headers tell is enough for a plan or a
  ///                     split, and 100,000 reads of 4 bytes, scattered over a pack that was just downloaded, take long
  /// @throws Error  kind `pack`: parts missing, shapes that contradict each other, an unknown rate, two codebook
  ///                markers, or a marker that is not the codebook's multiplier
  std::optional<Exl3Linear> find_exl3(std::string_view module, bool read_marker = true) const;

  /// Identity of the pack's content, 64 hex digits: sha256 over the text "tandem.pack/v1", config.json, and, for each
  /// weight file by name: name, size, header, and 16 blocks of 4 KiB spread evenly over the data. It costs a few reads
  /// a file, so it notices another quantization of the same shapes but not one damaged byte: file hashes do that.
  const std::string& content_hash() const;

 private:
  struct State;
  explicit Pack(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tandem
