#include "runtime/engine/generation.h"

namespace tandem {

std::optional<GenerationEvent> Generation::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, patience, [&] { return !events_.empty(); })) return std::nullopt;
  GenerationEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Generation::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

bool Generation::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void Generation::push(GenerationEvent event) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = !std::holds_alternative<AnswerText::Delta>(event);
    events_.push_back(std::move(event));
  }
  changed_.notify_all();
}

}  // namespace tandem
