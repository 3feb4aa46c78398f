#include "runtime/common/pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "runtime/common/json_walk.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxIndexBytes = 256 << 20;
constexpr size_t kMaxFiles = 4096;
constexpr size_t kMaxTensors = 4'000'000;
constexpr const char* kRefetch = "fetch the pack again, or choose another";

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::pack, what, where.string(), kRefetch);
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto [end, _] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

/// A pack from a stranger may hold a link to any file of this machine; serving or splitting it would copy that file.
void refuse_escaping_link(const fs::path& file, const fs::path& folder) {
  std::error_code code;
  if (!fs::is_symlink(fs::symlink_status(file, code))) return;
  const fs::path target = fs::canonical(file, code);
  if (code) refuse("'" + file.filename().string() + "' is a link to a file that is not there", file);
  if (is_inside(target, folder)) return;
  // Hugging Face cache: models--org--name/snapshots/COMMIT/FILE -> ../../blobs/HASH
  const fs::path snapshots = folder.parent_path();
  if (snapshots.filename() == "snapshots" && target.parent_path() == snapshots.parent_path() / "blobs") return;
  refuse("'" + file.filename().string() + "' is a link out of the pack's folder", file);
}

/// weight_map of model.safetensors.index.json: tensor -> file.
class IndexVisitor final : public JsonVisitor {
 public:
  explicit IndexVisitor(const fs::path& where) : where_(where) {}

  void scalar(Path path, const JsonScalar& value) override {
    if (path.size() != 2 || path[0] != "weight_map") return;
    if (value.kind != JsonScalar::Kind::string) refuse("weight_map holds something other than file names", where_);
    const auto [known, is_new] = numbers_.try_emplace(std::string(value.text), static_cast<int>(files.size()));
    if (is_new) files.emplace_back(value.text);
    entries.emplace_back(path[1], known->second);
    if (entries.size() > kMaxTensors || files.size() > kMaxFiles) refuse("the index is too large", where_);
  }
  void open(Path, bool) override {}
  void close(Path, bool) override {}

  std::vector<std::string> files;
  std::vector<std::pair<std::string, int>> entries;

 private:
  std::unordered_map<std::string, int> numbers_;
  const fs::path& where_;
};

constexpr uint32_t kMcgMultiplier = 0xCBAC1FED;
constexpr uint32_t kMul1Multiplier = 0x83DCD12D;

bool is_known_rate(int words, Codebook codebook) {
  if (words % 16 == 0) return words >= 16 && words <= 128;
  return codebook == Codebook::mul1 && (words == 24 || words == 40 || words == 56);
}

}  // namespace

std::string_view codebook_name(Codebook codebook) {
  switch (codebook) {
    case Codebook::three_inst:
      return "3inst";
    case Codebook::mcg:
      return "mcg";
    case Codebook::mul1:
      return "mul1";
  }
  return "?";
}

struct Pack::State {
  struct Mapping {
    std::once_flag once;
    MappedFile file;
  };

  fs::path folder;
  std::string config_text;
  std::vector<PackFile> files;
  std::vector<PackTensor> tensors;
  std::vector<int32_t> by_name;
  std::unique_ptr<Mapping[]> mappings;
  std::once_flag hash_once;
  std::string hash;

  void list_files();
  void read_headers();
  void index_names();
  void check_index() const;
  std::string hash_content() const;

  int32_t lower_bound(std::string_view name) const {
    return static_cast<int32_t>(std::lower_bound(by_name.begin(), by_name.end(), name,
                                                 [&](int32_t i, std::string_view key) {
                                                   return tensors[static_cast<size_t>(i)].info.name < key;
                                                 }) -
                                by_name.begin());
  }
  const PackTensor& named(int32_t position) const {
    return tensors[static_cast<size_t>(by_name[static_cast<size_t>(position)])];
  }
};

void Pack::State::list_files() {
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    if (it->path().extension() != ".safetensors") continue;
    if (files.size() >= kMaxFiles) refuse("the pack has more than 4096 safetensors files", folder);
    files.push_back({.name = it->path().filename().string()});
  }
  if (code) refuse("cannot list the folder: " + code.message(), folder);
  if (files.empty()) refuse("the folder holds no safetensors file", folder);
  std::sort(files.begin(), files.end(), [](const PackFile& a, const PackFile& b) { return a.name < b.name; });
  for (const PackFile& file : files) refuse_escaping_link(folder / file.name, folder);
}

