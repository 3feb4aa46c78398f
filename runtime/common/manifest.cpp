#include "runtime/common/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/common/file.h"
#include "runtime/common/json_walk.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxManifestBytes = size_t{512} << 20;
constexpr size_t kMaxFiles = 8192;
constexpr size_t kMaxTensors = 4'000'000;
constexpr size_t kMaxRanges = 64;
constexpr size_t kMaxRank = 8;
constexpr const char* kResplit = "run `tandem split` again";

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::pack, what, where.string(), kResplit);
}

std::string list_text(const std::vector<int64_t>& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size(); ++i) text += (i ? "," : "") + std::to_string(list[i]);
  return text + "]";
}

std::string tensor_line(const ManifestTensor& t) {
  std::string line = json(t.info.name).dump() + ": {\"dtype\": \"" + std::string(dtype_name(t.info.dtype)) +
                     "\", \"shape\": " + list_text(t.info.shape) + ", \"file\": " + std::to_string(t.file) +
                     ", \"offset\": " + std::to_string(t.info.begin);
  if (t.axis >= 0) {
    line +=
        ", \"full_shape\": " + list_text(t.full_shape) + ", \"axis\": " + std::to_string(t.axis) + ", \"ranges\": [";
    for (size_t i = 0; i < t.ranges.size(); ++i)
      line += (i ? "," : "") + list_text({t.ranges[i].begin, t.ranges[i].end});
    line += ']';
  }
  return line + '}';
}

