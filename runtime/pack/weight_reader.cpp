#include "runtime/pack/weight_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/common/error.h"

namespace tandem {
namespace {

constexpr int64_t kPageBytes = 4096;

/// Reads a byte of each page, so that the first passes do not wait for the disk.
void touch_pages(std::span<const std::byte> bytes) {
  const volatile std::byte* data = bytes.data();
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) (void)data[at];
  if (!bytes.empty()) (void)data[bytes.size() - 1];
}

bool is_aligned(const std::byte* data, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
}

/// Rounds to nearest, ties to even; too large becomes infinity.
uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7E00u;
  if (magnitude >= 65520.0f) return sign | 0x7C00u;
  // Below 2^-14 fp16 counts in steps of 2^-24; nearbyint rounds ties to even.
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  const uint32_t rounded = (bits & 0x7FFFFFFFu) + 0xFFFu + ((bits >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

}  // namespace

WeightReader::WeightReader(const Pack& pack, const ModuleTable& table, int world_size, Place place, Progress progress)
    : pack_(pack),
      table_(table),
      world_size_(world_size),
      place_(std::move(place)),
      progress_(std::move(progress)),
      total_bytes_(std::max<int64_t>(pack.tensor_bytes(), 1)) {}

bool WeightReader::has(const std::string& module) const {
  return pack_.find(module + ".trellis") || pack_.find(module + ".weight");
}

std::string WeightReader::where(const PackTensor& tensor) const {
  return (pack_.folder() / pack_.files().at(tensor.file).name).string();
}

void WeightReader::report(int64_t bytes) {
  read_bytes_ += bytes;
  if (progress_) progress_(std::min(1.0, static_cast<double>(read_bytes_) / static_cast<double>(total_bytes_)));
}

const std::byte* WeightReader::keep_copy(std::span<const std::byte> bytes) {
  copies_.push_back(std::make_unique<std::byte[]>(bytes.size()));
  if (!bytes.empty()) std::memcpy(copies_.back().get(), bytes.data(), bytes.size());
  copied_bytes_ += static_cast<int64_t>(bytes.size());
  return place_ ? place_({copies_.back().get(), bytes.size()}) : copies_.back().get();
}

const float* WeightReader::keep_floats(std::span<const float> values) {
  return reinterpret_cast<const float*>(keep_copy(std::as_bytes(values)));
}

const std::byte* WeightReader::bytes_of(const PackTensor& tensor, int64_t alignment) {
  const std::span<const std::byte> bytes = pack_.data(tensor);
  report(static_cast<int64_t>(bytes.size()));
  if (!is_aligned(bytes.data(), alignment)) return keep_copy(bytes);
  const std::byte* placed = place_ ? place_(bytes) : bytes.data();
  if (placed != bytes.data()) {
    copied_bytes_ += static_cast<int64_t>(bytes.size());
    return placed;
  }
  touch_pages(bytes);
  mapped_bytes_ += static_cast<int64_t>(bytes.size());
  return placed;
}

FloatFormat WeightReader::format_of(const PackTensor& tensor) const {
  switch (tensor.info.dtype) {
    case DType::f32:
      return FloatFormat::fp32;
    case DType::f16:
      return FloatFormat::fp16;
    case DType::bf16:
      return FloatFormat::bf16;
    default:
      throw Error(ErrorKind::pack,
                  "tensor " + printable(tensor.info.name) + " has type " + std::string(dtype_name(tensor.info.dtype)) +
                      ", expected F32, F16 or BF16",
                  where(tensor), "use an EXL3 pack or an unquantized checkpoint");
  }
}

void WeightReader::append_as_fp32(const PackTensor& tensor, std::vector<float>& out) {
  const FloatFormat format = format_of(tensor);
  const std::span<const std::byte> bytes = pack_.data(tensor);
  const int64_t step = float_format_bytes(format);
  for (int64_t at = 0; at < static_cast<int64_t>(bytes.size()); at += step) {
    uint32_t raw = 0;  // through memcpy: packs promise no alignment
    std::memcpy(&raw, bytes.data() + at, static_cast<size_t>(step));
    const uint16_t half = static_cast<uint16_t>(raw);
    out.push_back(format == FloatFormat::fp32   ? std::bit_cast<float>(raw)
                  : format == FloatFormat::bf16 ? bf16_to_float(half)
                                                : fp16_to_float(half));
  }
  report(static_cast<int64_t>(bytes.size()));
}

const float* WeightReader::vector(const std::string& tensor) {
  std::vector<float> values;
  append_as_fp32(pack_.at(tensor), values);
  return keep_floats(values);
}

const float* WeightReader::vector(const std::string& tensor, const std::function<void(const float*, float*)>& fill) {
  return vectors({tensor}, fill);
}

const float* WeightReader::vectors(const std::vector<std::string>& tensors,
                                   const std::function<void(const float*, float*)>& fill) {
  std::vector<float> stored;
  for (const std::string& tensor : tensors) append_as_fp32(pack_.at(tensor), stored);
  std::vector<float> filled(stored.size());
  fill(stored.data(), filled.data());
  return keep_floats(filled);
}

PlainMatrix WeightReader::matrix(const std::string& tensor) {
  const PackTensor& stored = pack_.at(tensor);
  const FloatFormat format = format_of(stored);
  return {bytes_of(stored, float_format_bytes(format)), format};
}

const uint16_t* WeightReader::signs_as_fp16(const PackTensor& words) {
  const std::span<const std::byte> bytes = pack_.data(words);
  std::vector<uint16_t> values;
  values.reserve(bytes.size() * 8);
  for (const std::byte byte : bytes) {  // little-endian words: bit i of byte b is element 8 b + i
    for (int bit = 0; bit < 8; ++bit) {
      values.push_back((std::to_integer<unsigned>(byte) >> bit & 1u) ? 0xBC00u : 0x3C00u);
    }
  }
  report(static_cast<int64_t>(bytes.size()));
  return reinterpret_cast<const uint16_t*>(keep_copy(std::as_bytes(std::span(values))));
}

const uint16_t* WeightReader::bias_as_fp16(const PackTensor& bias) {
  if (bias.info.dtype == DType::f16) return reinterpret_cast<const uint16_t*>(bytes_of(bias, 2));
  std::vector<float> values;
  append_as_fp32(bias, values);
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), float_to_fp16);
  return reinterpret_cast<const uint16_t*>(keep_copy(std::as_bytes(std::span(halves))));
}

