#include "orchestrator/fetch/download.h"

#include <algorithm>
#include <charconv>
#include <thread>
#include <utility>

#include "orchestrator/fetch/url.h"
#include "runtime/common/log.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

using std::chrono::steady_clock;

constexpr size_t kWriteBuffer = 1 << 20;
constexpr auto kTick = std::chrono::milliseconds(100);

/// "bytes FIRST-LAST/TOTAL"
struct ContentRange {
  int64_t first = -1;
  int64_t last = -1;
  int64_t total = -1;
};

std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  const auto take = [&](std::string_view prefix, int64_t* value) {
    if (text.substr(0, prefix.size()) != prefix) return false;
    text.remove_prefix(prefix.size());
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *value);
    text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
    return parsed.ec == std::errc() && *value >= 0;
  };
  if (!take("bytes ", &range.first) || !take("-", &range.last) || !take("/", &range.total) || !text.empty()) {
    return std::nullopt;
  }
  return range;
}

bool is_hash(std::string_view etag) {
  return (etag.size() == 40 || etag.size() == 64) &&
         etag.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Error interrupted() {
  return Error(ErrorKind::interrupted, "fetch was interrupted", "", "run it again: it continues where it was");
}

}  // namespace

struct Downloader::Transfer {
  Transfer(const RepoFolder& folder, const HubFile& file, const DownloadJob& job, Url url)
      : part(folder, file, job.range_bytes, job.ref), hub_url(std::move(url)) {}

  PartialFile part;
  const Url hub_url;
  int wrong_hashes = 0;  // by the one thread that publishes
  std::mutex mutex;
  std::optional<Url> direct;  // where the hub redirects to: spares it a request per range
};

/// What came of one request.
struct Downloader::Attempt {
  HubAnswer answer;
  int64_t received = 0;
  bool ignores_range = false;  // 200 with the whole file, where a part was asked for
  bool direct_expired = false;
  std::string odd;  // how the answer breaks the protocol, "" when it does not
};

Downloader::Downloader(const RepoFolder& folder, DownloadJob job, const std::atomic<bool>* cancel)
    : job_(std::move(job)), watch_(job_.hub.retry, cancel) {
  for (const HubFile& file : job_.files) {
    Url url = parse_url(HubClient::file_url(job_.hub.endpoint, job_.repo, job_.commit, file.path));
    transfers_.push_back(std::make_unique<Transfer>(folder, file, job_, std::move(url)));
  }
}

Downloader::~Downloader() = default;

int64_t Downloader::missing_disk_bytes() const {
  int64_t bytes = 0;
  for (const auto& transfer : transfers_) bytes += transfer->part.missing_disk_bytes();
  return bytes;
}

int64_t Downloader::resumed_bytes() const {
  int64_t bytes = 0;
  for (const auto& transfer : transfers_) bytes += transfer->part.resumed_bytes();
  return bytes;
}

void Downloader::run(const std::function<void(const DownloadStatus&)>& on_tick) {
  int64_t pieces = 0;
  for (const auto& transfer : transfers_) pieces += std::max<int64_t>(1, transfer->part.num_ranges());
  running_ = static_cast<int>(std::min<int64_t>(std::clamp(job_.parallel, 1, 64), pieces));

  std::vector<std::jthread> threads;
  // Also when on_tick throws: the threads must be told to end before they are joined.
  struct StopAtExit {
    Downloader* self;
    ~StopAtExit() {
      self->stopped_ = true;
      self->watch_.cancel_all();
      self->changed_.notify_all();
    }
  } stop_at_exit{this};
  for (int i = running_; i > 0; --i) threads.emplace_back([this] { work(); });

  std::unique_lock lock(mutex_);
  while (running_ > 0) {
    changed_.wait_for(lock, kTick);
    lock.unlock();
    if (watch_.cancelled()) stopped_ = true;
    if (stopped_) changed_.notify_all();
    on_tick(status());
    lock.lock();
  }
  if (failure_) std::rethrow_exception(failure_);
  if (stopped()) throw interrupted();
}

