#include "runtime/comm/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/common/log.h"

namespace tandem::comm {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
}

std::string seconds_text(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

PeerWatch::PeerWatch(int rank, int world_size, std::map<int, ControlLink> links, std::chrono::milliseconds peer_timeout,
                     Callbacks callbacks)
    : rank_(rank),
      world_size_(world_size),
      peer_timeout_(peer_timeout),
      callbacks_(std::move(callbacks)),
      exceptions_at_start_(std::uncaught_exceptions()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(ErrorKind::internal, "no event descriptor for watching the other ranks");
  for (auto& [other, link] : links) peers_.emplace(other, Peer{std::move(link), Clock::now()});
  thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake();
  thread_.join();
  if (stop_announced_) broadcast(FrameType::stop, "", std::chrono::milliseconds(500));  // said in the last moment
  if (std::uncaught_exceptions() <= exceptions_at_start_ && !lost_)
    broadcast(FrameType::leave, "", std::chrono::milliseconds(500));
}

void PeerWatch::announce_stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_announced_ = true;
    stopping_ = true;
  }
  wake();
}

std::vector<RankStatus> PeerWatch::ranks() const {
  const std::lock_guard lock(mutex_);
  std::vector<RankStatus> all;
  for (int rank = 0; rank < world_size_; ++rank) {
    RankStatus status{rank, true, 0};
    if (rank == rank_) status.bytes_exchanged = callbacks_.bytes_exchanged();
    if (const auto found = peers_.find(rank); found != peers_.end()) {
      const bool silent = Clock::now() - found->second.last_heard > peer_timeout_;
      status.alive = !found->second.gone && !found->second.link.closed() && !silent;
      status.bytes_exchanged = found->second.bytes_exchanged;
    } else if (rank != rank_ && rank_ != 0) {
      continue;  // only rank 0 hears of every rank
    }
    all.push_back(status);
  }
  return all;
}

std::optional<Error> PeerWatch::lost(std::chrono::milliseconds patience) const {
  std::unique_lock lock(mutex_);
  lost_changed_.wait_for(lock, patience, [&] { return lost_.has_value(); });
  return lost_;
}

void PeerWatch::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(wake_.get(), &one, sizeof one);
}

void PeerWatch::run() {
  const auto interval = std::clamp(peer_timeout_ / 8, std::chrono::milliseconds(50), std::chrono::milliseconds(1000));
  auto next_beat = Clock::now();
  while (true) {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    for (const auto& [rank, peer] : peers_)
      if (!peer.gone) entries.push_back({peer.link.socket().get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_beat - Clock::now()).count();
    poll(entries.data(), entries.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &drained, sizeof drained);

    bool send_stop = false;
    {
      const std::lock_guard lock(mutex_);
      if (ending_ || lost_) break;
      send_stop = std::exchange(stop_announced_, false);
    }
    if (send_stop) broadcast(FrameType::stop, "", std::chrono::milliseconds(500));

    // Read first, judge silence afterwards: this process itself may have been the one that stood still.
    for (auto& [rank, peer] : peers_) {
      if (peer.gone) continue;
      listen(rank, peer);
      if (lost(std::chrono::milliseconds(0))) return;
    }
    if (Clock::now() >= next_beat) {
      const int64_t bytes = callbacks_.bytes_exchanged();
      std::string payload(sizeof bytes, '\0');
      std::memcpy(payload.data(), &bytes, sizeof bytes);
      broadcast(FrameType::beat, payload, std::chrono::milliseconds(0));
      next_beat = Clock::now() + interval;
    }
  }
}

void PeerWatch::listen(int rank, Peer& peer) {
  std::vector<Frame> frames;
  bool open;
  {
    const std::lock_guard lock(mutex_);
    peer.link.receive();
    while (auto frame = peer.link.next()) frames.push_back(std::move(*frame));
    if (!frames.empty()) peer.last_heard = Clock::now();
    open = !peer.link.closed();
  }
  for (const Frame& frame : frames) {
    handle(rank, peer, frame);
    if (lost(std::chrono::milliseconds(0))) return;
  }
  std::unique_lock lock(mutex_);
  if (peer.gone) return;
  const auto silence = Clock::now() - peer.last_heard;
  if (!open && stopping_) {
    peer.gone = true;
  } else if (!open) {
    lock.unlock();
    declare_lost(rank, "closed its connection");
  } else if (silence > peer_timeout_) {
    lock.unlock();
    declare_lost(rank, "has been silent for " + seconds_text(silence));
  }
}

void PeerWatch::handle(int rank, Peer& peer, const Frame& frame) {
  switch (frame.type) {
    case FrameType::beat: {
      const std::lock_guard lock(mutex_);
      if (frame.payload.size() == sizeof peer.bytes_exchanged)
        std::memcpy(&peer.bytes_exchanged, frame.payload.data(), sizeof peer.bytes_exchanged);
      break;
    }
    case FrameType::stop: {
      bool first;
      {
        const std::lock_guard lock(mutex_);
        first = !std::exchange(stopping_, true);
      }
      if (rank_ == 0) broadcast(FrameType::stop, "", std::chrono::milliseconds(500));
      if (first && callbacks_.on_stop) callbacks_.on_stop();
      break;
    }
    case FrameType::leave: {
      const std::lock_guard lock(mutex_);
      peer.gone = true;
      break;
    }
    case FrameType::lost: {
      const json told = json::parse(frame.payload, nullptr, false);
      if (told.is_object() && told.contains("rank") && told["rank"].is_number_integer() && told.contains("how") &&
          told["how"].is_string())
        declare_lost(told["rank"].get<int>(), told["how"].get<std::string>());
      else
        declare_lost(rank, "sent a message that cannot be read");
      break;
    }
    default:
      declare_lost(rank, "sent a message that does not belong here");
  }
}

void PeerWatch::declare_lost(int rank, const std::string& how) {
  const Error error(ErrorKind::peer_lost, rank_name(rank) + " was lost: it " + printable(how, 200), "",
                    "see the log of " + rank_name(rank) + " on its node, then start all ranks again");
  log_error("peer lost", {{"peer", rank}, {"how", how}});
  if (rank_ == 0)
    broadcast(FrameType::lost, json{{"rank", rank}, {"how", how}}.dump(-1, ' ', false, json::error_handler_t::replace),
              std::chrono::milliseconds(200));
  {
    const std::lock_guard lock(mutex_);
    lost_ = error;
  }
  lost_changed_.notify_all();
  if (callbacks_.on_lost) callbacks_.on_lost(error);
}

void PeerWatch::broadcast(FrameType type, const std::string& payload, std::chrono::milliseconds patience) {
  for (auto& [rank, peer] : peers_)
    if (!peer.gone && !peer.link.closed()) peer.link.send(type, payload, patience);
}

}  // namespace tandem::comm
