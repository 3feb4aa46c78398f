#include "runtime/common/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/common/json_walk.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxMetadataBytes = 1 << 20;
constexpr int64_t kLengthBytes = 8;
constexpr int64_t kDataAlignment = 64;

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<DTypeRow, 15> kDTypes{{{DType::boolean, "BOOL", 1},
                                            {DType::u8, "U8", 1},
                                            {DType::i8, "I8", 1},
                                            {DType::f8_e4m3, "F8_E4M3", 1},
                                            {DType::f8_e5m2, "F8_E5M2", 1},
                                            {DType::i16, "I16", 2},
                                            {DType::u16, "U16", 2},
                                            {DType::f16, "F16", 2},
                                            {DType::bf16, "BF16", 2},
                                            {DType::i32, "I32", 4},
                                            {DType::u32, "U32", 4},
                                            {DType::f32, "F32", 4},
                                            {DType::i64, "I64", 8},
                                            {DType::u64, "U64", 8},
                                            {DType::f64, "F64", 8}}};

static_assert([] {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  return true;
}());

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
  throw Error(ErrorKind::pack, what, where, "fetch the pack again, or choose another");
}

std::string tensor_text(std::string_view name) {
  return "tensor '" + printable(name, 200) + "'";
}

/// Collects the tensors of a header while its JSON is read.
class HeaderVisitor final : public JsonVisitor {
 public:
  HeaderVisitor(int64_t data_bytes, const std::string& where) : data_bytes_(data_bytes), where_(where) {}

  void open(Path path, bool is_array) override {
    if (path.empty()) {
      if (is_array) refuse("the header is a list, expected an object", where_);
      return;
    }
    if (path.size() == 1 && !is_array) {
      if (path[0] == kMetadata) {
        if (std::exchange(metadata_seen_, true)) refuse("the header has two __metadata__ objects", where_);
        return;
      }
      if (path[0].size() > kMaxNameBytes)
        refuse("a tensor's name has " + std::to_string(path[0].size()) + " bytes, the limit is " +
                   std::to_string(kMaxNameBytes),
               where_);
      current_ = TensorInfo{.name = path[0]};
      offsets_.clear();
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
      return;
    }
    if (path.size() == 2 && is_array && path[0] != kMetadata) {
      bool* seen = path[1] == "shape" ? &seen_shape_ : path[1] == "data_offsets" ? &seen_offsets_ : nullptr;
      if (seen) {
        if (std::exchange(*seen, true)) refuse(tensor_text(path[0]) + " has two entries '" + path[1] + "'", where_);
        return;
      }
    }
    unexpected(path);
  }

  void scalar(Path path, const JsonScalar& value) override {
    if (path.size() == 2 && path[0] == kMetadata && value.kind == JsonScalar::Kind::string) {
      metadata_bytes_ += path[1].size() + value.text.size();
      if (metadata_bytes_ > kMaxMetadataBytes) refuse("__metadata__ has more than 1 MiB", where_);
      header.metadata[path[1]] = value.text;
    } else if (path.size() == 2 && path[1] == "dtype" && value.kind == JsonScalar::Kind::string && !seen_dtype_) {
      const auto dtype = parse_dtype(value.text);
      if (!dtype) refuse(tensor_text(path[0]) + " has the unknown dtype '" + printable(value.text, 40) + "'", where_);
      current_.dtype = *dtype;
      seen_dtype_ = true;
    } else if (path.size() == 3 && path[0] != kMetadata) {
      std::vector<int64_t>& list = path[1] == "shape" ? current_.shape : offsets_;
      if (value.kind != JsonScalar::Kind::integer || value.integer < 0)
        refuse(tensor_text(path[0]) + ": '" + path[1] + "' holds something other than a natural number below 2^63",
               where_);
      if (list.size() >= kMaxRank)
        refuse(tensor_text(path[0]) + ": '" + path[1] + "' has more than " + std::to_string(kMaxRank) + " entries",
               where_);
      list.push_back(value.integer);
    } else {
      unexpected(path);
    }
  }

