#include "runtime/cli/serve_command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>

#include "runtime/cli/serve_control.h"
#include "runtime/cli/version.h"
#include "runtime/comm/control_link.h"
#include "runtime/common/error.h"
#include "runtime/common/ling_config.h"
#include "runtime/common/log.h"
#include "runtime/common/manifest.h"
#include "runtime/common/units.h"
#include "runtime/engine/lockstep.h"
#include "runtime/engine/memory_guard.h"
#include "runtime/server/server.h"

namespace tandem {
namespace {

/// Ranks may load from very different disks; what is wrong with one of them shows by other means.
constexpr std::chrono::hours kLoadTimeout(4);
constexpr std::chrono::milliseconds kLastWords(1000);  // for open streams to tell why they end
constexpr int64_t kWarmUpTokens = 4;

int64_t memory_floor_bytes(const std::string& text) {
  int64_t bytes = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (code == std::errc() && end == text.data() + text.size() && bytes >= 0) return bytes;
  if (const auto with_unit = parse_bytes(text)) return *with_unit;
  throw Error(ErrorKind::usage, "`" + text + "` is no amount of memory", "--memory-floor", "write 2147483648 or 2GiB");
}

/// One rank's life from its flags to its end.
class ServingRank {
 public:
  explicit ServingRank(const ServeFlags& flags)
      : flags_(flags),
        config_(read_ling_config(flags.model.pack)),
        context_(context(flags, config_)),
        guard_({.floor_bytes = memory_floor_bytes(flags.memory_floor),
                .patience = std::chrono::seconds(flags.memory_patience_seconds),
                .meminfo = flags.meminfo,
                .on_breach = [this](const Error& error) { control_.fail(error); }}) {
    note_what_is_not_used();
  }
  ~ServingRank() { control_.watch(static_cast<Server*>(nullptr)); }

  void run() {
    try {
      serve();
    } catch (const Error& error) {
      // What came first is the cause; what the main thread ran into may be its echo.
      const auto failure = control_.failure();
      const Error cause = failure ? *failure : error;
      if (server_) {
        server_->set_phase(Phase::failed, cause.what());
        server_->stop(kLastWords);
      }
      if (failure) throw cause;
      if (error.kind() != ErrorKind::interrupted) throw;
    }
  }

 private:
  static int64_t context(const ServeFlags& flags, const LingConfig& config) {
    return flags.context > 0 ? flags.context : config.max_position_embeddings;
  }

  /// What is wrong with the folder is said at once, not only when all ranks have met.
  void check_folder() const {
    const ModelFlags& model = flags_.model;
    if (!is_rank_folder(model.pack)) return;
    check_manifest(model.pack, read_manifest(model.pack, /*with_tensors=*/false),
                   {.world_size = model.world_size, .rank = model.rank});
  }

  bool is_first() const { return flags_.model.rank == 0; }

  void note_what_is_not_used() const {
    if (flags_.mtp_depth > 0)
      log_warn("drafting is not used when serving yet, tokens are decoded one by one",
               {{"mtp_depth", flags_.mtp_depth}});
    if (flags_.slots > 1)
      log_warn("one request is served at a time, further slots are not used", {{"slots", flags_.slots}});
  }

  void serve() {
    if (is_first()) open_server();
    show("waiting for the other ranks to start");
    const auto communicator = join();
    struct Unwatch {  // control and server outlive the communicator
      ServingRank& rank;
      ~Unwatch() {
        if (rank.server_) rank.server_->set_ranks({});
        rank.control_.watch(static_cast<Communicator*>(nullptr));
      }
    } unwatch{*this};
    control_.watch(communicator.get());
    if (server_) server_->set_ranks([&communicator] { return communicator->ranks(); });

    show("loading weights");
    const auto model = load(*communicator);
    show("waiting for the other ranks to load");
    communicator->barrier(kLoadTimeout);
    control_.throw_if_ending();
    if (is_first())
      answer_requests(*model, *communicator);
    else
      follow(*model, *communicator);
    log_info("stopped");
  }

  void show(const char* what) const {
    if (server_) server_->set_phase(Phase::loading, what);
  }

  void open_server() {
    const comm::Endpoint listen = comm::parse_endpoint(flags_.listen);
    ServerOptions options;
    options.address = listen.host;
    options.port = listen.port;
    options.model_name = flags_.model_name;
    if (options.model_name.empty())
      options.model_name = std::filesystem::absolute(flags_.model.pack).lexically_normal().filename().string();
    options.context = context_;
    options.world_size = flags_.model.world_size;
    options.version = version();
    options.stall_limit = std::chrono::seconds(flags_.stall_timeout_seconds);
    options.memory_is_short = [this] { return guard_.below_floor(); };
    server_ = std::make_unique<Server>(options);
    control_.watch(server_.get());
    log_info("listening",
             {{"address", comm::Endpoint{listen.host, server_->port()}.text()}, {"model", options.model_name}});
  }