DownloadStatus Downloader::status() const {
  DownloadStatus status;
  status.network_bytes = network_bytes_;
  status.requests = requests_;
  status.retries = retries_;
  for (const auto& transfer : transfers_) {
    const PartialFile& part = transfer->part;
    status.bytes_done += part.bytes_done();
    if (part.published()) {
      ++status.files_done;
    } else if (status.file.empty()) {
      status.file = part.file().path;
      status.file_bytes_done = part.bytes_done();
      status.file_bytes_total = part.file().size;
    }
  }
  std::lock_guard lock(mutex_);
  status.message = message_;
  return status;
}

void Downloader::work() {
  try {
    HubTransport transport(job_.hub, watch_);
    while (const auto task = next_task()) {
      if (!task->claim) {
        finish_file(*task->transfer);
      } else if (task->claim->whole) {
        fetch_whole(transport, *task->transfer, *task->claim);
      } else {
        fetch_range(transport, *task->transfer, *task->claim);
      }
      changed_.notify_all();
    }
  } catch (...) {
    fail(std::current_exception());
  }
  std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

void Downloader::fail(std::exception_ptr failure) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  stopped_ = true;
  watch_.cancel_all();
  changed_.notify_all();
}

std::optional<Downloader::Task> Downloader::next_task() {
  std::unique_lock lock(mutex_);
  while (!stopped()) {
    while (first_unfinished_ < transfers_.size() && transfers_[first_unfinished_]->part.published())
      ++first_unfinished_;
    if (first_unfinished_ == transfers_.size()) return std::nullopt;
    // In order: a file that is finished early can be split early.
    for (size_t i = first_unfinished_; i < transfers_.size(); ++i) {
      PartialFile& part = transfers_[i]->part;
      if (part.published()) continue;
      if (part.waits_for_hash()) return Task{transfers_[i].get(), std::nullopt};
      if (auto claim = part.claim()) return Task{transfers_[i].get(), claim};
    }
    changed_.wait_for(lock, kTick);  // others are at the last ranges; one of them may come back
  }
  return std::nullopt;
}

void Downloader::pause() {
  std::unique_lock lock(mutex_);
  while (!stopped() && steady_clock::now() < not_before_)
    changed_.wait_until(lock, std::min(not_before_, steady_clock::now() + kTick));
}