  void close(Path path, bool is_array) override {
    if (path.size() != 1 || is_array || path[0] == kMetadata) return;
    if (!seen_dtype_ || !seen_shape_ || offsets_.size() != 2)
      refuse(tensor_text(current_.name) + " lacks dtype, shape or a pair of data_offsets", where_);
    current_.begin = offsets_[0];
    current_.end = offsets_[1];
    check_size();
    header.tensors.push_back(std::move(current_));
  }

  SafetensorsHeader header;

 private:
  static constexpr std::string_view kMetadata = "__metadata__";

  [[noreturn]] void unexpected(Path path) {
    std::string at;
    for (const std::string& key : path) at += (at.empty() ? "" : ".") + (key.empty() ? "[]" : printable(key, 100));
    refuse("the header has an unexpected entry at '" + at + "'", where_);
  }

  void check_size() {
    const TensorInfo& t = current_;
    const std::string range = "[" + std::to_string(t.begin) + ", " + std::to_string(t.end) + ")";
    if (t.begin > t.end) refuse(tensor_text(t.name) + " ends before it begins: " + range, where_);
    if (t.end > data_bytes_)
      refuse(tensor_text(t.name) + " lies at " + range + ", past the end of the data at " + std::to_string(data_bytes_),
             where_);
    int64_t bytes = dtype_bytes(t.dtype);
    for (const int64_t n : t.shape)
      if (__builtin_mul_overflow(bytes, n, &bytes))
        refuse(tensor_text(t.name) + " has a shape whose size overflows: " + shape_text(t.shape), where_);
    if (bytes != t.bytes())
      refuse(tensor_text(t.name) + " has shape " + shape_text(t.shape) + " " + std::string(dtype_name(t.dtype)) + ", " +
                 std::to_string(bytes) + " bytes, but occupies " + std::to_string(t.bytes()),
             where_);
  }

  int64_t data_bytes_;
  const std::string& where_;
  TensorInfo current_;
  std::vector<int64_t> offsets_;
  bool seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  bool metadata_seen_ = false;
  size_t metadata_bytes_ = 0;
};

void check_names_unique(const std::vector<TensorInfo>& tensors, const std::string& where) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const TensorInfo& t : tensors) names.push_back(&t.name);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto twice =
      std::adjacent_find(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a == *b; });
  if (twice != names.end()) refuse("the header lists " + tensor_text(**twice) + " twice", where);
}

void check_no_gaps(const std::vector<TensorInfo>& tensors, int64_t data_bytes, const std::string& where) {
  int64_t cursor = 0;
  for (const TensorInfo& t : tensors) {
    if (t.begin < cursor) refuse(tensor_text(t.name) + " overlaps the tensor before it", where);
    if (t.begin > cursor)
      refuse("nobody owns the bytes [" + std::to_string(cursor) + ", " + std::to_string(t.begin) + ") before " +
                 tensor_text(t.name),
             where);
    cursor = t.end;
  }
  if (cursor != data_bytes)
    refuse("the tensors end at byte " + std::to_string(cursor) + " of the data, the file has " +
               std::to_string(data_bytes),
           where);
}

}  // namespace

int64_t dtype_bytes(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].bytes;
}

