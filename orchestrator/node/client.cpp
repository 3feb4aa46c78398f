#include "orchestrator/node/client.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

namespace tandem::node {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kMaxBannerLines = 64;
/// Events waiting for a slow reader; beyond it the connection itself waits.
constexpr size_t kMaxWaitingEvents = 4096;

}  // namespace

struct NodeClient::State {
  struct Call {
    std::deque<json> messages;  // events, then one result or error
  };

  std::string name;
  std::unique_ptr<NodeTransport> transport;
  ClientOptions options;
  Hello hello;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, Call> calls;
  int64_t next_id = 1;
  Clock::time_point last_heard = Clock::now();
  bool greeted = false;
  bool closing = false;
  std::optional<Error> broken;  // why no more can be said
  std::string banner;

  std::mutex write_mutex;
  std::jthread reader;

  void send(const json& line) {
    const std::lock_guard lock(write_mutex);
    transport->write(format_line(line));
  }

  Error place(const Error& error) const { return error.at("node " + name); }

  void fail(Error error) {
    const std::lock_guard lock(mutex);
    if (!broken) broken = std::move(error);
    changed.notify_all();
  }

  void read_all() {
    LineSplitter lines;
    std::string block(64 << 10, '\0');
    int banner_lines = 0;
    try {
      while (const size_t bytes = transport->read(block.data(), block.size())) {
        lines.add(std::string_view(block).substr(0, bytes));
        while (auto line = lines.next()) {
          const auto message = parse_line(*line);
          if (!greeted) {
            if (message)
              greet(*message);
            else if (++banner_lines > kMaxBannerLines)
              throw Error(ErrorKind::node, "the node does not greet");
            else
              note_banner(*line);
            continue;
          }
          if (!message)
            throw Error(ErrorKind::node, "the node sent a line that is no JSON object: " + printable(*line, 200));
          deliver(*message);
        }
      }
      fail(Error(ErrorKind::node, "the node helper ended unexpectedly" + said()));
    } catch (const Error& e) {
      fail(Error(e.kind(), e.what() + said(), e.where(), e.fix()));
    }
  }

  void note_banner(const std::string& line) {
    const std::lock_guard lock(mutex);
    if (banner.size() < 1024) banner += (banner.empty() ? "" : " | ") + printable(line, 200);
  }

  std::string said() {
    const std::string stderr_text = transport->diagnostics();
    const std::lock_guard lock(mutex);
    std::string text = banner;
    if (!stderr_text.empty()) text += (text.empty() ? "" : " | ") + stderr_text;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.empty() ? "" : "; it said: " + text;
  }

  void greet(const json& line) {
    Hello checked = check_hello(line, program_version());
    const std::lock_guard lock(mutex);
    hello = std::move(checked);
    greeted = true;
    last_heard = Clock::now();
    changed.notify_all();
  }

  void deliver(const json& message) {
    std::unique_lock lock(mutex);
    last_heard = Clock::now();
    const auto id = message.find("id");
    if (id == message.end() || !id->is_number_integer()) return;  // a beat
    const auto call = calls.find(id->get<int64_t>());
    if (call == calls.end()) return;  // given up meanwhile
    changed.wait(lock, [&] {
      const auto still = calls.find(id->get<int64_t>());
      return closing || still == calls.end() || still->second.messages.size() < kMaxWaitingEvents;
    });
    last_heard = Clock::now();
    if (const auto still = calls.find(id->get<int64_t>()); still != calls.end())
      still->second.messages.push_back(message);
    changed.notify_all();
  }
};

NodeClient::NodeClient(std::string name, std::unique_ptr<NodeTransport> transport, ClientOptions options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.name = std::move(name);
  s.transport = std::move(transport);
  s.options = options;
  s.reader = std::jthread([&s] { s.read_all(); });
  std::optional<Error> failure;
  {
    std::unique_lock lock(s.mutex);
    const bool in_time = s.changed.wait_for(lock, options.handshake_timeout, [&] { return s.greeted || s.broken; });
    if (!in_time)
      failure = Error(ErrorKind::node, "no greeting came within " + std::to_string(options.handshake_timeout.count()) +
                                           " ms over " + s.transport->describe());
    else if (s.broken)
      failure = s.broken;
  }
  if (failure) {
    s.transport->close();
    s.reader.join();
    throw s.place(*failure);
  }
}

NodeClient::~NodeClient() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->changed.notify_all();
  }
  state_->transport->close();
  if (state_->reader.joinable()) state_->reader.join();
}

const std::string& NodeClient::name() const {
  return state_->name;
}
const Hello& NodeClient::hello() const {
  return state_->hello;
}

json NodeClient::call(const std::string& method, const json& params, const OnEvent& on_event, std::stop_token stop) {
  State& s = *state_;
  int64_t id = 0;
  {
    const std::lock_guard lock(s.mutex);
    if (s.broken) throw s.place(*s.broken);
    id = s.next_id++;
    s.calls[id];
  }
  struct Forget {
    State& s;
    int64_t id;
    ~Forget() {
      const std::lock_guard lock(s.mutex);
      s.calls.erase(id);
      s.changed.notify_all();
    }
  } forget{s, id};

  try {
    s.send({{"id", id}, {"method", method}, {"params", params}});
  } catch (const Error& e) {
    throw s.place(e);
  }
  const std::stop_callback wake(stop, [&s] {
    const std::lock_guard lock(s.mutex);
    s.changed.notify_all();
  });

  std::optional<Clock::time_point> cancelled_until;
  const auto cancel = [&] {
    cancelled_until = Clock::now() + s.options.cancel_timeout;
    try {
      s.send({{"id", id}, {"cancel", true}});
    } catch (const Error&) {  // the reader sees the end of the stream too, and says it better
    }
  };
  std::exception_ptr thrown_by_event;
  for (;;) {
    json message;
    {
      std::unique_lock lock(s.mutex);
      auto& messages = s.calls[id].messages;
      constexpr std::chrono::milliseconds kLook{500};
      s.changed.wait_for(lock, kLook,
                         [&] { return !messages.empty() || s.broken || (stop.stop_requested() && !cancelled_until); });
      if (messages.empty()) {
        if (s.broken) throw s.place(*s.broken);
        if (Clock::now() - s.last_heard > s.options.silence_timeout)
          throw s.place(Error(ErrorKind::node, "the node has been silent for " +
                                                   std::to_string(s.options.silence_timeout.count() / 1000) +
                                                   " s while it ran `" + method + "`"));
        lock.unlock();
        if (stop.stop_requested() && !cancelled_until) cancel();
        if (cancelled_until && Clock::now() > *cancelled_until)
          throw s.place(Error(ErrorKind::interrupted, "`" + method + "` was cancelled but did not end in time"));
        continue;
      }
      message = std::move(messages.front());
      messages.pop_front();
      s.changed.notify_all();
    }
    if (const auto event = message.find("event"); event != message.end()) {
      if (!on_event || thrown_by_event) continue;
      try {
        on_event(*event);
      } catch (...) {
        thrown_by_event = std::current_exception();
        cancel();
      }
      continue;
    }
    if (thrown_by_event) std::rethrow_exception(thrown_by_event);
    if (const auto result = message.find("result"); result != message.end()) return *result;
    const auto error = message.find("error");
    throw s.place(error_from_json(error != message.end() ? *error : json()));
  }
}

}  // namespace tandem::node
