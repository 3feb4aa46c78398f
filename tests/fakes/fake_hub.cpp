#include "tests/fakes/fake_hub.h"

#include <nlohmann/json.hpp>

#include "orchestrator/fetch/content_hash.h"
#include "orchestrator/fetch/mirror_request.h"
#include "runtime/common/hash.h"

namespace tandem::testing {
namespace {

constexpr size_t kLfsBytes = 10'000;  // files from this size on are listed with a sha256

std::string etag_of(const std::string& content) {
  return content.size() >= kLfsBytes ? sha256_hex(content) : git_blob_sha1(content);
}

}  // namespace

FakeHub::FakeHub(std::map<std::string, std::string> files, Fault fault)
    : files_(std::move(files)),
      fault_(std::move(fault)),
      server_(std::make_unique<ScriptedServer>([this](const WireRequest& request) { return answer(request); })) {}

std::string FakeHub::commit() const {
  std::lock_guard lock(mutex_);
  std::string all;
  for (const auto& [path, content] : files_) all += path + "\n" + etag_of(content) + "\n";
  return sha256_hex(all).substr(0, 40);
}

std::vector<WireRequest> FakeHub::content_requests() const {
  std::vector<WireRequest> found;
  for (const WireRequest& request : requests()) {
    if (request.target.find("/resolve/") != std::string::npos) found.push_back(request);
  }
  return found;
}

void FakeHub::replace_files(std::map<std::string, std::string> files) {
  std::lock_guard lock(mutex_);
  files_ = std::move(files);
}

std::string FakeHub::content_answer(const WireRequest& request) const {
  const MirrorRequest wanted = parse_mirror_request(request.target);
  const std::string commit_now = commit();
  std::lock_guard lock(mutex_);
  const auto found = files_.find(wanted.path);
  if (wanted.revision != commit_now) return http_answer(404, "", {"X-Error-Code: RevisionNotFound"});
  if (found == files_.end()) return http_answer(404, "", {"X-Error-Code: EntryNotFound"});
  const std::string& content = found->second;
  std::vector<std::string> headers = {"X-Repo-Commit: " + commit_now, "ETag: \"" + etag_of(content) + "\""};
  const std::string range_header = request.header("range");
  if (range_header.empty()) return http_answer(200, content, headers);
  const auto range = parse_byte_range(range_header, static_cast<int64_t>(content.size()));
  if (!range) return http_answer(416, "");
  headers.push_back("Content-Range: bytes " + std::to_string(range->first) + "-" + std::to_string(range->last) + "/" +
                    std::to_string(content.size()));
  return http_answer(
      206, content.substr(static_cast<size_t>(range->first), static_cast<size_t>(range->last - range->first + 1)),
      headers);
}

WireReply FakeHub::answer(const WireRequest& request) const {
  if (fault_) {
    if (auto reply = fault_(request)) return *reply;
  }
  const MirrorRequest wanted = parse_mirror_request(request.target);
  const std::string commit_now = commit();
  if (wanted.kind == MirrorRequest::Kind::file) return {content_answer(request)};
  if (wanted.repo != "org/pack") return {http_answer(404, "", {"X-Error-Code: RepoNotFound"})};
  if (wanted.revision != "main" && wanted.revision != commit_now) {
    return {http_answer(404, "", {"X-Error-Code: RevisionNotFound"})};
  }
  if (wanted.kind == MirrorRequest::Kind::info) return {http_answer(200, nlohmann::json({{"sha", commit_now}}).dump())};
  nlohmann::json list = nlohmann::json::array();
  std::lock_guard lock(mutex_);
  for (const auto& [path, content] : files_) {
    nlohmann::json entry = {
        {"type", "file"}, {"path", path}, {"size", content.size()}, {"oid", git_blob_sha1(content)}};
    if (content.size() >= kLfsBytes)
      entry["lfs"] = {{"oid", sha256_hex(content)}, {"size", content.size()}, {"pointerSize", 130}};
    list.push_back(std::move(entry));
  }
  return {http_answer(200, list.dump())};
}

}  // namespace tandem::testing