std::string_view dtype_name(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& row : kDTypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

const TensorInfo* SafetensorsHeader::find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const TensorInfo& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

int64_t parse_safetensors_length(std::string_view first_8_bytes, int64_t file_bytes, const std::string& where) {
  if (first_8_bytes.size() < static_cast<size_t>(kLengthBytes))
    refuse("the file has " + std::to_string(first_8_bytes.size()) + " bytes, too few for a safetensors header", where);
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(first_8_bytes[i]);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes))
    refuse("the header claims " + std::to_string(length) + " bytes, the format's limit is " +
               std::to_string(kMaxSafetensorsHeaderBytes),
           where);
  if (length == 0 || static_cast<int64_t>(length) > file_bytes - kLengthBytes)
    refuse("the header claims " + std::to_string(length) + " bytes of a file of " + std::to_string(file_bytes), where);
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& where) {
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeaderBytes)
    refuse("the header has " + format_bytes(static_cast<int64_t>(json.size())) + ", more than the format allows",
           where);
  if (json.empty() || json[0] != '{') refuse("the header does not start with '{'", where);
  HeaderVisitor visitor(data_bytes, where);
  walk_json(json, visitor, 3, ErrorKind::pack, where);
  SafetensorsHeader header = std::move(visitor.header);
  header.data_offset = kLengthBytes + static_cast<int64_t>(json.size());
  header.data_bytes = data_bytes;
  // Tensors without bytes share their begin with a neighbour: by end, they come first.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  check_names_unique(header.tensors, where);
  check_no_gaps(header.tensors, data_bytes, where);
  return header;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  const std::string where = path.string();
  const FileDescriptor file = open_for_reading(path, ErrorKind::pack);
  const int64_t size = file_bytes(file, path, ErrorKind::pack);
  std::array<char, kLengthBytes> first{};
  const auto have = static_cast<size_t>(std::min(size, kLengthBytes));
  read_exactly(file, 0, std::as_writable_bytes(std::span(first.data(), have)), path, ErrorKind::pack);
  const int64_t length = parse_safetensors_length({first.data(), have}, size, where);
  std::string json(static_cast<size_t>(length), '\0');
  read_exactly(file, kLengthBytes, std::as_writable_bytes(std::span(json)), path, ErrorKind::pack);
  return parse_safetensors_header(json, size - kLengthBytes - length, where);
}

std::string build_safetensors_header(std::vector<TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  int64_t cursor = 0;
  for (TensorInfo& t : tensors) {
    int64_t bytes = dtype_bytes(t.dtype);
    for (const int64_t n : t.shape)
      if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes))
        throw Error(ErrorKind::internal, tensor_text(t.name) + " cannot have the shape " + shape_text(t.shape));
    t.begin = cursor;
    t.end = cursor += bytes;
    if (json.size() > 1) json += ',';
    json += nlohmann::json(t.name).dump() + ":{\"dtype\":\"" + std::string(dtype_name(t.dtype)) + "\",\"shape\":[";
    for (size_t i = 0; i < t.shape.size(); ++i) json += (i ? "," : "") + std::to_string(t.shape[i]);
    json += "],\"data_offsets\":[" + std::to_string(t.begin) + "," + std::to_string(t.end) + "]}";
  }
  json += '}';
  while ((static_cast<int64_t>(json.size()) + kLengthBytes) % kDataAlignment != 0) json += ' ';
  std::string header;
  for (uint64_t length = json.size(), i = 0; i < static_cast<uint64_t>(kLengthBytes); ++i, length >>= 8)
    header += static_cast<char>(length & 0xFF);
  return header + json;
}

namespace {

int64_t data_bytes_of(const std::vector<TensorInfo>& tensors) {
  return tensors.empty() ? 0 : tensors.back().end;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata, ErrorKind kind)
    : tensors_(std::move(tensors)),
      header_(build_safetensors_header(tensors_, metadata)),
      data_bytes_(data_bytes_of(tensors_)),
      file_(std::move(path), static_cast<int64_t>(header_.size()) + data_bytes_, kind) {
  file_.append(std::as_bytes(std::span(header_)));
  header_bytes_ = static_cast<int64_t>(header_.size());
  header_ = {};
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  file_.append(bytes);
}

StreamedFile::Finished SafetensorsWriter::finish() {
  if (file_.bytes() != header_bytes_ + data_bytes_)
    throw Error(ErrorKind::internal, "wrote " + std::to_string(file_.bytes() - header_bytes_) +
                                         " bytes of tensors, expected " + std::to_string(data_bytes_));
  return file_.finish();
}

}  // namespace tandem
