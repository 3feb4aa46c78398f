#include "runtime/engine/engine.h"

#include <algorithm>

#include "runtime/common/log.h"

namespace tandem {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::string_view outcome_name(const GenerationResult& result) {
  switch (result.detail) {
    case FinishDetail::stop_token:
      return "stop_token";
    case FinishDetail::stop_string:
      return "stop_string";
    case FinishDetail::max_tokens:
      return "max_tokens";
  }
  return "";
}

GenerationFailure failure_of(const Error& error) {
  return {error.kind() == ErrorKind::interrupted ? "server_shutdown" : "engine_failure", error.what()};
}

Error shutdown_error() {
  return Error(ErrorKind::interrupted, "the server is shutting down");
}

/// Ends generate() without a result: the client went away, or the engine stops.
struct BrokenOff {};

}  // namespace

Engine::Engine(TokenModel& model, const Tokenizer& tokenizer, EngineOptions options)
    : model_(model),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      allowed_(static_cast<size_t>(model.vocab_size())),
      logits_(static_cast<size_t>(model.vocab_size())) {
  // A head is often padded to more rows than the tokenizer has words.
  for (size_t id = 0; id < allowed_.size(); ++id)
    allowed_[id] = !tokenizer.token_bytes(static_cast<int32_t>(id)).empty();
}

std::shared_ptr<Generation> Engine::submit(GenerationRequest request) {
  const auto generation = std::make_shared<Generation>(std::move(request));
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
    if (stop_) throw shutdown_error();
    std::erase_if(waiting_, [](const auto& other) { return other->cancelled(); });
    const auto waiting = static_cast<int64_t>(waiting_.size());
    if (waiting >= options_.max_waiting + (running_ ? 0 : 1)) return nullptr;
    waiting_.push_back(generation);
  }
  changed_.notify_all();
  return generation;
}

std::shared_ptr<Generation> Engine::next() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      running_ = nullptr;
      step_began_ = {};
      tokens_in_sequence_ = 0;
      changed_.wait_for(lock, options_.idle_interval, [&] { return stop_ || failure_ || !waiting_.empty(); });
      if (stop_ || failure_) return nullptr;
      if (!waiting_.empty()) {
        running_ = waiting_.front();
        waiting_.pop_front();
        step_began_ = Clock::now();
        return running_;
      }
    }
    model_.idle();
  }
}

void Engine::run() {
  try {
    while (const auto generation = next()) serve(generation);
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw *failure_;
    }
    end_all(failure_of(shutdown_error()));
    model_.stop();
  } catch (const Error& error) {
    fail(error);
    throw;
  } catch (const std::exception& error) {
    const Error wrapped(ErrorKind::internal, error.what());
    fail(wrapped);
    throw wrapped;
  }
}

void Engine::serve(const std::shared_ptr<Generation>& generation) {
  const GenerationRequest& request = generation->request();
  try {
    const GenerationResult result = generate(*generation);
    ++(result.reason == FinishReason::stop ? metrics_.finished_stop : metrics_.finished_length);
    metrics_.request_seconds.observe(seconds(Clock::now() - generation->submitted()));
    log_info("request done", {{"id", request.id},
                              {"outcome", outcome_name(result)},
                              {"prompt_tokens", result.prompt_tokens},
                              {"completion_tokens", result.completion_tokens},
                              {"queued_s", seconds(result.times.queued)},
                              {"prefill_s", seconds(result.times.prefill)},
                              {"decode_s", seconds(result.times.decode)}});
    generation->push(result);
  } catch (const BrokenOff&) {
    if (stopping()) {
      generation->push(failure_of(shutdown_error()));
      log_info("request ended by shutdown", {{"id", request.id}});
    } else {
      ++metrics_.cancelled;
      log_info("request cancelled by client", {{"id", request.id}});
    }
  } catch (const BadLogits& error) {
    ++metrics_.failed;
    log_error("request failed", {{"id", request.id}, {"reason", error.what()}});
    generation->push(failure_of(error));
  }
}