void Pack::State::read_headers() {
  for (size_t i = 0; i < files.size(); ++i) {
    SafetensorsHeader header = read_safetensors_header(folder / files[i].name);
    files[i].data_offset = header.data_offset;
    files[i].bytes = header.data_offset + header.data_bytes;
    if (tensors.size() + header.tensors.size() > kMaxTensors)
      refuse("the pack has more than " + std::to_string(kMaxTensors) + " tensors", folder);
    for (TensorInfo& info : header.tensors) {
      const int64_t offset = header.data_offset + info.begin;
      tensors.push_back({std::move(info), static_cast<int>(i), offset});
    }
  }
}

void Pack::State::index_names() {
  by_name.resize(tensors.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  std::sort(by_name.begin(), by_name.end(), [&](int32_t a, int32_t b) {
    return tensors[static_cast<size_t>(a)].info.name < tensors[static_cast<size_t>(b)].info.name;
  });
  for (size_t i = 1; i < by_name.size(); ++i) {
    const PackTensor& a = named(static_cast<int32_t>(i - 1));
    const PackTensor& b = named(static_cast<int32_t>(i));
    if (a.info.name == b.info.name)
      refuse("tensor '" + printable(a.info.name, 200) + "' is in two files, " +
                 files[static_cast<size_t>(a.file)].name + " and " + files[static_cast<size_t>(b.file)].name,
             folder);
  }
}

void Pack::State::check_index() const {
  const fs::path path = folder / "model.safetensors.index.json";
  std::error_code code;
  if (!fs::exists(fs::symlink_status(path, code))) return;
  refuse_escaping_link(path, folder);
  IndexVisitor index(path);
  const std::string text = read_small_file(path, kMaxIndexBytes, ErrorKind::pack);
  walk_json(text, index, 8, ErrorKind::pack, path.string());
  for (const std::string& name : index.files)
    if (std::none_of(files.begin(), files.end(), [&](const PackFile& f) { return f.name == name; }))
      refuse("the index names the file '" + printable(name, 200) + "', which is not there", path);
  // More tensors than the index knows are fine: parts quantized later are added as files of their own.
  for (const auto& [name, file] : index.entries) {
    const int32_t at = lower_bound(name);
    const bool found = at < static_cast<int32_t>(by_name.size()) && named(at).info.name == name;
    if (!found || files[static_cast<size_t>(named(at).file)].name != index.files[static_cast<size_t>(file)])
      refuse("the index says that tensor '" + printable(name, 200) + "' is in " +
                 printable(index.files[static_cast<size_t>(file)], 200) + ", but it is not",
             path);
  }
}

std::string Pack::State::hash_content() const {
  constexpr int64_t kSamples = 16;
  constexpr int64_t kSampleBytes = 4096;
  Hasher hasher;
  const auto add_text = [&](std::string_view text) {
    // Lengths in front: otherwise the end of one text could pass for the start of the next.
    hasher.update(std::to_string(text.size()) + ":");
    hasher.update(text);
  };
  add_text("tandem.pack/v1");
  add_text(config_text);
  std::vector<std::byte> buffer;
  for (const PackFile& file : files) {
    const fs::path path = folder / file.name;
    const FileDescriptor handle = open_for_reading(path, ErrorKind::pack);
    const auto add_bytes = [&](int64_t offset, int64_t bytes) {
      buffer.resize(static_cast<size_t>(bytes));
      read_exactly(handle, offset, buffer, path, ErrorKind::pack);
      hasher.update(buffer);
    };
    add_text(file.name);
    add_text(std::to_string(file.bytes));
    add_bytes(0, file.data_offset);
    const int64_t data = file.bytes - file.data_offset;
    const int64_t sample = std::min(kSampleBytes, data);
    for (int64_t i = 0; i < kSamples; ++i) add_bytes(file.data_offset + (data - sample) / (kSamples - 1) * i, sample);
  }
  return hasher.finish_hex();
}

Pack::Pack(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pack::Pack(Pack&&) noexcept = default;
Pack& Pack::operator=(Pack&&) noexcept = default;
Pack::~Pack() = default;

Pack Pack::open(const fs::path& folder) {
  auto state = std::make_unique<State>();
  std::error_code code;
  state->folder = fs::canonical(folder, code);
  if (code || !fs::is_directory(state->folder, code))
    throw Error(ErrorKind::pack, "no such folder", folder.string(), "give the folder that holds config.json");
  const fs::path config = state->folder / "config.json";
  refuse_escaping_link(config, state->folder);
  state->config_text = read_small_file(config, kMaxConfigBytes, ErrorKind::pack);
  state->list_files();
  state->read_headers();
  state->index_names();
  state->check_index();
  state->mappings = std::make_unique<State::Mapping[]>(state->files.size());
  return Pack(std::move(state));
}

const fs::path& Pack::folder() const {
  return state_->folder;
}
const std::string& Pack::config_text() const {
  return state_->config_text;
}
const std::vector<PackFile>& Pack::files() const {
  return state_->files;
}
const std::vector<PackTensor>& Pack::tensors() const {
  return state_->tensors;
}

const PackTensor* Pack::find(std::string_view name) const {
  const int32_t at = state_->lower_bound(name);
  if (at == static_cast<int32_t>(state_->by_name.size())) return nullptr;
  const PackTensor& tensor = state_->named(at);
  return tensor.info.name == name ? &tensor : nullptr;
}

const PackTensor& Pack::at(std::string_view name) const {
  const PackTensor* tensor = find(name);
  if (!tensor) refuse("the pack has no tensor '" + std::string(name) + "'", state_->folder);
  return *tensor;
}

int64_t Pack::tensor_bytes() const {
  int64_t sum = 0;
  for (const PackFile& file : state_->files) sum += file.bytes - file.data_offset;
  return sum;
}

std::vector<std::string> Pack::small_files() const {
  constexpr std::array<std::string_view, 2> kNames{"config.json", "generation_config.json"};
  constexpr std::array<std::string_view, 6> kPrefixes{"tokenizer",    "chat_template", "special_tokens",
                                                      "added_tokens", "vocab.",        "merges."};
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(state_->folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    const bool wanted = std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
                        std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](auto p) { return name.starts_with(p); });
    if (!wanted || it->path().extension() == ".safetensors") continue;
    refuse_escaping_link(it->path(), state_->folder);
    if (it->is_regular_file(code)) names.push_back(name);
  }
  if (code) refuse("cannot list the folder: " + code.message(), state_->folder);
  std::sort(names.begin(), names.end());
  return names;
}

