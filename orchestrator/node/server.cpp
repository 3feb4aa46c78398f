#include "orchestrator/node/server.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "orchestrator/node/protocol.h"
#include "runtime/common/error.h"

namespace tandem::node {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kBeat{5};

class Server {
 public:
  Server(int out_fd, const Methods& methods) : out_fd_(out_fd), methods_(methods) {}

  ~Server() {
    for (auto& [id, worker] : workers_) worker.thread.request_stop();
    workers_.clear();  // joins
  }

  void send(const json& line) {
    const std::string text = format_line(line);
    const std::lock_guard lock(write_mutex_);
    std::string_view rest = text;
    while (!rest.empty() && !gone_) {
      const ssize_t written = write(out_fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0)
        gone_ = true;  // the end of our input says the same to the main loop
      else
        rest.remove_prefix(static_cast<size_t>(written));
    }
  }

  void on_line(const std::string& line) {
    reap();
    const auto message = parse_line(line);
    if (!message || !message->contains("id") || !(*message)["id"].is_number_integer()) {
      send({{"id", nullptr},
            {"error", error_to_json(Error(ErrorKind::node, "not a request: " + printable(line, 200)))}});
      return;
    }
    const auto id = (*message)["id"].get<int64_t>();
    if (message->contains("cancel")) {
      if (const auto worker = workers_.find(id); worker != workers_.end()) worker->second.thread.request_stop();
      return;
    }
    try {
      begin(id, *message);
    } catch (const Error& e) {
      send({{"id", id}, {"error", error_to_json(e)}});
    }
  }

  bool gone() const { return gone_; }

 private:
  struct Worker {
    std::shared_ptr<std::atomic<bool>> done;
    std::jthread thread;
  };

  void begin(int64_t id, const json& message) {
    if (workers_.contains(id)) throw Error(ErrorKind::node, "request id " + std::to_string(id) + " is in use");
    if (static_cast<int>(workers_.size()) >= kMaxRequests)
      throw Error(ErrorKind::node, "more than " + std::to_string(kMaxRequests) + " requests at once");
    const auto name = message.find("method");
    if (name == message.end() || !name->is_string()) throw Error(ErrorKind::node, "a request without a method");
    const auto method = methods_.find(name->get<std::string>());
    if (method == methods_.end())
      throw Error(ErrorKind::node, "this node knows no method `" + printable(name->get<std::string>(), 64) + "`");
    json params = message.value("params", json::object());
    if (!params.is_object()) throw Error(ErrorKind::node, "`params` is no object");
    auto done = std::make_shared<std::atomic<bool>>(false);
    workers_[id] = {done, std::jthread([this, id, done, run = &method->second,
                                        params = std::move(params)](const std::stop_token& stop) {
                      answer(id, *run, params, stop);
                      *done = true;
                    })};
  }

  void answer(int64_t id, const Method& run, const json& params, const std::stop_token& stop) {
    const Request request{params, [this, id](const json& event) { send({{"id", id}, {"event", event}}); }, stop};
    try {
      send({{"id", id}, {"result", run(request)}});
    } catch (const Error& e) {
      send({{"id", id}, {"error", error_to_json(e)}});
    } catch (const json::exception& e) {
      send({{"id", id}, {"error", error_to_json(Error(ErrorKind::node, std::string("bad parameters: ") + e.what()))}});
    } catch (const std::exception& e) {
      send({{"id", id}, {"error", error_to_json(Error(ErrorKind::internal, e.what()))}});
    }
  }

  void reap() {
    std::erase_if(workers_, [](const auto& entry) { return entry.second.done->load(); });
  }

  int out_fd_;
  const Methods& methods_;
  std::mutex write_mutex_;
  std::atomic<bool> gone_ = false;
  std::map<int64_t, Worker> workers_;
};

}  // namespace

int serve(int in_fd, int out_fd, const Methods& methods) {
  signal(SIGPIPE, SIG_IGN);
  Server server(out_fd, methods);
  server.send(to_json(own_hello()));

  // The beat has a thread of its own: it says "alive", whatever the requests do.
  std::mutex mutex;
  std::condition_variable_any wake;
  const std::jthread beat([&](const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    for (int64_t count = 1; !stop.stop_requested(); ++count) {
      wake.wait_for(lock, stop, kBeat, [] { return false; });
      if (!stop.stop_requested()) server.send({{"beat", count}});
    }
  });

  LineSplitter lines;
  std::string block(64 << 10, '\0');
  while (!server.gone()) {
    const ssize_t bytes = read(in_fd, block.data(), block.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    try {
      lines.add(std::string_view(block).substr(0, static_cast<size_t>(bytes)));
    } catch (const Error& e) {
      server.send({{"id", nullptr}, {"error", error_to_json(e)}});
      return exit_code(e.kind());
    }
    while (const auto line = lines.next()) server.on_line(*line);
  }
  return 0;
}

}  // namespace tandem::node
