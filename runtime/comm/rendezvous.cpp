#include "runtime/comm/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "runtime/common/log.h"

namespace tandem::comm {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr const char* kMagic = "tandem-rendezvous";
constexpr int kProtocol = 1;
constexpr Milliseconds kStep(200);              // how often `cancelled` is asked
constexpr Milliseconds kHelloPatience(10'000);  // for a connection to say who it is
constexpr size_t kMaxStrangers = 64;
constexpr Milliseconds kNotice(15'000);  // how often a waiting rank says what it waits for

std::string seconds_text(Milliseconds time) {
  return std::to_string((time.count() + 500) / 1000) + " s";
}

Error interrupted() {
  return Error(ErrorKind::interrupted, "stopped while waiting for the other ranks");
}

/// Settings as they are compared: the group's own facts count too.
std::map<std::string, std::string> full_settings(const GroupOptions& options) {
  auto settings = options.settings;
  settings["world size"] = std::to_string(options.world_size);
  return settings;
}

/// "" when equal; otherwise the first difference with both values.
std::string first_difference(const std::map<std::string, std::string>& ours,
                             const std::map<std::string, std::string>& theirs, int their_rank) {
  const auto value = [](const auto& map, const std::string& key) {
    const auto found = map.find(key);
    return found == map.end() ? std::string("nothing") : "`" + found->second + "`";
  };
  auto keys = ours;
  keys.insert(theirs.begin(), theirs.end());
  for (const auto& [key, unused] : keys)
    if (value(ours, key) != value(theirs, key))
      return "rank " + std::to_string(their_rank) + " has " + value(theirs, key) + " for " + key + ", rank 0 has " +
             value(ours, key);
  return "";
}

bool equal_in_constant_time(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

struct Hello {
  int rank = -1;
  std::string token;
  std::map<std::string, std::string> settings;
};

std::optional<Hello> parse_hello(const std::string& payload) {
  try {
    const json parsed = json::parse(payload);
    return Hello{parsed.at("rank").get<int>(), parsed.at("token").get<std::string>(),
                 parsed.at("settings").get<std::map<std::string, std::string>>()};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

json parse_or_empty(const std::string& payload) {
  json parsed = json::parse(payload, nullptr, false);
  return parsed.is_object() ? parsed : json::object();
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Rank 0's side of the meeting.
class Host {
 public:
  explicit Host(const GroupOptions& options)
      : options_(options),
        settings_(full_settings(options)),
        listener_(listen_on(parse_endpoint(options.rendezvous))) {}

  Meeting run() {
    const auto begin = Clock::now();
    const Deadline deadline = begin + options_.join_timeout;
    auto next_notice = begin + kNotice;
    while (static_cast<int>(joined_.size()) < options_.world_size - 1) {
      if (options_.cancelled && options_.cancelled()) throw interrupted();
      const auto now = Clock::now();
      if (now >= deadline)
        throw Error(ErrorKind::link, missing() + " did not appear within " + seconds_text(options_.join_timeout),
                    "rendezvous " + options_.rendezvous,
                    "start every rank with the same --rendezvous; see that this address is reachable from their nodes");
      if (now >= next_notice) {
        log_info("waiting for other ranks", {{"missing", missing()}, {"rendezvous", options_.rendezvous}});
        next_notice = now + kNotice;
      }
      poll_once();
    }
    Meeting meeting;
    for (auto& [rank, link] : joined_) {
      if (!link.send(FrameType::welcome, ""))
        throw Error(ErrorKind::link, "rank " + std::to_string(rank) + " went away while the ranks were meeting");
      meeting.local_address = comm::local_address(link.socket());
    }
    meeting.links = std::move(joined_);
    return meeting;
  }

 private:
  struct Stranger {
    ControlLink link;
    Clock::time_point since;
  };

  std::string missing() const {
    std::string text;
    for (int rank = 1; rank < options_.world_size; ++rank)
      if (!joined_.contains(rank)) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
    return text;
  }

  void poll_once() {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const auto& [rank, link] : joined_) entries.push_back({link.socket().get(), POLLIN, 0});
    for (const Stranger& stranger : strangers_) entries.push_back({stranger.link.socket().get(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), static_cast<int>(kStep.count())) <= 0) entries.front().revents = 0;

    for (auto it = joined_.begin(); it != joined_.end();) {
      if (it->second.receive()) {
        ++it;
        continue;
      }
      log_warn("a rank left before all had met", {{"rank", it->first}});  // its restart may take the place
      it = joined_.erase(it);
    }
    const auto now = Clock::now();
    for (auto it = strangers_.begin(); it != strangers_.end();) {
      it->link.receive();
      const auto frame = it->link.next();
      if (frame) admit(std::move(it->link), *frame);
      if (frame || it->link.closed() || now - it->since > kHelloPatience)
        it = strangers_.erase(it);
      else
        ++it;
    }
    if (entries.front().revents != 0 && strangers_.size() < kMaxStrangers) accept_one(now);
  }

  void accept_one(Clock::time_point now) {
    Socket socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    ControlLink link(std::move(socket));
    if (link.send(FrameType::greeting, json{{"magic", kMagic}, {"protocol", kProtocol}}.dump(), Milliseconds(0)))
      strangers_.push_back({std::move(link), now});
  }

  void admit(ControlLink link, const Frame& frame) {
    const auto hello = frame.type == FrameType::hello ? parse_hello(frame.payload) : std::nullopt;
    if (!hello) return;
    if (!equal_in_constant_time(hello->token, options_.token)) {
      log_warn("a process with another job's token was turned away", {{"rank", hello->rank}});
      return refuse(link, "the token of rank " + std::to_string(hello->rank) + " is not the one of rank 0");
    }
    if (const std::string difference = first_difference(settings_, hello->settings, hello->rank); !difference.empty()) {
      refuse(link, difference);
      for (auto& [rank, other] : joined_) refuse(other, difference);
      throw Error(ErrorKind::usage, difference, "rendezvous " + options_.rendezvous,
                  "start all ranks with the same program, pack and settings");
    }
    if (hello->rank < 1 || hello->rank >= options_.world_size)
      return refuse(link, "rank " + std::to_string(hello->rank) + " is not one of ranks 1 to " +
                              std::to_string(options_.world_size - 1));
    if (joined_.contains(hello->rank))
      return refuse(link, "rank " + std::to_string(hello->rank) + " has already joined from elsewhere");
    log_debug("rank joined", {{"rank", hello->rank}});
    joined_.emplace(hello->rank, std::move(link));
  }

  static void refuse(ControlLink& link, const std::string& reason) {
    link.send(FrameType::refuse, json{{"reason", printable(reason)}}.dump());
  }

  const GroupOptions& options_;
  std::map<std::string, std::string> settings_;
  Socket listener_;
  std::map<int, ControlLink> joined_;
  std::list<Stranger> strangers_;
};

/// A rank other than 0: tries until it is welcome, refused, or out of time.
class Guest {
 public:
  explicit Guest(const GroupOptions& options) : options_(options), endpoint_(parse_endpoint(options.rendezvous)) {}

  Meeting run() {
    const auto begin = Clock::now();
    const Deadline deadline = begin + options_.join_timeout;
    auto next_notice = begin + kNotice;
    while (true) {
      if (auto link = attempt(deadline)) {
        Meeting meeting;
        meeting.local_address = comm::local_address(link->socket());
        meeting.links.emplace(0, std::move(*link));
        return meeting;
      }
      const auto now = Clock::now();
      if (now >= deadline)
        throw Error(ErrorKind::link,
                    "rank 0 was not ready within " + seconds_text(options_.join_timeout) + " (last: " + last_ + ")",
                    "rendezvous " + options_.rendezvous,
                    "see that rank 0 runs and that this address and port are reachable from here");
      if (now >= next_notice) {
        log_info("waiting for rank 0", {{"rendezvous", options_.rendezvous}, {"last", last_}});
        next_notice = now + kNotice;
      }
      check_cancelled();
      std::this_thread::sleep_for(kStep);
    }
  }

 private:
  void check_cancelled() const {
    if (options_.cancelled && options_.cancelled()) throw interrupted();
  }

  /// Nothing when it is worth trying again; `last_` then says why.
  std::optional<ControlLink> attempt(Deadline deadline) {
    auto socket = try_connect(endpoint_, Milliseconds(3000), last_);
    if (!socket) return std::nullopt;
    ControlLink link(std::move(*socket));
    const auto greeting = link.wait(std::min(deadline, Clock::now() + Milliseconds(5000)));
    if (!greeting || greeting->type != FrameType::greeting ||
        text_of(parse_or_empty(greeting->payload), "magic") != kMagic) {
      last_ = greeting ? "something else listens at this address" : "the connection was closed without a greeting";
      return std::nullopt;
    }
    const json hello{{"rank", options_.rank}, {"token", options_.token}, {"settings", full_settings(options_)}};
    link.send(FrameType::hello, hello.dump(-1, ' ', false, json::error_handler_t::replace));
    last_ = "connected, waiting for the other ranks";
    while (Clock::now() < deadline) {
      check_cancelled();
      const auto frame = link.wait(std::min(deadline, Clock::now() + kStep));
      if (frame && frame->type == FrameType::welcome) return link;
      if (frame && frame->type == FrameType::refuse)
        throw Error(ErrorKind::usage, "rank 0 refused this rank: " + text_of(parse_or_empty(frame->payload), "reason"),
                    "rendezvous " + options_.rendezvous, "start all ranks with the same program, pack and settings");
      if (link.closed()) {
        last_ = "rank 0 closed the connection";
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  const GroupOptions& options_;
  Endpoint endpoint_;
  std::string last_ = "nothing tried";
};

void put_block(std::string& out, std::string_view block) {
  const auto size = static_cast<uint32_t>(block.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += block;
}

std::string encode(const Entries& entries) {
  std::string out;
  for (const auto& [key, value] : entries) {
    put_block(out, key);
    put_block(out, {value.data(), value.size()});
  }
  return out;
}

void decode(std::string_view bytes, Entries& into) {
  const auto take = [&] {
    uint32_t size = 0;
    if (bytes.size() < sizeof size) throw Error(ErrorKind::link, "a rank sent addresses that cannot be read");
    std::memcpy(&size, bytes.data(), sizeof size);
    if (bytes.size() - sizeof size < size) throw Error(ErrorKind::link, "a rank sent addresses that cannot be read");
    const std::string_view block = bytes.substr(sizeof size, size);
    bytes.remove_prefix(sizeof size + size);
    return block;
  };
  while (!bytes.empty()) {
    const std::string_view key = take();
    const std::string_view value = take();
    into[std::string(key)].assign(value.begin(), value.end());
  }
}

std::string wait_for_addresses(ControlLink& link, int rank, Deadline deadline) {
  const auto frame = link.wait(deadline);
  if (frame && frame->type == FrameType::addresses) return frame->payload;
  throw Error(ErrorKind::link, "rank " + std::to_string(rank) + (link.closed() ? " went away" : " fell silent") +
                                   " while the ranks were connecting");
}

}  // namespace

Meeting meet(const GroupOptions& options) {
  return options.rank == 0 ? Host(options).run() : Guest(options).run();
}

Entries merge_entries(Meeting& meeting, int rank, const Entries& mine, Milliseconds timeout) {
  const Deadline deadline = Clock::now() + timeout;
  Entries all = mine;
  if (rank != 0) {
    ControlLink& link = meeting.links.at(0);
    link.send(FrameType::addresses, encode(mine));
    decode(wait_for_addresses(link, 0, deadline), all);
    return all;
  }
  for (auto& [other, link] : meeting.links) decode(wait_for_addresses(link, other, deadline), all);
  const std::string bytes = encode(all);
  for (auto& [other, link] : meeting.links) link.send(FrameType::addresses, bytes);
  return all;
}

}  // namespace tandem::comm
