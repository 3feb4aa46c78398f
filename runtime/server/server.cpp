#include "runtime/server/server.h"

#include <httplib.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/common/log.h"
#include "runtime/server/api_error.h"
#include "runtime/server/api_request.h"
#include "runtime/server/api_response.h"
#include "runtime/server/client_connection.h"
#include "runtime/server/json_fields.h"
#include "runtime/server/prometheus.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAtClient(
    100);  // how often a waiting handler looks whether its client is there
constexpr int kBacklog = 512;
constexpr int kRetryLoading = 5, kRetryBusy = 2;  // seconds

/// The model's text is valid UTF-8 by now; a client's own words in an error may not be.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void send_json(httplib::Response& response, const Json& json, int status = 200) {
  response.status = status;
  response.set_content(dump(json), "application/json");
}

void send_error(httplib::Response& response, const ApiError& error) {
  if (const auto seconds = error.retry_after()) response.set_header("Retry-After", std::to_string(*seconds));
  send_json(response, error.body(), error.status());
}

/// For a request whose body was not read to its end: nothing more is read from this connection once the answer is out.
/// (Not earlier: the library writes to no connection that it cannot read from.)
void send_error_and_stop_reading(httplib::Response& response, const ApiError& error, ClientConnection connection) {
  response.status = error.status();
  auto text = std::make_shared<std::string>(dump(error.body()));
  response.set_content_provider(
      text->size(), "application/json",
      [text](size_t offset, size_t length, httplib::DataSink& sink) {
        return sink.write(text->data() + offset, length);
      },
      [connection](bool) { connection.stop_reading(); });
}

ApiError failure_error(const GenerationFailure& failure) {
  return ApiError(503, "overloaded", failure.code, failure.message).after(kRetryLoading);
}

/// An answer's client side; whichever way a handler ends, the engine need not go on.
class AnswerHandle {
 public:
  AnswerHandle(std::shared_ptr<Generation> generation, ClientConnection connection, std::atomic<int>& open)
      : generation_(std::move(generation)), connection_(connection), open_(open) {
    ++open_;
  }
  ~AnswerHandle() {
    generation_->cancel();
    --open_;
  }
  AnswerHandle(const AnswerHandle&) = delete;
  AnswerHandle& operator=(const AnswerHandle&) = delete;

  /// The next event, or nothing when it is time to look around.
  std::optional<GenerationEvent> wait() const { return generation_->wait(kLookAtClient); }

  /// Looks at the connection now and then: with an event every millisecond, asking the system each time would cost more
  /// than the events.
  bool client_gone() {
    const auto now = Clock::now();
    if (now - last_look_ < kLookAtClient) return false;
    last_look_ = now;
    return connection_.gone();
  }

 private:
  std::shared_ptr<Generation> generation_;
  ClientConnection connection_;
  Clock::time_point last_look_ = Clock::now();
  std::atomic<int>& open_;
};

/// Server-sent events.
class EventStream {
 public:
  explicit EventStream(httplib::DataSink& sink) : sink_(sink) {}

  bool data(const std::string& text) { return write("data: " + text + "\n\n"); }
  bool json(const Json& json) { return data(dump(json)); }
  bool comment(const std::string& text) { return write(": " + text + "\n\n"); }
  Clock::time_point last_write() const { return last_write_; }

 private:
  bool write(const std::string& text) {
    last_write_ = Clock::now();
    return sink_.write(text.data(), text.size());
  }

  httplib::DataSink& sink_;
  Clock::time_point last_write_ = Clock::now();
};

}  // namespace

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::loading:
      return "loading";
    case Phase::warming:
      return "warming";
    case Phase::ready:
      return "ready";
    case Phase::stopping:
      return "stopping";
    case Phase::failed:
      return "failed";
  }
  return "failed";
}

