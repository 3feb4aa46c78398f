#include "orchestrator/fetch/mirror.h"

#include <fcntl.h>
#include <httplib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "orchestrator/fetch/file_io.h"
#include "orchestrator/fetch/hub.h"
#include "orchestrator/fetch/mirror_request.h"
#include "orchestrator/fetch/served_repo.h"
#include "orchestrator/fetch/url.h"
#include "runtime/common/error.h"
#include "runtime/common/log.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

using std::chrono::steady_clock;

constexpr int64_t kReadPiece = 256 << 10;
constexpr auto kPatience = std::chrono::milliseconds(5000);  // well below a client's stall time-out
constexpr int64_t kFilesPerPage = 1000;

/// Spaces out what all connections send together.
class RateLimiter {
 public:
  explicit RateLimiter(int64_t bytes_per_second) : rate_(bytes_per_second) {}

  /// The largest piece that keeps the flow even.
  int64_t piece() const { return rate_ == 0 ? kReadPiece : std::clamp<int64_t>(rate_ / 50, 1024, kReadPiece); }

  /// Waits until `bytes` may be sent, or `stop` is set.
  void wait_for(int64_t bytes, const std::atomic<bool>& stop) {
    if (rate_ == 0) return;
    steady_clock::time_point mine;
    {
      std::lock_guard lock(mutex_);
      free_at_ = std::max(free_at_, steady_clock::now());
      free_at_ +=
          std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(bytes) / static_cast<double>(rate_)));
      mine = free_at_;
    }
    while (!stop && steady_clock::now() < mine) {
      std::this_thread::sleep_until(std::min(mine, steady_clock::now() + std::chrono::milliseconds(50)));
    }
  }

 private:
  const int64_t rate_;
  std::mutex mutex_;
  steady_clock::time_point free_at_{};
};

bool has_files(const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) return true;
  }
  return false;
}