Downloader::Attempt Downloader::request(HubTransport& transport, Transfer& transfer, int64_t begin, int64_t end,
                                        const std::function<bool(std::string_view)>& on_data) {
  Attempt attempt;
  const HubFile& file = transfer.part.file();
  const bool partial = begin > 0 || end < file.size;
  Url url = transfer.hub_url;
  bool direct = false;
  {
    std::lock_guard lock(transfer.mutex);
    if (transfer.direct) {
      url = *transfer.direct;
      direct = true;
    }
  }
  HttpConnection::Headers headers;
  if (partial) headers.emplace_back("Range", "bytes=" + std::to_string(begin) + "-" + std::to_string(end - 1));
  ++requests_;
  const auto on_headers = [&](const HttpResponse& head) {
    const std::string encoding = head.header("Content-Encoding");
    if (!encoding.empty() && encoding != "identity") {
      throw Error(ErrorKind::fetch,
                  "the server sends " + printable(file.path, 200) + " compressed (" + printable(encoding, 40) +
                      "), so its bytes are not the file's",
                  url.display(), "switch compression off in the proxy between this machine and the hub");
    }
    if (head.status == 206) {
      const std::string text = head.header("Content-Range");
      const auto range = parse_content_range(text);
      if (range && range->total != file.size) {
        throw Error(ErrorKind::fetch,
                    "the server's " + printable(file.path, 200) + " has " + std::to_string(range->total) +
                        " bytes, listed are " + std::to_string(file.size),
                    url.display(), "run it again; if it stays so, the server's copy is damaged");
      }
      if (!range || range->first != begin || range->last < begin || range->last >= end) {
        attempt.odd = "the server answers bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) + " with \"" +
                      printable(text, 100) + "\"";
      }
    } else if (partial) {
      attempt.ignores_range = head.status == 200;
      if (!attempt.ignores_range) attempt.odd = "the server answers a range with status " + std::to_string(head.status);
      return false;
    } else if (head.content_length() >= 0 && head.content_length() != file.size) {
      throw Error(ErrorKind::fetch,
                  "the server's " + printable(file.path, 200) + " has " + std::to_string(head.content_length()) +
                      " bytes, listed are " + std::to_string(file.size),
                  url.display(), "run it again; if it stays so, the server's copy is damaged");
    }
    return attempt.odd.empty();
  };
  attempt.answer = transport.get(url, headers, on_headers, [&](std::string_view data) {
    const auto wanted = static_cast<size_t>(end - begin - attempt.received);
    const bool enough = data.size() > wanted;
    data = data.substr(0, wanted);
    attempt.received += static_cast<int64_t>(data.size());
    network_bytes_ += static_cast<int64_t>(data.size());
    return on_data(data) && !enough;
  });

  const HubAnswer& answer = attempt.answer;
  if (answer.response.status >= 200 && answer.response.status < 300) {
    if (is_commit(answer.commit) && answer.commit != job_.commit) {
      throw Error(ErrorKind::fetch,
                  "the server answers with commit " + answer.commit + ", asked for was " + job_.commit,
                  answer.url.display(), "check the server named in HF_ENDPOINT: it does not keep to commits");
    }
    if (is_hash(answer.etag) && answer.etag != file.etag()) {
      throw Error(ErrorKind::fetch,
                  "the server's " + printable(file.path, 200) + " has another content than its list says: ETag " +
                      answer.etag + ", listed is " + file.etag(),
                  answer.url.display(), "run it again: it then works with a new list");
    }
    if (attempt.received > 0 && !direct && !answer.url.same_origin(transport.endpoint())) {
      std::lock_guard lock(transfer.mutex);
      transfer.direct = answer.url;
    }
    if (attempt.odd.empty() && answer.response.failure == HttpFailure::none && attempt.received < end - begin &&
        !attempt.ignores_range) {
      attempt.odd =
          "the server sent " + std::to_string(attempt.received) + " of " + std::to_string(end - begin) + " bytes";
    }
  } else if (direct && answer.response.status >= 400 && answer.response.status < 500 && answer.response.status != 429) {
    // Signed addresses are good for a while only; the hub gives out a new one.
    attempt.direct_expired = true;
    std::lock_guard lock(transfer.mutex);
    transfer.direct.reset();
  }
  return attempt;
}

/// After an attempt that did not bring everything: waits as the policy says, or throws what ends the download.
/// False when the download was stopped meanwhile.
bool Downloader::wait_or_fail(const Attempt& attempt, Retrier& retrier, const Transfer& transfer) {
  if (stopped()) return false;
  if (attempt.direct_expired) return true;
  const HubAnswer& answer = attempt.answer;
  const bool temporary = !attempt.odd.empty() || is_temporary(answer);
  const auto wait = temporary ? retrier.next_wait(answer) : std::nullopt;
  if (!wait && !attempt.odd.empty()) {
    throw Error(ErrorKind::fetch, attempt.odd + ", " + std::to_string(retrier.tries()) + " times in a row",
                answer.url.display(), "use another server in HF_ENDPOINT, or look at the proxy in between");
  }
  if (!wait) throw hub_error(answer, job_.hub, {job_.repo, job_.commit, transfer.part.file().path}, retrier.tries());

  ++retries_;
  const std::string why = attempt.odd.empty() ? describe_failure(answer, job_.hub.retry) : attempt.odd;
  log_debug("a range is tried again", {{"file", transfer.part.file().path}, {"why", why}, {"wait_ms", wait->count()}});
  std::unique_lock lock(mutex_);
  message_ = why + "; trying again in " + format_duration(*wait);
  const auto until = steady_clock::now() + *wait;
  // Too many requests are a matter of all connections, a broken one is its own.
  if (answer.response.status == 429) not_before_ = std::max(not_before_, until);
  while (!stopped() && steady_clock::now() < until)
    changed_.wait_until(lock, std::min(until, steady_clock::now() + kTick));
  return !stopped();
}