class Server::Impl {
 public:
  explicit Impl(ServerOptions options) : options_(std::move(options)) {
    configure();
    add_routes();
    const bool bound = options_.port == 0 ? (port_ = http_.bind_to_any_port(options_.address)) > 0
                                          : http_.bind_to_port(options_.address, port_ = options_.port);
    if (!bound)
      throw Error(ErrorKind::usage,
                  "cannot listen on " + options_.address + ":" + std::to_string(options_.port) +
                      ": the port is taken or the address is not this machine's",
                  "--listen", "choose another port, or stop the program that has it");
    listen(listener_, kBacklog);  // the library's own is 5: a burst of connections would wait for seconds
    thread_ = std::thread([this] { http_.listen_after_bind(); });
    while (!http_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  ~Impl() { stop(std::chrono::milliseconds(0)); }

  int port() const { return port_; }

  void set_progress(double progress) {
    const std::lock_guard lock(mutex_);
    progress_ = progress;
  }

  void set_ranks(std::function<std::vector<RankStatus>()> ranks) {
    const std::lock_guard lock(mutex_);
    options_.ranks = std::move(ranks);
  }

  void set_phase(Phase phase, const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::failed || (phase_ == Phase::stopping && phase != Phase::failed)) return;
    phase_ = phase;
    message_ = message;
    if (phase == Phase::ready) progress_ = 1;
  }

  void serve(ServedModel& model) {
    const std::lock_guard lock(mutex_);
    model_ = &model;
  }

  void stop(std::chrono::milliseconds patience) {
    if (!thread_.joinable()) return;
    const auto deadline = Clock::now() + patience;
    while (open_answers_ > 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    http_.stop();
    shut_down_connections(port_);
    thread_.join();
    const std::lock_guard lock(mutex_);
    model_ = nullptr;
  }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  void configure() {
    const int workers = options_.max_connections;
    http_.new_task_queue = [workers] { return new httplib::ThreadPool(static_cast<size_t>(workers)); };
    // The library's default would let a second server share the port and take half of the requests.
    http_.set_socket_options([this](socket_t socket) {
      listener_ = socket;
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    http_.set_tcp_nodelay(true);
    http_.set_keep_alive_max_count(1000);
    http_.set_read_timeout(10);
    http_.set_write_timeout(30);
    http_.set_exception_handler([](const Request& request, Response& response, std::exception_ptr exception) {
      try {
        std::rethrow_exception(exception);
      } catch (const ApiError& error) {
        send_error(response, error);
      } catch (const std::exception& error) {
        log_error("a handler failed", {{"path", request.path}, {"reason", error.what()}});
        send_error(response, ApiError(500, "server_error", "internal_error", "the server failed on this request"));
      }
    });
    http_.set_error_handler([](const Request& request, Response& response) {
      if (response.has_header("Content-Type")) return;  // a handler's own error
      if (response.status == 404)
        return send_error(response,
                          ApiError(404, "not_found_error", "", "there is no " + request.method + " " + request.path));
      send_error(response, ApiError(response.status, "invalid_request_error", "", "the request cannot be read"));
    });
    http_.set_pre_routing_handler([this](const Request& request, Response& response) {
      // Two lengths for one body: what one program takes for the body, another takes for the next request.
      if (!request.has_header("Transfer-Encoding") || !request.has_header("Content-Length"))
        return httplib::Server::HandlerResponse::Unhandled;
      send_error_and_stop_reading(response, bad_request("the request has both Content-Length and Transfer-Encoding"),
                                  connection(request));
      return httplib::Server::HandlerResponse::Handled;
    });
  }

  void add_routes() {
    http_.Get("/health", [this](const Request&, Response& response) { health(response); });
    http_.Get("/metrics", [this](const Request&, Response& response) { metrics(response); });
    http_.Get("/v1/models", [this](const Request&, Response& response) { send_json(response, models()); });
    post("/v1/chat/completions", [this](const Request& request, const std::string& body, Response& response) {
      chat(request, body, response);
    });
    post("/v1/completions", [this](const Request& request, const std::string& body, Response& response) {
      completion(request, body, response);
    });
    post("/tokenize",
         [this](const Request&, const std::string& body, Response& response) { tokenize(body, response); });
    post("/detokenize",
         [this](const Request&, const std::string& body, Response& response) { detokenize(body, response); });
  }

  using BodyHandler = std::function<void(const Request&, const std::string& body, Response&)>;

  void post(const char* path, BodyHandler handler) {
    http_.Post(path, [this, handler = std::move(handler)](const Request& request, Response& response,
                                                          const httplib::ContentReader& reader) {
      bool unread = false;
      try {
        handler(request, read_body(request, reader, unread), response);
      } catch (const ApiError& error) {
        if (unread)
          send_error_and_stop_reading(response, error, connection(request));
        else
          send_error(response, error);
      }
    });
  }

  /// The library limits bodies with a Content-Length only; chunked and compressed ones are counted here as they arrive.
  /// @param unread  true when the rest of the body stays on the connection
  std::string read_body(const Request& request, const httplib::ContentReader& reader, bool& unread) const {
    std::string body;
    if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding")) return body;
    if (request.is_multipart_form_data()) {
      unread = true;
      throw ApiError(415, "invalid_request_error", "", "the body must be application/json");
    }
    // A little past the limit is read and dropped, so that the client gets to see the answer.
    const size_t drop_limit = 2 * options_.max_body_bytes + (1 << 20);
    size_t received = 0;
    const bool whole = reader([&](const char* data, size_t size) {
      received += size;
      if (received <= options_.max_body_bytes) body.append(data, size);
      return received <= drop_limit;
    });
    unread = !whole;
    if (received > options_.max_body_bytes)
      throw ApiError(
          413, "invalid_request_error", "request_too_large",
          "the body is larger than this server's limit of " + std::to_string(options_.max_body_bytes) + " bytes");
    if (!whole) throw bad_request("the body ended early or cannot be read");
    return body;
  }

  ClientConnection connection(const Request& request) const {
    return ClientConnection(request.remote_addr, request.remote_port, port_);
  }

  /// The model, if it can answer now.
  ServedModel& ready_model() const {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::ready && model_ != nullptr) {
      if (options_.memory_is_short && options_.memory_is_short())
        throw ApiError(503, "overloaded", "memory_floor", "this machine is short of memory").after(kRetryLoading);
      return *model_;
    }
    const bool ending = phase_ == Phase::stopping;
    const std::string code = ending ? "server_shutdown" : phase_ == Phase::failed ? "engine_failure" : "loading";
    const std::string message = ending                    ? "the server is shutting down"
                                : phase_ == Phase::failed ? "the engine failed: " + message_
                                                          : "the model is " + std::string(phase_name(phase_));
    throw ApiError(503, "overloaded", code, message).after(kRetryLoading);
  }

  void check_model_name(const std::string& asked) const {
    if (asked.empty() || asked == options_.model_name) return;
    throw ApiError(404, "not_found_error", "model_not_found",
                   "the model `" + printable(asked, 200) + "` is not served here, `" + options_.model_name + "` is",
                   "model");
  }

  void health(Response& response) const {
    const std::lock_guard lock(mutex_);
    Phase phase = phase_;
    std::string message = message_;
    if (phase == Phase::ready && model_ != nullptr) {
      const auto age = model_->engine().status().step_age;
      if (age > options_.stall_limit) {
        phase = Phase::failed;
        message = "no progress for " + std::to_string(age.count() / 1000) + " s";
      }
    }
    Json ranks = Json::array();
    if (options_.ranks)
      for (const RankStatus& rank : options_.ranks())
        ranks.push_back({{"rank", rank.rank}, {"alive", rank.alive}, {"bytes_exchanged", rank.bytes_exchanged}});
    send_json(response,
              {{"phase", phase_name(phase)},
               {"progress", progress_},
               {"model", options_.model_name},
               {"context", options_.context},
               {"world_size", options_.world_size},
               {"version", options_.version},
               {"ranks", ranks},
               {"message", printable(message, 2000)}},
              phase == Phase::ready ? 200 : 503);
  }

  void metrics(Response& response) const {
    const std::lock_guard lock(mutex_);
    static const EngineMetrics nothing_yet;
    const auto ranks = options_.ranks ? options_.ranks() : std::vector<RankStatus>{};
    const bool loaded = model_ != nullptr;
    response.set_content(prometheus_text(options_.model_name, loaded ? model_->engine().status() : EngineStatus{},
                                         loaded ? model_->engine().metrics() : nothing_yet,
                                         std::max<int64_t>(options_.context, 1), ranks),
                         "text/plain; version=0.0.4; charset=utf-8");
  }

  Json models() const {
    const auto created = std::chrono::duration_cast<std::chrono::seconds>(started_.time_since_epoch()).count();
    return {{"object", "list"},
            {"data", Json::array({{{"id", options_.model_name},
                                   {"object", "model"},
                                   {"created", created},
                                   {"owned_by", "tandem"},
                                   {"max_model_len", options_.context},
                                   {"input_modalities", Json::array({"text"})}}})}};
  }

  void chat(const Request& http, const std::string& body, Response& response) {
    ServedModel& model = ready_model();
    const ChatRequest request = parse_chat_request(body, model.defaults());
    check_model_name(request.model);
    answer(http, response, model, request, model.chat_generation(request), true);
  }

  void completion(const Request& http, const std::string& body, Response& response) {
    ServedModel& model = ready_model();
    const CompletionRequest request = parse_completion_request(body, model.defaults());
    check_model_name(request.model);
    answer(http, response, model, request, model.completion_generation(request), false);
  }

  void answer(const Request& http, Response& response, ServedModel& model, const CommonRequest& request,
              GenerationRequest generation, bool chat) {
    auto builder =
        std::make_shared<ResponseBuilder>(chat, options_.model_name, request.include_usage && request.stream);
    generation.id = builder->id();
    std::shared_ptr<Generation> submitted;
    try {
      submitted = model.engine().submit(std::move(generation));
    } catch (const Error& error) {
      throw ApiError(503, "overloaded", error.kind() == ErrorKind::interrupted ? "server_shutdown" : "engine_failure",
                     error.what())
          .after(kRetryLoading);
    }
    if (!submitted)
      throw ApiError(429, "rate_limit_error", "queue_full", "too many requests are waiting").after(kRetryBusy);
    auto handle = std::make_shared<AnswerHandle>(std::move(submitted), connection(http), open_answers_);
    if (request.stream)
      stream(response, handle, builder, chat, request.include_usage);
    else
      wait_for_whole(response, *handle, *builder);
  }

  static void wait_for_whole(Response& response, AnswerHandle& handle, ResponseBuilder& builder) {
    AnswerText::Delta all;
    while (!handle.client_gone()) {
      const auto event = handle.wait();
      if (!event) continue;
      if (const auto* delta = std::get_if<AnswerText::Delta>(&*event)) {
        all.reasoning += delta->reasoning;
        all.content += delta->content;
      } else if (const auto* result = std::get_if<GenerationResult>(&*event)) {
        return send_json(response, builder.whole(all, *result));
      } else {
        throw failure_error(std::get<GenerationFailure>(*event));
      }
    }
  }

  void stream(Response& response, std::shared_ptr<AnswerHandle> handle, std::shared_ptr<ResponseBuilder> builder,
              bool chat, bool include_usage) {
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Accel-Buffering", "no");  // proxies would hold the pieces back
    response.set_chunked_content_provider(
        "text/event-stream", [this, handle, builder, chat, include_usage](size_t, httplib::DataSink& sink) {
          if (!send_stream(sink, *handle, *builder, chat, include_usage)) return false;
          sink.done();
          return true;
        });
  }

  /// False when the client is gone.
  bool send_stream(httplib::DataSink& sink, AnswerHandle& handle, ResponseBuilder& builder, bool chat,
                   bool include_usage) const {
    EventStream events(sink);
    bool begun = !chat;
    const auto begin = [&] { return std::exchange(begun, true) || events.json(builder.first_chunk()); };
    while (!handle.client_gone()) {
      const auto event = handle.wait();
      if (!event) {
        if (Clock::now() - events.last_write() >= options_.keep_alive_comment && !events.comment("keep-alive"))
          return false;
        continue;
      }
      if (const auto* failure = std::get_if<GenerationFailure>(&*event))
        return events.json(failure_error(*failure).body()) && events.data("[DONE]");
      if (!begin()) return false;
      if (const auto* delta = std::get_if<AnswerText::Delta>(&*event)) {
        for (const Json& chunk : builder.delta_chunks(*delta))
          if (!events.json(chunk)) return false;
        continue;
      }
      const auto& result = std::get<GenerationResult>(*event);
      return events.json(builder.last_chunk(result)) && (!include_usage || events.json(builder.usage_chunk(result))) &&
             events.data("[DONE]");
    }
    return false;
  }

  void tokenize(const std::string& body, Response& response) const {
    const ServedModel& model = ready_model();
    const Json parsed = parse_body(body);
    if (!parsed.is_object()) throw bad_request("the body is " + json_type_name(parsed) + ", expected an object");
    std::vector<int32_t> tokens;
    if (parsed.contains("messages")) {
      tokens = model.chat_prompt(parse_chat_request(body, model.defaults()).template_arguments);
    } else {
      const auto prompt = JsonFields(parsed).text("prompt");
      if (!prompt) throw bad_request("`prompt` or `messages` is missing", "prompt");
      tokens = model.tokenizer().encode_untrusted(*prompt);
    }
    send_json(response, {{"count", tokens.size()}, {"max_model_len", options_.context}, {"tokens", tokens}});
  }

  void detokenize(const std::string& body, Response& response) const {
    const ServedModel& model = ready_model();
    const Json parsed = parse_body(body);
    if (!parsed.is_object()) throw bad_request("the body is " + json_type_name(parsed) + ", expected an object");
    const Json* tokens = JsonFields(parsed).array("tokens");
    if (tokens == nullptr) throw bad_request("`tokens` is missing", "tokens");
    send_json(response, {{"prompt", model.tokenizer().decode(parse_token_ids(*tokens, "tokens"))}});
  }

  ServerOptions options_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  int port_ = 0;
  socket_t listener_ = INVALID_SOCKET;
  std::atomic<int> open_answers_{0};

  mutable std::mutex mutex_;
  Phase phase_ = Phase::loading;
  double progress_ = 0;
  std::string message_;
  ServedModel* model_ = nullptr;

  httplib::Server http_;
  std::thread thread_;
};

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;
int Server::port() const {
  return impl_->port();
}
void Server::set_progress(double progress) {
  impl_->set_progress(progress);
}
void Server::set_ranks(std::function<std::vector<RankStatus>()> ranks) {
  impl_->set_ranks(std::move(ranks));
}
void Server::set_phase(Phase phase, const std::string& message) {
  impl_->set_phase(phase, message);
}
void Server::serve(ServedModel& model) {
  impl_->serve(model);
}
void Server::stop(std::chrono::milliseconds patience) {
  impl_->stop(patience);
}

}  // namespace tandem