bool is_repo_id(const std::string& name) {
  try {
    check_repo_id(name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

struct Mirror::State {
  explicit State(MirrorOptions given) : options(std::move(given)), limiter(options.bytes_per_second) {}

  void find_repos();
  void add_repo(const std::string& name, ServedRepo::Kind kind, const fs::path& folder);
  std::shared_ptr<ServedRepo> repo(const std::string& name);
  void bind();
  void answer(const httplib::Request& request, httplib::Response& response);
  void answer_file(const httplib::Request& request, const ServedFile& served, httplib::Response& response);
  void answer_info(const std::string& name, const Listing& listing, httplib::Response& response) const;
  void answer_tree(const MirrorRequest& wanted, const Listing& listing, httplib::Response& response) const;
  void log(const httplib::Request& request, const std::string& range, int status);

  const MirrorOptions options;
  RateLimiter limiter;
  httplib::Server server;
  int port = 0;
  std::atomic<bool> stopping{false};
  std::atomic<bool> serving{false};
  std::mutex mutex;  // guards repos
  std::map<std::string, std::shared_ptr<ServedRepo>> repos;
  FileDescriptor log_file;
};

void Mirror::State::add_repo(const std::string& name, ServedRepo::Kind kind, const fs::path& folder) {
  if (!is_repo_id(name) || repos.count(name) != 0) return;
  std::error_code failed;
  const fs::path real = fs::canonical(folder, failed);
  if (!failed) repos[name] = std::make_shared<ServedRepo>(kind, real);
}

/// A cache (models--* folders), one pack (a folder with files), or a folder of packs: NAME/ or ORG/NAME/.
void Mirror::State::find_repos() {
  std::error_code failed;
  const fs::path root = fs::canonical(options.root, failed);
  if (failed) return;
  if (has_files(root) && fs::exists(root / "config.json", failed)) {
    add_repo(root.filename().string(), ServedRepo::Kind::folder, root);
    return;
  }
  for (fs::directory_iterator it(root, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    std::string name = it->path().filename().string();
    // A link among the packs is the owner's wish; links inside a pack must stay inside.
    if (!it->is_directory(ignored) || name.front() == '.') continue;
    if (name.rfind("models--", 0) == 0) {
      name.erase(0, 8);
      if (const auto dashes = name.find("--"); dashes != std::string::npos) name.replace(dashes, 2, "/");
      add_repo(name, ServedRepo::Kind::cache, it->path());
    } else if (has_files(it->path())) {
      add_repo(name, ServedRepo::Kind::folder, it->path());
    } else {
      for (fs::directory_iterator inner(it->path(), ignored); !ignored && inner != end; inner.increment(ignored)) {
        std::error_code also_ignored;
        if (inner->is_directory(also_ignored) && has_files(inner->path())) {
          add_repo(name + "/" + inner->path().filename().string(), ServedRepo::Kind::folder, inner->path());
        }
      }
    }
  }
}

/// A pack in NAME/ also answers to org/NAME for any org: recipes name the publisher, folders often do not.
std::shared_ptr<ServedRepo> Mirror::State::repo(const std::string& name) {
  if (!is_repo_id(name)) return nullptr;
  std::lock_guard lock(mutex);
  const auto find = [&]() -> std::shared_ptr<ServedRepo> {
    auto found = repos.find(name);
    if (found == repos.end()) found = repos.find(name.substr(name.find('/') + 1));
    return found == repos.end() ? nullptr : found->second;
  };
  if (auto found = find()) return found;
  find_repos();  // it may have been added since
  return find();
}

void Mirror::State::bind() {
  server.set_socket_options([](socket_t socket) {
    // Not SO_REUSEPORT, the library's default: a second mirror on the same port must fail, not share it.
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_tcp_nodelay(true);
  server.set_keep_alive_max_count(100'000);
  server.set_keep_alive_timeout(2);
  server.set_read_timeout(std::chrono::seconds(10));
  server.set_write_timeout(std::chrono::seconds(30));
  server.set_payload_max_length(64 << 10);
  const auto threads = static_cast<size_t>(std::clamp(options.max_connections, 1, 1024));
  server.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };  // the library takes ownership
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    answer(request, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  const std::string where = options.address + ":" + std::to_string(options.port);
  if (options.port < 0 || options.port > 65535)
    throw Error(ErrorKind::usage, "port " + std::to_string(options.port) + " must be 0 to 65535");
  if (options.port == 0) {
    port = server.bind_to_any_port(options.address);
  } else {
    port = server.bind_to_port(options.address, options.port) ? options.port : -1;
  }
  if (port <= 0) {
    throw Error(
        ErrorKind::fetch, "the mirror cannot listen there: the port is taken, or the address is not this machine's",
        printable(where), "choose another port (0 = any free one), or stop what listens there (`ss -ltnp` shows it)");
  }
}

void Mirror::State::log(const httplib::Request& request, const std::string& range, int status) {
  if (options.quiet && !log_file) return;
  const std::string line = request.method + " " + printable(request.target.substr(0, 2000)) + " " + range + " " +
                           std::to_string(status) + "\n";
  // One write a line, so that lines of several threads and processes do not mix.
  if (write(log_file ? log_file.get() : STDERR_FILENO, line.data(), line.size()) < 0) return;
}

namespace {

void refuse(httplib::Response& response, int status, const std::string& code, const std::string& message) {
  response.status = status;
  response.set_header("X-Error-Message", printable(message, 300));
  if (!code.empty()) response.set_header("X-Error-Code", code);
  response.set_content(nlohmann::json({{"error", printable(message, 300)}}).dump() + "\n", "application/json");
}

}  // namespace

void Mirror::State::answer(const httplib::Request& request, httplib::Response& response) {
  if (request.method != "GET" && request.method != "HEAD") {
    response.set_header("Allow", "GET, HEAD");
    response.set_header("Connection", "close");
    refuse(response, 405, "", "a mirror only gives out");
    return log(request, "-", 405);
  }
  const MirrorRequest wanted = parse_mirror_request(request.target);
  if (wanted.kind == MirrorRequest::Kind::index) {
    nlohmann::json names = nlohmann::json::array();
    {
      std::lock_guard lock(mutex);
      for (const auto& [name, repo] : repos) names.push_back(name);
    }
    response.set_content(nlohmann::json({{"repos", names}}).dump() + "\n", "application/json");
    return log(request, "-", 200);
  }
  const auto repo = wanted.kind == MirrorRequest::Kind::unknown ? nullptr : this->repo(wanted.repo);
  if (!repo) {
    refuse(response, 404, "RepoNotFound", "no such repository in this mirror");
    return log(request, "-", 404);
  }
  const ServedRepo::Answer found = repo->find(wanted.revision, kPatience);
  if (found.state == ServedRepo::State::no_revision) {
    refuse(response, 404, "RevisionNotFound", found.message);
    return log(request, "-", 404);
  }
  if (found.state == ServedRepo::State::hashing) {
    response.set_header("Retry-After", "2");
    refuse(response, 503, "", found.message);
    return log(request, "-", 503);
  }
  response.set_header("X-Repo-Commit", found.listing->commit);
  response.status = 200;
  switch (wanted.kind) {
    case MirrorRequest::Kind::info:
      answer_info(wanted.repo, *found.listing, response);
      return log(request, "-", response.status);
    case MirrorRequest::Kind::tree:
      answer_tree(wanted, *found.listing, response);
      return log(request, "-", response.status);
    default:
      break;
  }
  const auto file = found.listing->files.find(wanted.path);
  if (file == found.listing->files.end()) {
    refuse(response, 404, "EntryNotFound", "no such file in this revision");
    return log(request, "-", 404);
  }
  answer_file(request, file->second, response);
}

void Mirror::State::answer_info(const std::string& name, const Listing& listing, httplib::Response& response) const {
  nlohmann::json siblings = nlohmann::json::array();
  for (const auto& [path, served] : listing.files) siblings.push_back({{"rfilename", path}});
  const nlohmann::json info = {{"id", name}, {"sha", listing.commit}, {"private", false}, {"siblings", siblings}};
  response.set_content(info.dump(), "application/json");
}

void Mirror::State::answer_tree(const MirrorRequest& wanted, const Listing& listing,
                                httplib::Response& response) const {
  nlohmann::json entries = nlohmann::json::array();
  const int64_t limit = std::clamp<int64_t>(wanted.limit, 1, kFilesPerPage);
  int64_t index = 0;
  for (const auto& [path, served] : listing.files) {
    if (index >= wanted.cursor && index < wanted.cursor + limit) {
      const HubFile& file = served.file;
      nlohmann::json entry = {{"type", "file"}, {"path", path}, {"size", file.size}, {"oid", file.git_sha1}};
      if (!file.sha256.empty()) {
        entry["lfs"] = {{"oid", file.sha256}, {"size", file.size}};
        entry["oid"] = file.sha256.substr(0, 40);  // the hub has the pointer file's hash here, which nobody can use
      }
      entries.push_back(std::move(entry));
    }
    ++index;
  }
  if (wanted.cursor + limit < index) {
    response.set_header("Link", "</api/models/" + percent_encode(wanted.repo, true) + "/tree/" +
                                    percent_encode(wanted.revision, false) +
                                    "?recursive=true&limit=" + std::to_string(limit) +
                                    "&cursor=" + std::to_string(wanted.cursor + limit) + ">; rel=\"next\"");
  }
  response.set_content(entries.dump(), "application/json");
}

void Mirror::State::answer_file(const httplib::Request& request, const ServedFile& served,
                                httplib::Response& response) {
  auto file = std::make_shared<FileDescriptor>(::open(served.place.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!*file || stamp_of(file->get()) != served.stamp) {
    response.set_header("Retry-After", "1");
    refuse(response, 503, "", "the file is being changed");
    return log(request, "-", 503);
  }
  const HubFile& info = served.file;
  response.set_header("ETag", "\"" + info.etag() + "\"");
  response.set_header("Accept-Ranges", "bytes");
  if (!info.sha256.empty()) {
    response.set_header("X-Linked-Etag", "\"" + info.sha256 + "\"");
    response.set_header("X-Linked-Size", std::to_string(info.size));
  }
  ByteRange range{0, info.size - 1};
  std::string logged = "-";
  if (const std::string header = request.get_header_value("Range"); !header.empty()) {
    const auto asked = parse_byte_range(header, info.size);
    if (!asked) {
      response.set_header("Content-Range", "bytes */" + std::to_string(info.size));
      refuse(response, 416, "", "that range is not in the file");
      return log(request, "-", 416);
    }
    range = *asked;
    response.status = 206;
    logged = std::to_string(range.first) + "-" + std::to_string(range.last);
    response.set_header("Content-Range", "bytes " + logged + "/" + std::to_string(info.size));
  }
  log(request, logged, response.status);
  if (info.size == 0) return response.set_content("", "application/octet-stream");

  // A provider without a length, and our own Content-Length: the library would apply the Range header itself, and
  // version 0.11 does not check it against the size.
  const int64_t length = range.last - range.first + 1;
  response.set_header("Content-Length", std::to_string(length));
  response.set_content_provider("application/octet-stream", [this, file, range, length, place = served.place](
                                                                size_t sent, httplib::DataSink& sink) {
    const int64_t left = length - static_cast<int64_t>(sent);
    if (left <= 0) {
      sink.done();
      return true;
    }
    std::string piece(static_cast<size_t>(std::min(limiter.piece(), left)), '\0');
    try {
      read_exactly(*file, range.first + static_cast<int64_t>(sent), std::as_writable_bytes(std::span(piece)), place,
                   ErrorKind::fetch);
    } catch (const Error& error) {
      log_warn("a file cannot be served any more", {{"path", place.string()}, {"why", error.what()}});
      return false;  // breaks the connection: the client sees that the body is short
    }
    limiter.wait_for(static_cast<int64_t>(piece.size()), stopping);
    return !stopping && sink.write(piece.data(), piece.size());
  });
}

Mirror::Mirror(MirrorOptions options) : state_(std::make_unique<State>(std::move(options))) {
  std::error_code failed;
  if (!fs::is_directory(state_->options.root, failed)) {
    throw Error(ErrorKind::fetch, "no such folder to serve", printable(state_->options.root.string()),
                "name a folder of packs, or a Hugging Face cache");
  }
  state_->find_repos();
  if (state_->repos.empty()) {
    throw Error(ErrorKind::fetch, "the folder holds no packs", printable(state_->options.root.string()),
                "put each pack into a folder of its own, NAME/ or ORG/NAME/");
  }
  if (!state_->options.log.empty())
    state_->log_file = open_cache_file(state_->options.log, O_WRONLY | O_CREAT | O_APPEND);
  state_->bind();
}

Mirror::~Mirror() {
  stop();
}

int Mirror::port() const {
  return state_->port;
}

std::string Mirror::endpoint() const {
  const std::string& address = state_->options.address;
  std::string host = address == "0.0.0.0" ? "127.0.0.1" : address == "::" ? "::1" : address;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return "http://" + host + ":" + std::to_string(state_->port);
}

int64_t Mirror::num_repos() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int64_t>(state_->repos.size());
}

void Mirror::serve() {
  state_->serving = true;
  if (!state_->stopping) state_->server.listen_after_bind();
  state_->serving = false;
}

void Mirror::stop() {
  state_->stopping = true;
  // The library ignores a stop that comes before its loop runs.
  while (state_->serving && !state_->server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  state_->server.stop();
}

void run_mirror(const MirrorOptions& options, const std::atomic<bool>& stop) {
  Mirror mirror(options);
  const nlohmann::ordered_json line = {
      {"schema_version", 1}, {"endpoint", mirror.endpoint()}, {"port", mirror.port()}, {"repos", mirror.num_repos()}};
  std::cout << line.dump() << std::endl;
  std::atomic<bool> ended{false};
  std::jthread watcher([&] {
    while (!stop && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    mirror.stop();
  });
  mirror.serve();
  ended = true;
  if (!stop) throw Error(ErrorKind::fetch, "the mirror stopped: accepting connections failed", mirror.endpoint());
}

}  // namespace tandem
