#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/common/file.h"

namespace tandem {

/// Element types a safetensors file can hold.
enum class DType : uint8_t { boolean, u8, i8, f8_e4m3, f8_e5m2, i16, u16, f16, bf16, i32, u32, f32, i64, u64, f64 };

int64_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  ///< as in the file: "BF16"
std::optional<DType> parse_dtype(std::string_view name);

/// "[16, 32, 64]", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

/// One tensor of a safetensors file. `begin` and `end` are byte offsets from the start of the file's data section.
struct TensorInfo {
  std::string name;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;  ///< row-major; empty for a scalar
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

/// The header of a safetensors file, checked: names are unique, every tensor's size is what its shape says, and the
/// tensors fill the data section without gaps or overlaps.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              ///< in order of `begin`
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
  int64_t data_offset = 0;                      ///< where the data section starts in the file: 8 + length of the JSON
  int64_t data_bytes = 0;

  const TensorInfo* find(std::string_view name) const;  ///< linear; for many look-ups use Pack
};

/// The format's own limit on the JSON's length. Memory use is a small multiple of the real header's size.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Length of the JSON, from the file's first 8 bytes. For headers that arrive in pieces over HTTP.
/// @param file_bytes  of the whole file
/// @param where       path or URL, for messages
/// @throws Error      kind `pack`: the length is over the limit or past the end of the file
int64_t parse_safetensors_length(std::string_view first_8_bytes, int64_t file_bytes, const std::string& where);

/// Parses the JSON of a header.
/// @param json        without the 8 bytes of length in front
/// @param data_bytes  size of the data section that follows
/// @throws Error      kind `pack`, one sentence: whatever is wrong with it
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& where);

/// Reads and checks a file's header. @throws Error kind `pack`
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

/// The 8 length bytes and the JSON for tensors stored in the given order; sets their `begin` and `end`.
/// The JSON is padded so that the data section starts at a multiple of 64 bytes.
std::string build_safetensors_header(std::vector<TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata = {});

/// Writes a safetensors file front to back: header first, then the tensors' bytes in the given order.
/// The file appears under its name only when finish() has returned.
class SafetensorsWriter {
 public:
  /// @param tensors  in file order; `begin` and `end` are set here
  /// @throws Error   of `kind`, here and below
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {}, ErrorKind kind = ErrorKind::pack);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  int64_t header_bytes() const { return header_bytes_; }

  /// The next bytes of the data section; pieces may end anywhere.
  void append(std::span<const std::byte> bytes);

  /// @throws Error  kind `internal` when fewer or more bytes came than the tensors need
  StreamedFile::Finished finish();

 private:
  std::vector<TensorInfo> tensors_;
  std::string header_;  // emptied once written
  int64_t header_bytes_ = 0;
  int64_t data_bytes_;
  StreamedFile file_;
};

}  // namespace tandem