std::span<const std::byte> Pack::data(const PackTensor& tensor) const {
  const PackFile& file = state_->files[static_cast<size_t>(tensor.file)];
  State::Mapping& mapping = state_->mappings[tensor.file];
  std::call_once(mapping.once, [&] { mapping.file = MappedFile(state_->folder / file.name, ErrorKind::pack); });
  const std::span<const std::byte> bytes = mapping.file.bytes();
  if (static_cast<int64_t>(bytes.size()) != file.bytes)
    refuse("the file's size changed from " + std::to_string(file.bytes) + " to " + std::to_string(bytes.size()) +
               " bytes while it was in use",
           state_->folder / file.name);
  return bytes.subspan(static_cast<size_t>(tensor.file_offset), static_cast<size_t>(tensor.info.bytes()));
}

std::optional<Exl3Linear> Pack::find_exl3(std::string_view module, bool read_marker) const {
  Exl3Linear linear{.module = std::string(module)};
  const PackTensor* mcg = nullptr;
  const PackTensor* mul1 = nullptr;
  const std::array<std::pair<std::string_view, const PackTensor**>, 8> parts{{{"trellis", &linear.trellis},
                                                                              {"suh", &linear.suh},
                                                                              {"svh", &linear.svh},
                                                                              {"su", &linear.su},
                                                                              {"sv", &linear.sv},
                                                                              {"bias", &linear.bias},
                                                                              {"mcg", &mcg},
                                                                              {"mul1", &mul1}}};
  // The tensors of a module are neighbours by name: one search finds them all.
  const std::string prefix = linear.module + ".";
  for (int32_t at = state_->lower_bound(prefix); at < static_cast<int32_t>(state_->by_name.size()); ++at) {
    const PackTensor& tensor = state_->named(at);
    const std::string_view name = tensor.info.name;
    if (!name.starts_with(prefix)) break;
    for (const auto& [suffix, slot] : parts)
      if (name.substr(prefix.size()) == suffix) *slot = &tensor;
  }
  if (!linear.trellis) return std::nullopt;

  const auto wrong = [&](const std::string& what) { refuse(linear.module + ": " + what, state_->folder); };
  if (!linear.suh && !linear.su) wrong("EXL3 needs suh or su next to trellis");
  if (!linear.svh && !linear.sv) wrong("EXL3 needs svh or sv next to trellis");
  if (mcg && mul1) wrong("both codebook markers are there, mcg and mul1");

  const TensorInfo& trellis = linear.trellis->info;
  if (trellis.shape.size() != 3 || (trellis.dtype != DType::i16 && trellis.dtype != DType::u16))
    wrong("trellis has shape " + shape_text(trellis.shape) + " " + std::string(dtype_name(trellis.dtype)) +
          ", expected three dimensions of I16");
  constexpr int64_t kMaxTiles = 1 << 20;
  if (trellis.shape[0] < 1 || trellis.shape[1] < 1 || trellis.shape[0] > kMaxTiles || trellis.shape[1] > kMaxTiles)
    wrong("trellis has shape " + shape_text(trellis.shape) + ", out of bounds");
  linear.in_features = trellis.shape[0] * 16;
  linear.out_features = trellis.shape[1] * 16;
  if (linear.in_features % 128 != 0 || linear.out_features % 128 != 0)
    wrong("trellis has shape " + shape_text(trellis.shape) + ", whose features are not multiples of 128");

  linear.codebook = mcg ? Codebook::mcg : mul1 ? Codebook::mul1 : Codebook::three_inst;
  if (const PackTensor* marker = mcg ? mcg : mul1) {
    const uint32_t expected = mcg ? kMcgMultiplier : kMul1Multiplier;
    uint32_t value = expected;
    if (marker->info.bytes() != sizeof(value)) wrong("the codebook marker is not one 32-bit number");
    if (read_marker) std::memcpy(&value, data(*marker).data(), sizeof(value));
    if (value != expected)
      wrong("the codebook marker is " + std::to_string(value) + ", expected " + std::to_string(expected));
  }
  if (trellis.shape[2] > 128 || !is_known_rate(static_cast<int>(trellis.shape[2]), linear.codebook))
    wrong("a tile has " + std::to_string(trellis.shape[2]) + " words, no rate of codebook " +
          std::string(codebook_name(linear.codebook)));
  linear.words_per_tile = static_cast<int>(trellis.shape[2]);

  const auto check = [&](const PackTensor* tensor, const char* suffix, int64_t length, bool is_integer) {
    if (!tensor) return;
    const TensorInfo& t = tensor->info;
    const bool type_fits = is_integer ? t.dtype == DType::i16 || t.dtype == DType::u16
                                      : t.dtype == DType::f16 || (tensor == linear.bias && t.dtype == DType::f32);
    if (t.shape != std::vector<int64_t>{length} || !type_fits)
      wrong(std::string(suffix) + " has shape " + shape_text(t.shape) + " " + std::string(dtype_name(t.dtype)) +
            ", expected [" + std::to_string(length) + "] " + (is_integer ? "I16" : "F16"));
  };
  check(linear.suh, "suh", linear.in_features, false);
  check(linear.svh, "svh", linear.out_features, false);
  check(linear.su, "su", linear.in_features / 16, true);
  check(linear.sv, "sv", linear.out_features / 16, true);
  check(linear.bias, "bias", linear.out_features, false);
  return linear;
}

const std::string& Pack::content_hash() const {
  std::call_once(state_->hash_once, [&] { state_->hash = state_->hash_content(); });
  return state_->hash;
}

}  // namespace tandem
