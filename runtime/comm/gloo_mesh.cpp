#include "runtime/comm/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

namespace tandem::comm {
namespace {

/// Gloo's wish for a key-value store, without a server thread: connecting takes all ranks through the same puts (host
/// name, then addresses), so each put is a round in which all ranks merge what they have, and questions find the answer
/// at home.
class MeetingStore : public gloo::rendezvous::Store {
 public:
  MeetingStore(Meeting& meeting, int rank, Milliseconds timeout) : meeting_(meeting), rank_(rank), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    entries_[key] = data;
    entries_ = merge_entries(meeting_, rank_, entries_, timeout_);
  }

  std::vector<char> get(const std::string& key) override {
    wait({key});
    return entries_.at(key);
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys)
      if (!entries_.contains(key)) throw Error(ErrorKind::link, "a rank did not send `" + key + "` while connecting");
  }

  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  Meeting& meeting_;
  const int rank_;
  const Milliseconds timeout_;
  Entries entries_;
};

/// Gloo of 2022 takes the store by reference, later ones by shared pointer.
template <typename Context, typename Device>
void connect_all(Context& context, const std::shared_ptr<MeetingStore>& store, Device& device) {
  if constexpr (requires { context.connectFullMesh(*store, device); })
    context.connectFullMesh(*store, device);
  else
    context.connectFullMesh(store, device);
}

constexpr uint64_t kSlot = 1;

}  // namespace

/// Lets abort() reach a buffer while it is waited for.
class GlooMesh::Waiting {
 public:
  Waiting(GlooMesh& mesh, Buffer* buffer) : mesh_(mesh), buffer_(buffer) {
    const std::lock_guard lock(mesh_.mutex_);
    if (mesh_.aborted_) throw Error(ErrorKind::link, "exchanges between ranks were ended");
    mesh_.waited_for_.insert(buffer_);
  }
  ~Waiting() {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.waited_for_.erase(buffer_);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  GlooMesh& mesh_;
  Buffer* buffer_;
};

GlooMesh::GlooMesh(Meeting& meeting, int rank, int world_size, Milliseconds connect_timeout)
    : rank_(rank), world_size_(world_size) {
  try {
    gloo::transport::tcp::attr attributes(meeting.local_address.c_str());
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    const auto context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
    context->setTimeout(connect_timeout);
    const auto store = std::make_shared<MeetingStore>(meeting, rank, connect_timeout);
    connect_all(*context, store, device);
    context_ = context;
  } catch (const gloo::Exception& e) {
    throw Error(ErrorKind::link, std::string("the ranks could not connect: ") + e.what(),
                "rank " + std::to_string(rank) + " at " + meeting.local_address,
                "let the ranks' nodes reach each other on all TCP ports of this network");
  }
}

GlooMesh::~GlooMesh() = default;

void GlooMesh::exchange(const Exchange& what, Milliseconds timeout) {
  const bool sends = what.only_sender < 0 || what.only_sender == rank_;
  const int senders = what.only_sender < 0 ? world_size_ - 1 : (sends ? 0 : 1);
  const auto bytes = static_cast<size_t>(what.bytes);
  const size_t blocks = what.only_sender < 0 ? static_cast<size_t>(world_size_) : 1;
  try {
    std::unique_ptr<Buffer> out, in;
    if (senders > 0) {
      in = context_->createUnboundBuffer(what.receive, bytes * blocks);
      for (int rank = 0; rank < world_size_; ++rank)
        if (what.only_sender < 0 && rank != rank_) in->recv(rank, kSlot, static_cast<size_t>(rank) * bytes, bytes);
      if (what.only_sender >= 0) in->recv(what.only_sender, kSlot, 0, bytes);
    }
    if (sends) {
      // Gloo takes no const pointers, also for what it only reads.
      out = context_->createUnboundBuffer(const_cast<void*>(what.send), bytes);
      for (int step = 1; step < world_size_; ++step) out->send((rank_ + step) % world_size_, kSlot, 0, bytes);
    }
    bool whole = true;
    if (in) {
      const Waiting waiting(*this, in.get());
      for (int i = 0; whole && i < senders; ++i) whole = in->waitRecv(nullptr, timeout);
    }
    if (out && whole) {
      const Waiting waiting(*this, out.get());
      for (int i = 1; whole && i < world_size_; ++i) whole = out->waitSend(nullptr, timeout);
    }
    if (!whole) throw Error(ErrorKind::link, "exchanges between ranks were ended");
    bytes_exchanged_ += what.bytes * (senders + (sends ? world_size_ - 1 : 0));
  } catch (const gloo::Exception& e) {
    throw Error(ErrorKind::link, std::string("an exchange between ranks failed: ") + e.what());
  }
}

void GlooMesh::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (Buffer* buffer : waited_for_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

}  // namespace tandem::comm