/// Everything before the tensors, without the closing brace.
std::string head_text(const Manifest& m) {
  nlohmann::ordered_json head{{"schema", kManifestSchema},
                              {"family", m.family},
                              {"world_size", m.world_size},
                              {"rank", m.rank},
                              {"layout_version", m.layout_version},
                              {"pack", {{"repo", m.pack_repo}, {"commit", m.pack_commit}, {"hash", m.pack_hash}}},
                              {"bits_per_weight", nlohmann::ordered_json::object()},
                              {"files", nlohmann::ordered_json::array()}};
  for (int i = 0; i < kNumComponents; ++i) {
    const auto component = static_cast<Component>(i);
    head["bits_per_weight"][std::string(component_name(component))] = m.bits[component];
  }
  for (const ManifestFile& file : m.files)
    head["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  std::string text = head.dump(2);
  text.resize(text.rfind('\n'));
  return text;
}

class ManifestVisitor final : public JsonVisitor {
 public:
  ManifestVisitor(const fs::path& where, bool with_tensors) : where_(where), with_tensors_(with_tensors) {}

  void open(Path path, bool is_array) override {
    if (path.size() == 2 && path[0] == "files" && !is_array) {
      if (manifest.files.size() >= kMaxFiles) refuse("manifest.json lists too many files", where_);
      manifest.files.emplace_back();
    } else if (path.size() == 2 && path[0] == "tensors" && with_tensors_) {
      if (manifest.tensors.size() >= kMaxTensors) refuse("manifest.json lists too many tensors", where_);
      manifest.tensors.emplace_back().info.name = path[1];
    } else if (path.size() == 4 && path[0] == "tensors" && path[2] == "ranges" && with_tensors_) {
      if (manifest.tensors.back().ranges.size() >= kMaxRanges) refuse("a tensor has too many ranges", where_);
      manifest.tensors.back().ranges.push_back({-1, -1});
    }
  }

  void scalar(Path path, const JsonScalar& value) override {
    if (path.size() == 1) {
      top(path[0], value);
    } else if (path[0] == "pack" && path.size() == 2) {
      if (path[1] == "repo")
        manifest.pack_repo = text(path, value);
      else if (path[1] == "commit")
        manifest.pack_commit = text(path, value);
      else if (path[1] == "hash")
        manifest.pack_hash = text(path, value);
    } else if (path[0] == "bits_per_weight" && path.size() == 2) {
      const auto component = parse_component(path[1]);
      const bool is_number = value.kind == JsonScalar::Kind::integer || value.kind == JsonScalar::Kind::number;
      if (!component || !is_number || value.number < 0 || value.number > 64) wrong(path);
      manifest.bits[*component] = value.number;
    } else if (path[0] == "files" && path.size() == 3 && !manifest.files.empty()) {
      ManifestFile& file = manifest.files.back();
      if (path[2] == "name")
        file.name = text(path, value);
      else if (path[2] == "bytes")
        file.bytes = integer(path, value, 0, INT64_MAX);
      else if (path[2] == "sha256")
        file.sha256 = text(path, value);
    } else if (path[0] == "tensors" && path.size() >= 3 && with_tensors_) {
      tensor(path, value);
    }
  }

  void close(Path path, bool) override {
    if (path.size() == 2 && path[0] == "tensors" && with_tensors_) finish_tensor();
  }

  void check_complete() const {
    if (schema_ != kManifestSchema)
      refuse("manifest.json has schema '" + printable(schema_, 60) + "', expected '" + kManifestSchema + "'", where_);
    if (manifest.files.empty() || manifest.pack_hash.empty() || !have_rank_ || !have_world_ || !have_layout_)
      refuse("manifest.json is incomplete", where_);
    if (manifest.rank >= manifest.world_size)
      refuse("manifest.json is of rank " + std::to_string(manifest.rank) + " of " + std::to_string(manifest.world_size),
             where_);
    for (const ManifestFile& file : manifest.files) {
      // The name is joined to the folder's path: it must not lead out of it.
      const bool plain = !file.name.empty() && file.name != "." && file.name != ".." &&
                         file.name.find('/') == std::string::npos && file.name.find('\0') == std::string::npos;
      if (!plain) refuse("manifest.json names the file '" + printable(file.name, 100) + "'", where_);
      if (file.sha256.size() != 64 || file.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
        refuse("manifest.json has no sha256 of '" + printable(file.name, 100) + "'", where_);
    }
    for (const ManifestTensor& t : manifest.tensors)
      if (t.file < 0 || static_cast<size_t>(t.file) >= manifest.files.size())
        refuse("manifest.json puts '" + printable(t.info.name, 200) + "' in a file it does not list", where_);
  }

  Manifest manifest;

 private:
  [[noreturn]] void wrong(Path path) const {
    std::string at;
    for (const std::string& key : path) at += (at.empty() ? "" : ".") + (key.empty() ? "[]" : printable(key, 100));
    refuse("manifest.json has an unexpected value at '" + at + "'", where_);
  }

  std::string text(Path path, const JsonScalar& value) const {
    if (value.kind != JsonScalar::Kind::string || value.text.size() > 1024) wrong(path);
    return std::string(value.text);
  }

  int64_t integer(Path path, const JsonScalar& value, int64_t low, int64_t high) const {
    if (value.kind != JsonScalar::Kind::integer || value.integer < low || value.integer > high) wrong(path);
    return value.integer;
  }

  void top(const std::string& key, const JsonScalar& value) {
    const Path path(&key, 1);
    if (key == "schema")
      schema_ = text(path, value);
    else if (key == "family")
      manifest.family = text(path, value);
    else if (key == "world_size") {
      manifest.world_size = static_cast<int>(integer(path, value, 1, 1024));
      have_world_ = true;
    } else if (key == "rank") {
      manifest.rank = static_cast<int>(integer(path, value, 0, 1023));
      have_rank_ = true;
    } else if (key == "layout_version") {
      manifest.layout_version = static_cast<int>(integer(path, value, 0, INT32_MAX));
      have_layout_ = true;
    }
  }

  void tensor(Path path, const JsonScalar& value) {
    ManifestTensor& t = manifest.tensors.back();
    const std::string& key = path[2];
    if (path.size() == 3) {
      if (key == "dtype") {
        const auto dtype = parse_dtype(text(path, value));
        if (!dtype) wrong(path);
        t.info.dtype = *dtype;
      } else if (key == "file") {
        t.file = static_cast<int>(integer(path, value, 0, static_cast<int64_t>(kMaxFiles)));
      } else if (key == "offset") {
        t.info.begin = integer(path, value, 0, INT64_MAX / 2);
      } else if (key == "axis") {
        t.axis = static_cast<int>(integer(path, value, 0, static_cast<int64_t>(kMaxRank) - 1));
      }
    } else if (path.size() == 4 && (key == "shape" || key == "full_shape")) {
      std::vector<int64_t>& list = key == "shape" ? t.info.shape : t.full_shape;
      if (list.size() >= kMaxRank) wrong(path);
      list.push_back(integer(path, value, 0, INT64_MAX));
    } else if (path.size() == 5 && key == "ranges" && !t.ranges.empty()) {
      Range& range = t.ranges.back();
      (range.begin < 0 ? range.begin : range.end) = integer(path, value, 0, INT64_MAX);
    }
  }

  void finish_tensor() {
    ManifestTensor& t = manifest.tensors.back();
    int64_t bytes = dtype_bytes(t.info.dtype);
    for (const int64_t n : t.info.shape)
      if (__builtin_mul_overflow(bytes, n, &bytes) || bytes > INT64_MAX / 2)
        refuse("manifest.json gives '" + printable(t.info.name, 200) + "' an impossible shape", where_);
    t.info.end = t.info.begin + bytes;
    if (t.axis < 0) t.full_shape = t.info.shape;
    for (const Range& range : t.ranges)
      if (range.begin < 0 || range.end < range.begin)
        refuse("manifest.json gives '" + printable(t.info.name, 200) + "' an impossible range", where_);
  }

  const fs::path& where_;
  bool with_tensors_;
  std::string schema_;
  bool have_rank_ = false, have_world_ = false, have_layout_ = false;
};

}  // namespace

void write_manifest(const fs::path& rank_folder, const Manifest& manifest,
                    const std::function<bool(ManifestTensor&)>& next_tensor) {
  constexpr size_t kPieceBytes = 1 << 20;
  StreamedFile file(rank_folder / kManifestName, 0, ErrorKind::split);
  std::string text = head_text(manifest) + ",\n  \"tensors\": {";
  ManifestTensor tensor;
  for (bool first = true; next_tensor(tensor); first = false) {
    text += (first ? "\n    " : ",\n    ") + tensor_line(tensor);
    if (text.size() < kPieceBytes) continue;
    file.append(std::as_bytes(std::span(text)));
    text.clear();
  }
  text += "\n  }\n}\n";
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

Manifest read_manifest(const fs::path& rank_folder, bool with_tensors) {
  const fs::path path = rank_folder / kManifestName;
  // Mapped rather than read: 400,000 tensors make some 80 MB of text.
  const MappedFile file(path, ErrorKind::pack);
  if (file.bytes().size() > kMaxManifestBytes) refuse("manifest.json has more than 512 MiB", path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  ManifestVisitor visitor(path, with_tensors);
  walk_json(text, visitor, 6, ErrorKind::pack, path.string());
  visitor.check_complete();
  return std::move(visitor.manifest);
}

void check_manifest(const fs::path& rank_folder, const Manifest& manifest, const ManifestExpectation& expected) {
  const auto differs = [&](const std::string& what, const std::string& is, const std::string& wanted) {
    refuse("the rank folder is of " + what + " " + is + ", expected " + wanted, rank_folder);
  };
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (manifest.layout_version != kSplitLayoutVersion)
    differs("layout version", number(manifest.layout_version), number(kSplitLayoutVersion));
  if (expected.world_size >= 0 && manifest.world_size != expected.world_size)
    differs("world size", number(manifest.world_size), number(expected.world_size));
  if (expected.rank >= 0 && manifest.rank != expected.rank)
    differs("rank", number(manifest.rank), number(expected.rank));
  if (!expected.pack_hash.empty() && manifest.pack_hash != expected.pack_hash)
    differs("pack", printable(manifest.pack_hash, 64), printable(expected.pack_hash, 64));
  for (const ManifestFile& file : manifest.files) {
    std::error_code code;
    const fs::path path = rank_folder / file.name;
    if (!fs::is_regular_file(fs::symlink_status(path, code)))
      refuse("the file '" + printable(file.name, 100) + "' is missing", rank_folder);
    const auto bytes = static_cast<int64_t>(fs::file_size(path, code));
    if (code || bytes != file.bytes)
      refuse("the file '" + printable(file.name, 100) + "' has " + number(bytes) + " bytes, expected " +
                 number(file.bytes),
             rank_folder);
  }
}

void verify_rank_folder(const fs::path& rank_folder, const Manifest& manifest, const std::atomic<bool>* cancel) {
  for (const ManifestFile& file : manifest.files) {
    const std::string sha256 = hash_file_hex(rank_folder / file.name, HashKind::sha256, cancel);
    if (sha256 != file.sha256)
      refuse("the file '" + printable(file.name, 100) + "' is damaged: sha256 " + sha256 + ", expected " + file.sha256,
             rank_folder);
  }
}

bool is_rank_folder(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / kManifestName, code);
}

}  // namespace tandem
