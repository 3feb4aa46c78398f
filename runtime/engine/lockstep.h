#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/token_model.h"
#include "runtime/model/model.h"

namespace tandem {

class Communicator;

/// Rank 0's end of a model whose ranks compute in step: every call is first told to the other ranks, with the tokens
/// and the length their sequence must have by now, then computed here as they compute it there.
class LockstepModel final : public TokenModel {
 public:
  /// Both must outlive this.
  LockstepModel(Model& model, Communicator& communicator);
  ~LockstepModel() override;

  int64_t vocab_size() const override { return model_.vocab_size(); }
  int64_t context() const override { return model_.options().context; }
  int64_t prefill_chunk() const override { return model_.options().prefill_chunk; }
  void clear() override;
  void prefill(std::span<const int32_t> tokens) override;
  void decode(int32_t token) override;
  void logits(std::span<float> logits) override;
  int32_t argmax() override;
  void idle() override;
  void stop() override;

 private:
  enum class Step : int32_t;
  struct Command;
  friend void follow(Model& model, Communicator& communicator);

  void tell(Step step, std::span<const int32_t> tokens = {});

  Model& model_;
  Communicator& communicator_;
  std::unique_ptr<SequenceState> state_;
  HiddenRows last_;
  std::vector<float> row_;
  int64_t steps_told_ = 0;
};

/// The loop of every other rank: computes what rank 0 tells it, until it tells to stop.
/// @throws Error  kind `internal`, when the ranks are out of step: a rank that went on would compute garbage;
///                `peer_lost` from the communicator
void follow(Model& model, Communicator& communicator);

}  // namespace tandem
