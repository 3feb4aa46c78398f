#include "runtime/comm/communicator.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "runtime/comm/gloo_mesh.h"
#include "runtime/comm/peer_watch.h"
#include "runtime/comm/rendezvous.h"
#include "runtime/common/log.h"

namespace tandem {
namespace {

using comm::GlooMesh;
using comm::PeerWatch;

constexpr std::chrono::milliseconds kConnectTimeout(60'000);

class LocalCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  void sum_in_rank_order(float*, int64_t) override {}
  void all_gather(const void* send, void* receive, int64_t bytes) override {
    std::memcpy(receive, send, static_cast<size_t>(bytes));
  }
  void broadcast(int, void*, int64_t) override {}
  void barrier(std::chrono::milliseconds) override {}
  int64_t bytes_exchanged() const override { return 0; }
  std::vector<RankStatus> ranks() const override { return {RankStatus{}}; }
  void announce_stop() override {}
  void abort() override {}
};

class GroupCommunicator final : public Communicator {
 public:
  explicit GroupCommunicator(const GroupOptions& options)
      : rank_(options.rank), world_size_(options.world_size), exchange_timeout_(options.exchange_timeout) {
    comm::Meeting meeting = comm::meet(options);
    mesh_ = std::make_unique<GlooMesh>(meeting, rank_, world_size_, kConnectTimeout);
    PeerWatch::Callbacks callbacks;
    callbacks.bytes_exchanged = [this] { return mesh_->bytes_exchanged(); };
    callbacks.on_lost = [this, told = options.on_peer_lost](const Error& error) {
      if (told) told(error);
      mesh_->abort();
    };
    callbacks.on_stop = options.on_stop;
    watch_ = std::make_unique<PeerWatch>(rank_, world_size_, std::move(meeting.links), options.peer_timeout, callbacks);
    log_info("ranks connected", {{"world_size", world_size_}, {"address", meeting.local_address}});
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  void sum_in_rank_order(float* data, int64_t n) override {
    if (n == 0) return;
    parts_.resize(std::max(parts_.size(), static_cast<size_t>(n * world_size_)));
    exchange({data, parts_.data(), n * static_cast<int64_t>(sizeof(float))}, exchange_timeout_);
    float* own = parts_.data() + rank_ * n;
    std::copy_n(data, n, own);
    std::copy_n(parts_.data(), n, data);
    for (int rank = 1; rank < world_size_; ++rank) {
      const float* part = parts_.data() + rank * n;
      for (int64_t i = 0; i < n; ++i) data[i] += part[i];
    }
  }

  void all_gather(const void* send, void* receive, int64_t bytes) override {
    if (bytes == 0) return;
    exchange({send, receive, bytes}, exchange_timeout_);
    std::memcpy(static_cast<char*>(receive) + rank_ * bytes, send, static_cast<size_t>(bytes));
  }

  void broadcast(int root, void* data, int64_t bytes) override {
    if (bytes == 0) return;
    exchange({data, data, bytes, root}, exchange_timeout_);
  }

  void barrier(std::chrono::milliseconds timeout) override {
    const char mine = 1;
    std::vector<char> all(static_cast<size_t>(world_size_));
    exchange({&mine, all.data(), 1}, timeout);
  }

  int64_t bytes_exchanged() const override { return mesh_->bytes_exchanged(); }
  std::vector<RankStatus> ranks() const override { return watch_->ranks(); }
  void announce_stop() override { watch_->announce_stop(); }
  void abort() override { mesh_->abort(); }

 private:
  void exchange(const GlooMesh::Exchange& what, std::chrono::milliseconds timeout) {
    try {
      mesh_->exchange(what, timeout);
    } catch (const Error& error) {
      // A dead peer breaks its data connections too, often a moment before the watch has read why.
      if (const auto lost = watch_->lost(std::chrono::milliseconds(1000))) throw *lost;
      throw Error(ErrorKind::peer_lost, error.what(), "rank " + std::to_string(rank_), "start all ranks again");
    }
  }

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds exchange_timeout_;
  std::unique_ptr<GlooMesh> mesh_;
  std::unique_ptr<PeerWatch> watch_;
  std::vector<float> parts_;  // (world_size, n): what every rank adds, in order
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator() {
  return std::make_unique<LocalCommunicator>();
}

std::unique_ptr<Communicator> join_group(const GroupOptions& options) {
  if (options.world_size < 1 || options.world_size > 256)
    throw Error(ErrorKind::usage, "a world of " + std::to_string(options.world_size) + " ranks is not possible",
                "--world-size", "use 1 to 256");
  if (options.rank < 0 || options.rank >= options.world_size)
    throw Error(
        ErrorKind::usage,
        "rank " + std::to_string(options.rank) + " is not one of " + std::to_string(options.world_size) + " ranks",
        "--rank", "ranks count from 0 to " + std::to_string(options.world_size - 1));
  if (options.world_size == 1) return make_local_communicator();
  // Gloo writes to connections whose other end may just have died: that must be an error, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  return std::make_unique<GroupCommunicator>(options);
}

}  // namespace tandem
