#include "orchestrator/plan/lock.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "orchestrator/fetch/fetch.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "tandem.lock/v1";
constexpr int64_t kMaxLockBytes = 16 << 20;
constexpr const char* kAgain = "run `tandem lock` again";

bool is_hex(const std::string& text, size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

class LockReader {
 public:
  explicit LockReader(std::string where) : where_(std::move(where)) {}

  Lock read(std::string_view text) const {
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) fail("the lock file is not JSON");
    if (string(json, "schema") != kSchema) fail("the lock file is not of version " + std::string(kSchema));
    Lock lock;
    lock.recipe = string(json, "recipe");
    if (!json.contains("pack") || !json["pack"].is_object()) fail("the lock file has no `pack`");
    const Json& pack = json["pack"];
    lock.repo = string(pack, "repo");
    lock.endpoint = string(pack, "endpoint");
    lock.path = string(pack, "path");
    lock.revision = string(pack, "revision");
    lock.commit = string(pack, "commit");
    if (lock.repo.empty() == lock.path.empty()) fail("the lock file has neither or both of `repo` and `path`");
    if (!lock.repo.empty() && !is_hex(lock.commit, 40)) fail("the lock file's `commit` is not 40 hex digits");
    if (!pack.contains("files") || !pack["files"].is_array()) fail("the lock file has no `files`");
    std::vector<HubFile> names;
    for (const Json& item : pack["files"]) {
      lock.files.push_back(file(item));
      HubFile& name = names.emplace_back();
      name.path = lock.files.back().name;
      name.size = lock.files.back().bytes;
      name.sha256 = lock.files.back().sha256;
    }
    if (lock.files.empty()) fail("the lock file lists no files");
    try {
      check_file_list(names);  // it will become paths on the disk
    } catch (const Error& error) {
      fail(error.what());
    }
    return lock;
  }

 private:
  [[noreturn]] void fail(std::string what) const { throw Error(ErrorKind::recipe, std::move(what), where_, kAgain); }

  std::string string(const Json& object, const char* key) const {
    if (!object.contains(key)) return "";
    if (!object[key].is_string()) fail("`" + std::string(key) + "` of the lock file is not a text");
    return object[key].get<std::string>();
  }

  PlannedFile file(const Json& item) const {
    if (!item.is_object() || !item.contains("bytes") || !item["bytes"].is_number_integer() ||
        item["bytes"].get<int64_t>() < 0)
      fail("a file of the lock file has no size");
    PlannedFile file{string(item, "name"), item["bytes"].get<int64_t>(), string(item, "sha256")};
    if (!is_hex(file.sha256, 64)) fail("the sha256 of `" + printable(file.name, 200) + "` is not 64 hex digits");
    return file;
  }

  std::string where_;
};

}  // namespace

std::filesystem::path lock_path(const std::filesystem::path& recipe_file) {
  return std::filesystem::path(recipe_file).replace_extension(".lock");
}

std::string format_lock(const Lock& lock) {
  Json head = {{"schema", kSchema}, {"recipe", lock.recipe}};
  Json pack = Json::object();
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) pack[key] = value;
  };
  add("repo", lock.repo);
  add("endpoint", lock.endpoint);
  add("path", lock.path);
  add("revision", lock.revision);
  add("commit", lock.commit);
  std::string text = "{\n  \"schema\": \"" + std::string(kSchema) + "\",\n  \"recipe\": " + Json(lock.recipe).dump() +
                     ",\n  \"pack\": {\n";
  for (const auto& [key, value] : pack.items()) text += "    " + Json(key).dump() + ": " + value.dump() + ",\n";
  text += "    \"files\": [\n";
  for (size_t i = 0; i < lock.files.size(); ++i) {
    const PlannedFile& file = lock.files[i];
    const Json line = {{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}};
    text += "      " + line.dump() + (i + 1 < lock.files.size() ? ",\n" : "\n");
  }
  return text + "    ]\n  }\n}\n";
}

Lock parse_lock(std::string_view text, const std::string& where) {
  return LockReader(where).read(text);
}

void check_lock(const Lock& lock, const Recipe& recipe, const std::string& where) {
  const auto same = [&](const std::string& locked, const std::string& asked, const char* what) {
    if (locked != asked)
      throw Error(ErrorKind::recipe,
                  "the lock was made for " + std::string(what) + " `" + printable(locked, 200) + "`, the recipe has `" +
                      printable(asked, 200) + "`",
                  where, kAgain);
  };
  PackUrl url;
  if (!recipe.pack.url.empty()) url = parse_pack_url(recipe.pack.url);
  same(lock.repo, recipe.pack.url.empty() ? recipe.pack.repo : url.repo, "the repository");
  same(lock.endpoint, url.endpoint, "the server");
  same(lock.path, recipe.pack.path, "the folder");
  if (recipe.pack.path.empty()) same(lock.revision, recipe.pack.revision, "revision");
}

std::optional<Lock> find_lock(const Recipe& recipe, const std::filesystem::path& recipe_file) {
  const std::filesystem::path path = lock_path(recipe_file);
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return std::nullopt;
  const std::string where = printable(path.string());
  Lock lock = parse_lock(read_small_file(path, kMaxLockBytes, ErrorKind::recipe), where);
  check_lock(lock, recipe, where);
  return lock;
}

}  // namespace tandem
