#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/fetch/retry.h"

namespace tandem {

/// One file of a repository at a commit, as the hub lists it.
struct HubFile {
  std::string path;      ///< relative, '/' between parts; checked: see check_file_path()
  int64_t size = 0;      ///< bytes
  std::string sha256;    ///< 64 lower-case hex digits; "" when only git_sha1 is known (small files outside LFS)
  std::string git_sha1;  ///< 40 hex digits of the git blob; "" for LFS files, where git's id is that of the pointer

  /// The name of the file's content in the cache's blobs folder, which is also its ETag.
  const std::string& etag() const { return git_sha1.empty() ? sha256 : git_sha1; }
};

struct HubOptions {
  std::string endpoint = "https://huggingface.co";  ///< http(s)://host[:port][/prefix]
  std::string token;                                ///< sent to the endpoint only; see HubClient
  RetryPolicy retry;
};

/// HF_ENDPOINT; and the token: HF_TOKEN, else the file at HF_TOKEN_PATH, else $HF_HOME/token,
/// else ~/.cache/huggingface/token. HF_HUB_DISABLE_IMPLICIT_TOKEN=1 keeps the files unread.
HubOptions hub_options_from_environment();

/// "org/name" or "name", as the hub allows them. @throws Error (fetch) otherwise.
void check_repo_id(std::string_view repo);
/// A branch, tag or commit that can be part of a URL and of a file name. @throws Error (fetch) otherwise.
void check_revision(std::string_view revision);
/// Refuses what must not become a file name: "..", absolute paths, backslashes, control characters, names that
/// some file systems reserve, over-long parts. @throws Error (fetch) naming the path.
void check_file_path(std::string_view path);
/// check_file_path() on each, plus: no two paths equal when case is ignored, no path that is a folder of another,
/// at most kMaxHubFiles. @throws Error (fetch)
void check_file_list(const std::vector<HubFile>& files);
bool is_commit(std::string_view revision);  ///< exactly 40 lower-case hex digits

inline constexpr int64_t kMaxHubFiles = 20'000;

/// Where a repository's page is, for "open this page" in messages.
std::string repo_page(const HubOptions& hub, std::string_view repo);

/// Client of the Hugging Face hub's HTTP protocol, or of a `tandem mirror`. Not for use by several threads at once.
///
/// The token goes to the endpoint's own scheme, host and port only: a redirect elsewhere is followed without it.
/// It never goes over plain http to another machine, so a mirror in the local network does not see it.
/// Every answer is bounded in size and checked before use. Temporary failures are tried again by the retry policy.
/// @throws Error (fetch), or (interrupted) once `cancel` is set
class HubClient {
 public:
  explicit HubClient(HubOptions options, const std::atomic<bool>* cancel = nullptr);
  ~HubClient();

  /// The commit a branch, tag or abbreviated commit stands for. Ask once, then use only the commit.
  std::string resolve_commit(const std::string& repo, const std::string& revision);

  /// All files at a commit, sorted by path in byte order, checked by check_file_list().
  std::vector<HubFile> list_files(const std::string& repo, const std::string& commit);

  /// The whole content of one file, its hash verified. For small files: config.json, tokenizer.json.
  std::string read_file(const std::string& repo, const std::string& commit, const HubFile& file, int64_t max_bytes);

  /// list_files() with sha256 and size of every file, for `tandem lock`: reads the small files to hash them.
  /// git_sha1 is kept. @throws Error when a file without a listed sha256 is larger than 64 MiB
  std::vector<HubFile> list_files_with_sha256(const std::string& repo, const std::string& commit);

  /// {endpoint}/{repo}/resolve/{commit}/{path}, percent-encoded.
  static std::string file_url(const std::string& endpoint, const std::string& repo, const std::string& commit,
                              const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem
