#include "orchestrator/fetch/hub.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "orchestrator/fetch/content_hash.h"
#include "orchestrator/fetch/hub_transport.h"
#include "runtime/common/error.h"
#include "runtime/common/log.h"

namespace tandem {
namespace {

constexpr int64_t kMaxListBytes = 32LL << 20;  // of one page
constexpr int kMaxPages = 1000;
constexpr int64_t kMaxHashedFile = 64LL << 20;
constexpr size_t kMaxToken = 4096;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  return text;
}

std::filesystem::path token_file() {
  if (const auto path = environment("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const auto home = environment("HF_HOME"); !home.empty()) return std::filesystem::path(home) / "token";
  if (const auto cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return std::filesystem::path(cache) / "huggingface" / "token";
  }
  return std::filesystem::path(environment("HOME")) / ".cache" / "huggingface" / "token";
}

/// A token becomes a header line: a line break in it would start another header.
std::string checked_token(std::string token, const std::string& from) {
  token = trimmed(std::move(token));
  const bool plain = std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (plain && token.size() <= kMaxToken) return token;
  throw Error(ErrorKind::fetch, "the hub token is not one line of printable characters", from,
              "write the token again, as the hub's settings page shows it (it starts with hf_)");
}

/// The target of `<...>; rel="next"` in a Link header, "" when there is none.
std::string next_link(const std::string& header) {
  for (size_t begin = header.find('<'); begin != std::string::npos; begin = header.find('<', begin + 1)) {
    const size_t end = header.find('>', begin);
    if (end == std::string::npos) return "";
    const std::string parameters = header.substr(end, std::min(header.find('<', end), header.size()) - end);
    if (parameters.find("rel=\"next\"") != std::string::npos || parameters.find("rel=next") != std::string::npos) {
      return header.substr(begin + 1, end - begin - 1);
    }
  }
  return "";
}

std::string without_trailing_slash(std::string text) {
  while (!text.empty() && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

HubOptions hub_options_from_environment() {
  HubOptions options;
  if (const auto endpoint = environment("HF_ENDPOINT"); !endpoint.empty()) {
    options.endpoint = without_trailing_slash(parse_url(endpoint).text());
  }
  if (const auto token = environment("HF_TOKEN"); !token.empty()) {
    options.token = checked_token(token, "environment variable HF_TOKEN");
    return options;
  }
  const std::string implicit = environment("HF_HUB_DISABLE_IMPLICIT_TOKEN");
  if (!implicit.empty() && implicit != "0" && implicit != "false") return options;
  if (std::ifstream file(token_file()); file) {
    std::string text(kMaxToken + 64, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    options.token = checked_token(text, token_file().string());
  }
  return options;
}

std::string HubClient::file_url(const std::string& endpoint, const std::string& repo, const std::string& commit,
                                const std::string& path) {
  return without_trailing_slash(endpoint) + "/" + percent_encode(repo, true) + "/resolve/" +
         percent_encode(commit, false) + "/" + percent_encode(path, true);
}

struct HubClient::State {
  State(HubOptions hub_options, const std::atomic<bool>* cancel)
      : options(std::move(hub_options)), watch(options.retry, cancel), transport(options, watch) {}

  void wait(std::chrono::milliseconds time) const {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!watch.cancelled() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(time, std::chrono::milliseconds(20)));
    }
  }

  /// The whole body of a 2xx answer, tried again as the policy says. `link` gets the Link header.
  std::string get_body(const Url& url, const HubSubject& subject, int64_t max_bytes, std::string* link = nullptr) {
    Retrier retrier(options.retry);
    while (true) {
      std::string body;
      bool too_large = false;
      const HubAnswer answer = transport.get(
          url, {},
          [&](const HttpResponse& head) {
            const std::string encoding = head.header("Content-Encoding");
            if (!encoding.empty() && encoding != "identity") {
              throw Error(ErrorKind::fetch,
                          "the answer is compressed (" + printable(encoding, 40) + "), which nobody asked for",
                          url.display(), "switch compression off in the proxy between this machine and the hub");
            }
            if (link != nullptr) *link = head.header("Link");
            too_large = head.content_length() > max_bytes;
            return !too_large;
          },
          [&](std::string_view data) {
            too_large = static_cast<int64_t>(body.size() + data.size()) > max_bytes;
            if (!too_large) body += data;
            return !too_large;
          });
      if (too_large) {
        throw Error(ErrorKind::fetch, "the answer is larger than " + std::to_string(max_bytes) + " bytes",
                    url.display(), "check that HF_ENDPOINT is a Hugging Face hub or a `tandem mirror`");
      }
      const HttpResponse& response = answer.response;
      const bool good = response.failure == HttpFailure::none && response.status >= 200 && response.status < 300;
      if (good) return body;
      std::optional<std::chrono::milliseconds> pause;
      if (is_temporary(answer)) pause = retrier.next_wait(answer);
      if (!pause) throw hub_error(answer, options, subject, retrier.tries());
      log_debug("hub request is tried again",
                {{"url", url.display()}, {"why", describe_failure(answer, options.retry)}});
      wait(*pause);
      if (watch.cancelled()) throw Error(ErrorKind::interrupted, "fetch was interrupted", url.display());
    }
  }

  nlohmann::json get_json(const Url& url, const HubSubject& subject, std::string* link = nullptr) {
    auto document = nlohmann::json::parse(get_body(url, subject, kMaxListBytes, link), nullptr, false);
    if (document.is_discarded()) throw not_a_hub(url, "the answer is not JSON");
    return document;
  }

  static Error not_a_hub(const Url& url, const std::string& why) {
    return Error(ErrorKind::fetch, "the server does not speak the hub's protocol: " + why, url.display(),
                 "check that HF_ENDPOINT is a Hugging Face hub or a `tandem mirror`");
  }

  Url api(const std::string& repo, const std::string& rest) const {
    return parse_url(without_trailing_slash(options.endpoint) + "/api/models/" + percent_encode(repo, true) + rest);
  }

  /// One entry of a tree listing; false for a folder.
  static bool read_entry(const nlohmann::json& entry, const Url& url, HubFile* file) {
    if (!entry.is_object()) throw not_a_hub(url, "an entry of the file list is not an object");
    const auto text = [&](const nlohmann::json& object, const char* key) {
      const auto found = object.find(key);
      return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    const auto number = [&](const nlohmann::json& object, const char* key) -> int64_t {
      const auto found = object.find(key);
      if (found == object.end() || !found->is_number_integer() ||
          (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
        throw not_a_hub(url, std::string("an entry of the file list has no usable ") + key);
      }
      return found->get<int64_t>();
    };
    if (text(entry, "type") == "directory") return false;
    if (text(entry, "type") != "file") throw not_a_hub(url, "an entry of the file list is neither file nor directory");
    file->path = text(entry, "path");
    file->size = number(entry, "size");
    const auto lfs = entry.find("lfs");
    if (lfs != entry.end() && lfs->is_object()) {
      file->sha256 = text(*lfs, "oid");
      if (file->sha256.rfind("sha256:", 0) == 0) file->sha256.erase(0, 7);
      if (number(*lfs, "size") != file->size) {
        throw Error(ErrorKind::fetch,
                    "the hub lists two sizes for one file: " + std::to_string(file->size) + " and " +
                        std::to_string(number(*lfs, "size")),
                    printable(file->path), "tell the repository's publisher");
      }
    } else {
      file->git_sha1 = text(entry, "oid");
    }
    return true;
  }

  const HubOptions options;
  HttpWatch watch;
  HubTransport transport;
};

HubClient::HubClient(HubOptions options, const std::atomic<bool>* cancel)
    : state_(std::make_unique<State>(std::move(options), cancel)) {}
HubClient::~HubClient() = default;

std::string HubClient::resolve_commit(const std::string& repo, const std::string& revision) {
  check_repo_id(repo);
  check_revision(revision);
  if (is_commit(revision)) return revision;
  const Url url = state_->api(repo, "/revision/" + percent_encode(revision, false));
  const auto info = state_->get_json(url, {repo, revision, ""});
  const auto sha = info.is_object() ? info.find("sha") : info.end();
  if (!info.is_object() || sha == info.end() || !sha->is_string() || !is_commit(sha->get<std::string>())) {
    throw State::not_a_hub(url, "the model info has no commit");
  }
  return sha->get<std::string>();
}

std::vector<HubFile> HubClient::list_files(const std::string& repo, const std::string& commit) {
  check_repo_id(repo);
  check_revision(commit);
  std::vector<HubFile> files;
  Url url = state_->api(repo, "/tree/" + percent_encode(commit, false) + "?recursive=true");
  for (int page = 0;; ++page) {
    if (page == kMaxPages)
      throw State::not_a_hub(url, "the file list has more than " + std::to_string(kMaxPages) + " pages");
    std::string link;
    const auto entries = state_->get_json(url, {repo, commit, ""}, &link);
    if (!entries.is_array()) throw State::not_a_hub(url, "the file list is not a list");
    for (const auto& entry : entries) {
      HubFile file;
      if (State::read_entry(entry, url, &file)) files.push_back(std::move(file));
      if (static_cast<int64_t>(files.size()) > kMaxHubFiles) check_file_list(files);
    }
    const std::string next = next_link(link);
    if (next.empty()) break;
    const Url next_url = resolve_location(url, next);
    if (!next_url.same_origin(url)) throw State::not_a_hub(url, "the file list continues on another server");
    url = next_url;
  }
  check_file_list(files);
  std::sort(files.begin(), files.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return files;
}

std::string HubClient::read_file(const std::string& repo, const std::string& commit, const HubFile& file,
                                 int64_t max_bytes) {
  const Url url = parse_url(file_url(state_->options.endpoint, repo, commit, file.path));
  if (file.size > max_bytes) {
    throw Error(
        ErrorKind::fetch,
        printable(file.path) + " has " + std::to_string(file.size) + " bytes, more than " + std::to_string(max_bytes),
        url.display());
  }
  std::string content = state_->get_body(url, {repo, commit, file.path}, file.size);
  ContentHash hash(file);
  hash.update(content);
  const std::string mismatch =
      static_cast<int64_t>(content.size()) == file.size
          ? hash.mismatch()
          : "it has " + std::to_string(content.size()) + " bytes, listed are " + std::to_string(file.size);
  if (!mismatch.empty()) {
    throw Error(ErrorKind::fetch, "the content of " + printable(file.path) + " is not what the hub lists: " + mismatch,
                url.display(), "run it again; if it stays so, the server's copy is damaged");
  }
  return content;
}

std::vector<HubFile> HubClient::list_files_with_sha256(const std::string& repo, const std::string& commit) {
  std::vector<HubFile> files = list_files(repo, commit);
  for (HubFile& file : files) {
    if (!file.sha256.empty()) continue;
    file.sha256 = sha256_hex(read_file(repo, commit, file, kMaxHashedFile));
  }
  return files;
}

}  // namespace tandem
