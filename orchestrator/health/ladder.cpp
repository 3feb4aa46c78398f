#include "orchestrator/health/ladder.h"

#include <httplib.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>

#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::health {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLook{300};
constexpr milliseconds kRequestLimit{10'000};
constexpr size_t kMaxAnswerBytes = 8 << 20;

struct Reply {
  int status = 0;  ///< 0: no answer
  std::string body;
  std::string failure;  ///< why there was none
};

std::string failure_text(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "nobody listens there yet";
    case httplib::Error::Read:
      return "it took the request and did not answer";
    case httplib::Error::Canceled:
      return "the answer was too long";
    default:
      return httplib::to_string(error);
  }
}

/// One request with a time limit, its answer bounded, ended at once by `stop`.
Reply request(const std::string& address, int port, const std::string& path, const std::string* body,
              milliseconds limit, const std::stop_token& stop) {
  httplib::Client client(address, port);
  client.set_connection_timeout(milliseconds(std::min<int64_t>(limit.count(), 2'000)));
  client.set_read_timeout(limit);
  client.set_write_timeout(limit);
  const std::stop_callback end(stop, [&client] { client.stop(); });
  Reply reply;
  const auto receive = [&](const char* data, size_t size) {
    reply.body.append(data, size);
    return reply.body.size() <= kMaxAnswerBytes;
  };
  httplib::Request call;
  call.method = body != nullptr ? "POST" : "GET";
  call.path = path;
  if (body != nullptr) {
    call.body = *body;
    call.set_header("Content-Type", "application/json");
  }
  call.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) { return receive(data, size); };
  const auto result = client.send(call);
  if (result)
    reply.status = result->status;
  else
    reply.failure = failure_text(result.error());
  return reply;
}

json parse_body(const std::string& body) {
  return json::parse(body, nullptr, /*allow_exceptions=*/false);
}

template <typename T>
T field(const json& object, const char* key, T fallback) {
  if (!object.is_object()) return fallback;
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if constexpr (std::is_same_v<T, std::string>)
    return found->is_string() ? found->get<T>() : fallback;
  else if constexpr (std::is_same_v<T, bool>)
    return found->is_boolean() ? found->get<T>() : fallback;
  else
    return found->is_number() ? found->get<T>() : fallback;
}

std::optional<RuntimeHealth> parse_health(const std::string& body) {
  const json j = parse_body(body);
  if (!j.is_object() || !j.contains("phase")) return std::nullopt;
  RuntimeHealth health;
  health.phase = field<std::string>(j, "phase", "");
  health.progress = field<double>(j, "progress", 0);
  health.model = field<std::string>(j, "model", "");
  health.context_tokens = field<int64_t>(j, "context", 0);
  health.world_size = field<int>(j, "world_size", 0);
  health.message = field<std::string>(j, "message", "");
  if (const auto ranks = j.find("ranks"); ranks != j.end() && ranks->is_array())
    for (const json& rank : *ranks)
      health.ranks.push_back({field<int>(rank, "rank", -1), field<bool>(rank, "alive", false),
                              field<int64_t>(rank, "bytes_exchanged", 0)});
  return health;
}

class Climber {
 public:
  Climber(const Target& target, const std::function<void(const Progress&)>& on_progress, std::stop_token stop)
      : target_(target), on_progress_(on_progress), stop_(std::move(stop)) {}

  Report run() {
    wait_for_ready();
    check_model();
    const auto before = exchanged();
    for (const Probe& probe : target_.probes) ask(probe);
    check_ranks(before);
    return report_;
  }

 private:
  std::string where() const { return target_.address + ":" + std::to_string(target_.port); }

  void tell(Rung rung, double fraction, const std::string& text) {
    if (on_progress_) on_progress_({rung, fraction, text});
  }

  void check_interrupted() const {
    if (stop_.stop_requested()) throw Error(ErrorKind::interrupted, "the health check was interrupted", where());
  }

  Reply get(const std::string& path) {
    return request(target_.address, target_.port, path, nullptr, kRequestLimit, stop_);
  }

  void wait_for_ready() {
    const auto begin = Clock::now();
    std::string last = "nothing was heard";
    for (;;) {
      check_interrupted();
      const Reply reply = get(target_.ready_path);
      check_interrupted();
      if (reply.status == 0) {
        tell(Rung::port, -1, "waiting for the port");
        last = reply.failure;
      } else {
        const auto health = target_.engine == EngineKind::tandem ? parse_health(reply.body) : std::nullopt;
        if (health && health->phase == "failed")
          throw Error(ErrorKind::health, "the runtime failed: " + printable(health->message, 1000), where());
        if (reply.status == 200) return;
        const std::string phase = health ? printable(health->phase, 64) : "HTTP " + std::to_string(reply.status);
        const std::string message = health && !health->message.empty() ? ", " + printable(health->message, 200) : "";
        tell(Rung::loading, health ? std::clamp(health->progress, 0.0, 1.0) : -1, phase + message);
        last = phase + message;
      }
      if (Clock::now() - begin > target_.load_limit)
        throw Error(ErrorKind::health,
                    "not ready after " + format_duration(target_.load_limit) + "; last heard: " + last,
                    where() + target_.ready_path, "give it longer with `--set health.load_timeout=...`");
      pause();
    }
  }

  void pause() {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop_, kLook, [] { return false; });
  }

  void check_model() {
    tell(Rung::model, -1, "checking model and context");
    const Reply reply = get("/v1/models");
    check_interrupted();
    std::vector<std::string> ids;
    const json j = parse_body(reply.body);
    if (reply.status == 200 && j.is_object() && j.contains("data") && j["data"].is_array())
      for (const json& model : j["data"]) ids.push_back(field<std::string>(model, "id", ""));
    const bool listed = std::find(ids.begin(), ids.end(), target_.model) != ids.end();
    report_.model = target_.model;
    if (target_.engine == EngineKind::command) {
      if (!listed && !ids.empty()) report_.model = ids[0];  // a foreign engine names its model as it likes
      return;
    }
    if (!listed)
      throw Error(ErrorKind::health,
                  "the server offers " + (ids.empty() ? "no model" : "`" + printable(ids[0], 100) + "`") +
                      ", expected `" + target_.model + "`",
                  where() + "/v1/models", "another server may hold this port: see `tandem status`");
    const auto health = read_health(target_.address, target_.port, kRequestLimit);
    if (!health) throw Error(ErrorKind::health, "it no longer answers", where() + "/health");
    report_.context_tokens = health->context_tokens;
    if (health->context_tokens < target_.context_tokens)
      throw Error(ErrorKind::health,
                  "the server's context is " + std::to_string(health->context_tokens) + " tokens, expected " +
                      std::to_string(target_.context_tokens),
                  where() + "/health");
    if (health->world_size != target_.world_size)
      throw Error(ErrorKind::health,
                  "the server runs on " + std::to_string(health->world_size) + " ranks, expected " +
                      std::to_string(target_.world_size),
                  where() + "/health");
  }

  void ask(const Probe& probe) {
    tell(Rung::probes, static_cast<double>(report_.answers.size()) / static_cast<double>(target_.probes.size()),
         "asking `" + printable(probe.prompt, 80) + "`");
    json question = {{"model", report_.model},
                     {"messages", {{{"role", "user"}, {"content", probe.prompt}}}},
                     {"max_tokens", probe.max_tokens},
                     {"temperature", 0}};
    if (target_.engine == EngineKind::tandem) question["chat_template_kwargs"] = {{"enable_thinking", probe.thinking}};
    const std::string body = question.dump(-1, ' ', false, json::error_handler_t::replace);
    const auto begin = Clock::now();
    const Reply reply =
        request(target_.address, target_.port, "/v1/chat/completions", &body, target_.answer_limit, stop_);
    check_interrupted();
    Answer answer{probe.prompt, "", "", std::chrono::duration<double>(Clock::now() - begin).count()};
    const std::string place = "probe `" + printable(probe.prompt, 80) + "`";
    if (reply.status == 0)
      throw Error(ErrorKind::health, "no answer within " + format_duration(target_.answer_limit) + ": " + reply.failure,
                  place);
    if (reply.status != 200)
      throw Error(ErrorKind::health, "HTTP " + std::to_string(reply.status) + ": " + printable(reply.body, 400), place);
    const json j = parse_body(reply.body);
    const json choices = j.is_object() ? j.value("choices", json::array()) : json::array();
    if (!choices.is_array() || choices.empty())
      throw Error(ErrorKind::health, "the answer holds no choices: " + printable(reply.body, 200), place);
    answer.finish_reason = field<std::string>(choices[0], "finish_reason", "");
    if (choices[0].is_object() && choices[0].contains("message"))
      answer.text = field<std::string>(choices[0]["message"], "content", "");
    if (const auto problem = judge_answer(answer, probe.expect))
      throw Error(ErrorKind::health, "the answer `" + printable(answer.text, 200) + "` is not sound: " + *problem,
                  place, "look into `tandem logs`: the pack may be damaged, or a rank may compute differently");
    report_.answers.push_back(std::move(answer));
  }

  std::vector<int64_t> exchanged() {
    std::vector<int64_t> bytes;
    if (target_.engine != EngineKind::tandem) return bytes;
    const auto health = read_health(target_.address, target_.port, kRequestLimit);
    if (!health) return bytes;
    bytes.assign(static_cast<size_t>(target_.world_size), -1);
    for (const auto& rank : health->ranks)
      if (rank.rank >= 0 && rank.rank < target_.world_size && rank.alive)
        bytes[static_cast<size_t>(rank.rank)] = rank.bytes_exchanged;
    return bytes;
  }

  /// A rank that answers its heartbeat but took no part in the computing would go unnoticed otherwise. Ranks report
  /// with their heartbeats, so the last bytes show a moment later.
  void check_ranks(const std::vector<int64_t>& before) {
    if (target_.engine != EngineKind::tandem) return;
    tell(Rung::ranks, -1, "checking that every rank took part");
    const auto begin = Clock::now();
    for (;;) {
      const auto after = exchanged();
      check_interrupted();
      std::string problem;  // the first one
      report_.rank_bytes_exchanged.clear();
      for (size_t rank = 0; rank < static_cast<size_t>(target_.world_size); ++rank) {
        const bool alive = rank < after.size() && after[rank] >= 0;
        const int64_t earlier = rank < before.size() ? std::max<int64_t>(before[rank], 0) : 0;
        const int64_t moved = alive ? after[rank] - earlier : 0;
        report_.rank_bytes_exchanged.push_back(moved);
        if (!problem.empty()) continue;
        if (!alive)
          problem = "rank " + std::to_string(rank) + " is not alive";
        else if (target_.world_size > 1 && !target_.probes.empty() && moved <= 0)
          problem = "rank " + std::to_string(rank) + " exchanged no bytes during the probes";
      }
      if (problem.empty()) return;
      if (Clock::now() - begin > target_.ranks_limit) throw Error(ErrorKind::health, problem, where() + "/health");
      pause();
    }
  }

  const Target& target_;
  const std::function<void(const Progress&)>& on_progress_;
  std::stop_token stop_;
  Report report_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
};

}  // namespace

std::string_view rung_name(Rung rung) {
  switch (rung) {
    case Rung::port:
      return "port";
    case Rung::loading:
      return "loading";
    case Rung::model:
      return "model";
    case Rung::probes:
      return "probes";
    case Rung::ranks:
      return "ranks";
  }
  return "port";
}

std::optional<RuntimeHealth> read_health(const std::string& address, int port, milliseconds limit) {
  const Reply reply = request(address, port, "/health", nullptr, limit, {});
  if (reply.status == 0) return std::nullopt;
  return parse_health(reply.body);
}

Report climb(const Target& target, const std::function<void(const Progress&)>& on_progress, std::stop_token stop) {
  return Climber(target, on_progress, std::move(stop)).run();
}

}  // namespace tandem::health
