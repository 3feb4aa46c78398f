#include "runtime/engine/lockstep.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/common/error.h"
#include "runtime/engine/sampler.h"

namespace tandem {

enum class LockstepModel::Step : int32_t { clear = 1, prefill, decode, logits, argmax, idle, stop };

/// What one broadcast carries; the tokens of a prompt's chunk follow in a second one.
struct LockstepModel::Command {
  static constexpr int32_t kMagic = 0x54444D31;  // "TDM1"

  int32_t magic = kMagic;
  Step step{};
  int64_t number = 0;  ///< counts commands: a lost or doubled one shows
  int64_t length = 0;  ///< of the sequence before this step
  int64_t count = 0;   ///< tokens
  int32_t token = 0;   ///< of a decode step
  int32_t reserved = 0;
};

LockstepModel::LockstepModel(Model& model, Communicator& communicator)
    : model_(model), communicator_(communicator), state_(model.new_sequence()) {}

LockstepModel::~LockstepModel() = default;

void LockstepModel::tell(Step step, std::span<const int32_t> tokens) {
  if (communicator_.world_size() == 1) return;
  Command command;
  command.step = step;
  command.number = ++steps_told_;
  command.length = state_->length();
  command.count = static_cast<int64_t>(tokens.size());
  if (step == Step::decode) command.token = tokens.front();
  communicator_.broadcast(0, &command, sizeof command);
  if (step == Step::prefill) {
    std::vector<int32_t> copy(tokens.begin(), tokens.end());
    communicator_.broadcast(0, copy.data(), static_cast<int64_t>(copy.size() * sizeof(int32_t)));
  }
}

void LockstepModel::clear() {
  tell(Step::clear);
  state_->clear();
  last_ = {};
}

void LockstepModel::prefill(std::span<const int32_t> tokens) {
  tell(Step::prefill, tokens);
  last_ = model_.prefill(*state_, tokens).last();
}

void LockstepModel::decode(int32_t token) {
  const std::span<const int32_t> tokens(&token, 1);
  tell(Step::decode, tokens);
  last_ = model_.decode(*state_, tokens).last();
}

void LockstepModel::logits(std::span<float> logits) {
  tell(Step::logits);
  model_.logits(last_, logits);
}

int32_t LockstepModel::argmax() {
  // A row of finite values times finite weights gives logits that compare; a NaN would make any id the winner.
  row_.resize(static_cast<size_t>(model_.hidden_size()));
  model_.copy_to_host(last_, row_);
  if (!std::all_of(row_.begin(), row_.end(), [](float value) { return std::isfinite(value); }))
    throw BadLogits("the model computed a value that is not a number at position " + std::to_string(state_->length()));
  tell(Step::argmax);
  return model_.argmax(last_).front();
}

void LockstepModel::idle() {
  tell(Step::idle);
}

void LockstepModel::stop() {
  tell(Step::stop);
}

void follow(Model& model, Communicator& communicator) {
  using Step = LockstepModel::Step;
  const auto state = model.new_sequence();
  HiddenRows last;
  std::vector<float> logits(static_cast<size_t>(model.vocab_size()));
  std::vector<int32_t> tokens;
  const std::string place = "rank " + std::to_string(communicator.rank());
  for (int64_t number = 1;; ++number) {
    LockstepModel::Command command;
    communicator.broadcast(0, &command, sizeof command);
    if (command.magic != LockstepModel::Command::kMagic || command.number != number || command.count < 0 ||
        command.count > model.options().context)
      throw Error(ErrorKind::internal,
                  "ranks are out of step: rank 0 sent command " + std::to_string(command.number) + ", expected " +
                      std::to_string(number),
                  place, "start all ranks again");
    if (command.step != Step::clear && command.length != state->length())
      throw Error(ErrorKind::internal,
                  "ranks are out of step: rank 0 has " + std::to_string(command.length) + " tokens, this rank has " +
                      std::to_string(state->length()),
                  place, "start all ranks again");
    switch (command.step) {
      case Step::clear:
        state->clear();
        last = {};
        break;
      case Step::prefill:
        tokens.resize(static_cast<size_t>(command.count));
        communicator.broadcast(0, tokens.data(), static_cast<int64_t>(tokens.size() * sizeof(int32_t)));
        last = model.prefill(*state, tokens).last();
        break;
      case Step::decode:
        tokens.assign(1, command.token);
        last = model.decode(*state, tokens).last();
        break;
      case Step::logits:
        model.logits(last, logits);
        break;
      case Step::argmax:
        model.argmax(last);
        break;
      case Step::idle:
        break;
      case Step::stop:
        return;
      default:
        throw Error(
            ErrorKind::internal,
            "rank 0 sent a command this program does not know: " + std::to_string(static_cast<int32_t>(command.step)),
            place, "start all ranks with the same program");
    }
  }
}

}  // namespace tandem