Linear WeightReader::exl3_linear(const Exl3Linear& stored, int64_t in_features, int64_t out_features) {
  if (stored.words_per_tile % 16 != 0) {
    throw Error(ErrorKind::pack,
                "linear " + printable(stored.module) + " is coded at " + std::to_string(stored.words_per_tile / 16) +
                    ".5 bits a weight, expected whole bits from 1 to 8",
                where(*stored.trellis), "use a pack without half rates");
  }
  Exl3Weight weight;
  weight.trellis = reinterpret_cast<const uint16_t*>(bytes_of(*stored.trellis, 2));
  weight.suh = stored.suh ? reinterpret_cast<const uint16_t*>(bytes_of(*stored.suh, 2)) : signs_as_fp16(*stored.su);
  weight.svh = stored.svh ? reinterpret_cast<const uint16_t*>(bytes_of(*stored.svh, 2)) : signs_as_fp16(*stored.sv);
  if (stored.bias) weight.bias = bias_as_fp16(*stored.bias);
  weight.in_features = stored.in_features;
  weight.out_features = stored.out_features;
  weight.bits = stored.words_per_tile / 16;
  weight.codebook = stored.codebook;
  return {in_features, out_features, weight};
}

Linear WeightReader::linear(const std::string& module) {
  std::vector<const Module*> parts = table_.find_fused(module);
  if (const Module* single = table_.find(module)) parts = {single};
  if (parts.empty()) throw Error(ErrorKind::internal, "the model has no linear " + printable(module));
  int64_t out_features = 0;
  for (const Module* part : parts)
    out_features += part->shape.at(0) / (part->cut == Cut::out_features ? world_size_ : 1);
  const int64_t in_features = parts[0]->shape.at(1) / (parts[0]->cut == Cut::in_features ? world_size_ : 1);

  if (const std::optional<Exl3Linear> exl3 = pack_.find_exl3(module)) {
    return exl3_linear(*exl3, in_features, out_features);
  }
  const PackTensor& stored = pack_.at(module + ".weight");
  DenseWeight weight;
  weight.format = format_of(stored);
  weight.data = bytes_of(stored, 1);
  // A bias of a sum belongs to one rank: the splitter left it out of the others' folders.
  if (pack_.find(module + ".bias")) weight.bias = vector(module + ".bias");
  return {in_features, out_features, weight};
}

}  // namespace tandem