  std::unique_ptr<Communicator> join() {
    if (flags_.model.world_size == 1) return make_local_communicator();
    GroupOptions group = group_options(flags_.model, {{"command", "serve"}, {"context", std::to_string(context_)}});
    group.cancelled = [this] { return control_.ending(); };
    group.on_peer_lost = [this](const Error& error) { control_.fail(error); };
    group.on_stop = [this] { control_.stop(); };
    return join_group(group);
  }

  std::unique_ptr<Model> load(Communicator& communicator) {
    const auto begin = std::chrono::steady_clock::now();
    ModelOptions options = model_options(flags_.model, context_);
    options.with_mtp = false;
    options.progress = [this](double progress) {
      control_.throw_if_ending();
      if (server_) server_->set_progress(progress);
    };
    auto model = Model::load(options, communicator);
    const ModelMemory memory = model->memory();
    log_info("model loaded",
             {{"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()},
              {"weights", format_bytes(memory.weights_mapped + memory.weights_copied)},
              {"kv_per_token", format_bytes(memory.kv_per_token)},
              {"context", context_}});
    return model;
  }

  void answer_requests(Model& model, Communicator& communicator) {
    const std::filesystem::path pack = flags_.model.pack;
    const Tokenizer tokenizer = Tokenizer::load(pack);
    std::optional<ChatTemplate> chat;
    try {
      chat.emplace(ChatTemplate::load(pack));
    } catch (const Error& error) {
      log_warn("no chat template, only /v1/completions is answered", {{"reason", error.what()}});
    }
    EndTokens end = read_end_tokens(pack, tokenizer);
    LockstepModel lockstep(model, communicator);
    Engine engine(lockstep, tokenizer, {.max_waiting = flags_.queue, .end_token_ids = end.ids});
    ServedModel served(engine, tokenizer, chat ? &*chat : nullptr, sampling_defaults(), std::move(end));
    struct Unwatch {
      ServeControl& control;
      Server& server;
      ~Unwatch() {
        control.watch(static_cast<Engine*>(nullptr));
        server.stop(kLastWords);  // its handlers use what is about to go
      }
    } unwatch{control_, *server_};
    control_.watch(&engine);

    server_->set_phase(Phase::warming);
    engine.warm_up(warm_up_prompt(served, chat.has_value()), kWarmUpTokens);
    server_->serve(served);
    server_->set_phase(Phase::ready);
    control_.throw_if_ending();
    log_info("ready", {{"world_size", communicator.world_size()}, {"context", context_}});
    engine.run();
  }

  SamplingParameters sampling_defaults() const {
    SamplingParameters sampling = read_sampling_defaults(flags_.model.pack);
    if (flags_.temperature) sampling.temperature = *flags_.temperature;
    if (flags_.top_p) sampling.top_p = *flags_.top_p;
    if (flags_.top_k) sampling.top_k = *flags_.top_k;
    if (flags_.min_p) sampling.min_p = *flags_.min_p;
    return sampling;
  }

  static std::vector<int32_t> warm_up_prompt(const ServedModel& served, bool has_chat) {
    if (!has_chat) return served.tokenizer().encode_untrusted("Hello");
    return served.chat_prompt(
        {{"messages", nlohmann::ordered_json::array({{{"role", "user"}, {"content", "What is 2 + 2?"}}})},
         {"add_generation_prompt", true}});
  }

  const ServeFlags& flags_;
  const LingConfig config_;
  const int64_t context_;
  ServeControl control_;  // the guard speaks to it, the server asks the guard
  MemoryGuard guard_;
  std::unique_ptr<Server> server_;
};

}  // namespace

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  add_model_flags(command, flags.model);
  command.add_option("--listen", flags.listen, "ADDRESS:PORT of the HTTP server (rank 0)")->capture_default_str();
  command.add_option("--model-name", flags.model_name, "name that clients use; default: the pack's folder");
  command.add_option("--context", flags.context, "most tokens of prompt and answer; 0: the model's native window")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  command.add_option("--mtp-depth", flags.mtp_depth, "tokens to draft a step")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command.add_option("--slots", flags.slots, "requests served at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--queue", flags.queue, "requests that may wait")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command
      .add_option("--memory-floor", flags.memory_floor, "memory this machine keeps free, in bytes or as 2GiB; 0: off")
      ->capture_default_str();
  command
      .add_option("--memory-patience", flags.memory_patience_seconds,
                  "seconds below the floor after which this rank ends itself")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  command.add_option("--meminfo", flags.meminfo, "where available memory is read")->capture_default_str();
  command.add_option("--stall-timeout", flags.stall_timeout_seconds, "seconds without progress until /health fails")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  // For requests that do not say; the pack's generation_config.json decides what is not given here either.
  command.add_option("--temperature", flags.temperature, "default of requests; 0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  command.add_option("--top-p", flags.top_p, "default of requests")->check(CLI::Range(0.0, 1.0));
  command.add_option("--top-k", flags.top_k, "default of requests; 0: off")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}));
  command.add_option("--min-p", flags.min_p, "default of requests; 0: off")->check(CLI::Range(0.0, 1.0));
}

void run_serve(const ServeFlags& flags) {
  ServingRank(flags).run();
}

}  // namespace tandem