GenerationResult Engine::generate(Generation& generation) {
  const GenerationRequest& request = generation.request();
  const std::vector<int32_t>& prompt = request.prompt;
  Sampler sampler(request.sampling, prompt, allowed_);
  AnswerText text(tokenizer_, request.text);
  GenerationResult result;
  const auto began = Clock::now();
  result.times.queued = began - generation.submitted();
  metrics_.queue_seconds.observe(seconds(result.times.queued));

  const auto next_step = [&] {
    touch();
    if (generation.cancelled() || stopping()) throw BrokenOff{};
  };

  next_step();
  model_.clear();
  const auto chunk = static_cast<size_t>(model_.prefill_chunk());
  for (size_t at = 0; at < prompt.size(); at += chunk) {
    next_step();
    const auto part = std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at));
    model_.prefill(part);
    metrics_.prompt_tokens += static_cast<int64_t>(part.size());
    result.prompt_tokens += static_cast<int64_t>(part.size());
    const std::lock_guard lock(mutex_);
    tokens_in_sequence_ = result.prompt_tokens;
  }

  Clock::time_point first_token, last_token = Clock::now();
  const auto finish = [&](FinishReason reason, FinishDetail detail) {
    if (auto rest = text.finish(); !rest.empty()) generation.push(std::move(rest));
    result.reason = reason;
    result.detail = detail;
    result.stop_string = text.stopped_by().value_or("");
    result.times.decode = last_token - first_token;
    return result;
  };
  while (true) {
    next_step();
    const int32_t token = choose(sampler, result.prompt_tokens + result.completion_tokens);
    const auto now = Clock::now();
    if (result.completion_tokens == 0) {
      first_token = now;
      result.times.prefill = now - began;
      metrics_.time_to_first_token_seconds.observe(seconds(now - generation.submitted()));
    } else {
      metrics_.inter_token_seconds.observe(seconds(now - last_token));
    }
    last_token = now;
    ++result.completion_tokens;
    ++metrics_.generation_tokens;
    if (text.thinking()) ++result.reasoning_tokens;

    if ((!request.ignore_eos && contains(options_.end_token_ids, token)) || contains(request.stop_token_ids, token))
      return finish(FinishReason::stop, FinishDetail::stop_token);
    sampler.accept(token);
    if (auto delta = text.push(token); !delta.empty()) generation.push(std::move(delta));
    if (text.stopped_by()) return finish(FinishReason::stop, FinishDetail::stop_string);
    if (result.completion_tokens >= request.max_tokens) return finish(FinishReason::length, FinishDetail::max_tokens);

    next_step();
    model_.decode(token);
    const std::lock_guard lock(mutex_);
    tokens_in_sequence_ = result.prompt_tokens + result.completion_tokens;
  }
}

int32_t Engine::choose(Sampler& sampler, int64_t position) {
  if (sampler.parameters().is_argmax()) {
    const int32_t token = model_.argmax();
    if (token >= 0 && token < model_.vocab_size() && allowed_[static_cast<size_t>(token)]) return token;
  }
  model_.logits(logits_);
  return sampler.sample(logits_, position);
}

GenerationResult Engine::warm_up(const std::vector<int32_t>& prompt, int64_t tokens) {
  GenerationRequest request;
  request.id = "warm-up";
  request.prompt = prompt;
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  // A bias of nothing takes the path over whole logits, where each is checked.
  request.sampling.logit_bias = {{0, 0.0}};
  Generation generation(std::move(request));
  try {
    return generate(generation);
  } catch (const BrokenOff&) {
    throw shutdown_error();
  }
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

void Engine::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  end_all(failure_of(error));
  changed_.notify_all();
}

void Engine::end_all(const GenerationFailure& failure) {
  std::deque<std::shared_ptr<Generation>> open;
  {
    const std::lock_guard lock(mutex_);
    open.swap(waiting_);
    if (running_) open.push_back(running_);
  }
  for (const auto& generation : open) generation->push(failure);
  metrics_.failed += static_cast<int64_t>(open.size());
}

bool Engine::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_ || failure_;
}

void Engine::touch() {
  const std::lock_guard lock(mutex_);
  step_began_ = Clock::now();
}

EngineStatus Engine::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status;
  status.running = running_ ? 1 : 0;
  for (const auto& generation : waiting_) status.waiting += generation->cancelled() ? 0 : 1;
  status.tokens_in_sequence = tokens_in_sequence_;
  if (running_) status.step_age = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - step_began_);
  return status;
}

}  // namespace tandem