void Downloader::fetch_range(HubTransport& transport, Transfer& transfer, const PartialFile::Claim& claim) {
  PartialFile& part = transfer.part;
  Retrier retrier(job_.hub.retry);
  std::string buffer;
  int64_t offset = claim.begin;
  const auto flush = [&] {
    part.write(offset, buffer);
    offset += static_cast<int64_t>(buffer.size());
    buffer.clear();
  };
  while (true) {
    pause();
    if (stopped()) return;
    const Attempt attempt = request(transport, transfer, offset, claim.end, [&](std::string_view data) {
      buffer += data;
      if (buffer.size() >= kWriteBuffer) flush();
      return true;
    });
    flush();
    if (attempt.received > 0) {
      retrier.reset();
      std::lock_guard lock(mutex_);
      message_.clear();
    }
    if (offset == claim.end) break;
    if (attempt.ignores_range) {
      log_debug("the server does not do ranges: one stream instead", {{"file", part.file().path}});
      part.use_one_stream();
      part.uncount(offset - claim.begin);
      part.release(claim);
      return;
    }
    if (!wait_or_fail(attempt, retrier, transfer)) return;
  }
  part.finish(claim.index);
  finish_file(transfer);
}

void Downloader::fetch_whole(HubTransport& transport, Transfer& transfer, const PartialFile::Claim& claim) {
  PartialFile& part = transfer.part;
  Retrier retrier(job_.hub.retry);
  while (true) {
    pause();
    if (stopped()) return;
    int64_t position = 0;    // up to here all is written, or was there before
    int64_t unfinished = 0;  // bytes written to the range at `position`
    bool progress = false;
    std::string buffer;  // what follows `position`
    const auto flush = [&] {
      if (!part.is_done(position / part.range_bytes())) {
        part.write(position, buffer);
        unfinished += static_cast<int64_t>(buffer.size());
      }
      position += static_cast<int64_t>(buffer.size());
      buffer.clear();
    };
    const Attempt attempt = request(transport, transfer, 0, claim.end, [&](std::string_view data) {
      while (!data.empty()) {
        const int64_t index = position / part.range_bytes();
        const int64_t range_end = part.range(index).end;
        const auto room = static_cast<size_t>(range_end - position) - buffer.size();
        buffer += data.substr(0, room);
        data.remove_prefix(std::min(room, data.size()));
        if (buffer.size() >= kWriteBuffer || position + static_cast<int64_t>(buffer.size()) == range_end) flush();
        if (position == range_end && !part.is_done(index)) {
          part.finish(index);
          progress = true;
          unfinished = 0;
        }
      }
      return true;
    });
    if (position == claim.end) break;
    part.uncount(unfinished);
    if (progress) retrier.reset();
    if (!wait_or_fail(attempt, retrier, transfer)) return;
  }
  part.release(claim);
  finish_file(transfer);
}

/// Hashes on; when that was the last of the file, checks and publishes it.
void Downloader::finish_file(Transfer& transfer) {
  PartialFile& part = transfer.part;
  if (!part.advance_hash()) return;
  const std::string mismatch = part.publish();
  if (mismatch.empty()) return;

  // Which byte is wrong nobody can tell, so all of them go. Once this may be a fault on the way; twice it is not.
  if (++transfer.wrong_hashes == 1) {
    log_warn("content hash is wrong: the file is downloaded again", {{"file", part.file().path}, {"why", mismatch}});
    ++retries_;
    part.restart();
    return;
  }
  part.discard();
  throw Error(
      ErrorKind::fetch,
      "the content of " + printable(part.file().path, 200) + " is wrong, also when downloaded again: " + mismatch,
      transfer.hub_url.display(),
      "the server's copy is damaged: use another server in HF_ENDPOINT, or tell the publisher");
}

}  // namespace tandem
