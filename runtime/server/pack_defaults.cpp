#include "runtime/server/pack_defaults.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/common/file.h"
#include "runtime/tokenizer/tokenizer.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = 64 << 20;
constexpr int kMaxDepth = 64;

/// A pack's JSON file; an empty object when it is not there.
json read_object(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return json::object();
  const std::string text = read_small_file(path, kMaxFileBytes, ErrorKind::pack);
  const auto limit_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) throw Error(ErrorKind::pack, "JSON nested too deeply", path.string());
    return true;
  };
  try {
    json parsed = json::parse(text, limit_depth);
    if (parsed.is_object()) return parsed;
    throw Error(ErrorKind::pack, "expected a JSON object", path.string());
  } catch (const json::exception& error) {
    throw Error(ErrorKind::pack, error.what(), path.string(), "fetch the pack again");
  }
}

std::optional<double> number(const json& object, const char* name, double lowest, double highest,
                             const std::filesystem::path& path) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (found->is_number() && *found >= lowest && *found <= highest) return found->get<double>();
  throw Error(ErrorKind::pack,
              std::string(name) + " is " + found->dump().substr(0, 100) + ", expected a number of " +
                  json(lowest).dump() + " to " + json(highest).dump(),
              path.string());
}

/// One id or an array of them.
void add_ids(const json& object, const char* name, std::vector<int32_t>& ids) {
  const auto found = object.find(name);
  if (found == object.end()) return;
  const auto add = [&](const json& id) {
    if (id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max())
      ids.push_back(id.get<int32_t>());
  };
  if (found->is_array())
    std::for_each(found->begin(), found->end(), add);
  else
    add(*found);
}

}  // namespace

SamplingParameters read_sampling_defaults(const std::filesystem::path& pack) {
  const auto path = pack / "generation_config.json";
  const json config = read_object(path);
  const auto value = [&](const char* name, double lowest, double highest) {
    return number(config, name, lowest, highest, path);
  };
  SamplingParameters sampling;
  sampling.temperature = value("temperature", 0, 100).value_or(sampling.temperature);
  sampling.top_p = value("top_p", 0, 1).value_or(sampling.top_p);
  sampling.top_k = static_cast<int64_t>(value("top_k", 0, 1e9).value_or(0));
  sampling.min_p = value("min_p", 0, 1).value_or(sampling.min_p);
  sampling.repetition_penalty = value("repetition_penalty", 0.01, 100).value_or(sampling.repetition_penalty);
  if (const auto found = config.find("do_sample"); found != config.end() && *found == false) sampling.temperature = 0;
  return sampling;
}

EndTokens read_end_tokens(const std::filesystem::path& pack, const Tokenizer& tokenizer) {
  EndTokens end;
  for (const char* file : {"config.json", "generation_config.json"})
    add_ids(read_object(pack / file), "eos_token_id", end.ids);
  const json config = read_object(pack / "tokenizer_config.json");
  if (const auto found = config.find("eos_token"); found != config.end()) {
    const json& token = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
    if (token.is_string())
      if (const auto id = tokenizer.find(token.get<std::string>())) end.ids.push_back(*id);
  }
  std::sort(end.ids.begin(), end.ids.end());
  end.ids.erase(std::unique(end.ids.begin(), end.ids.end()), end.ids.end());
  for (const int32_t id : end.ids)
    if (tokenizer.is_added(id)) end.spellings.emplace_back(tokenizer.token_bytes(id));
  return end;
}

}  // namespace tandem
