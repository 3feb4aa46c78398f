#pragma once

#include <cstdint>
#include <span>

namespace tandem {

/// One token sequence of a model, as the engine sees it. The seam between the request loop and the ranks: tests put a
/// scripted model here.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  virtual int64_t vocab_size() const = 0;  ///< width of a row of logits
  virtual int64_t context() const = 0;     ///< most tokens of the sequence
  virtual int64_t prefill_chunk() const = 0;

  /// Back to the empty sequence.
  virtual void clear() = 0;
  /// Appends up to prefill_chunk() tokens of a prompt.
  virtual void prefill(std::span<const int32_t> tokens) = 0;
  /// Appends one token of an answer.
  virtual void decode(int32_t token) = 0;
  /// After prefill or decode: what follows the last token.
  /// @param logits  (vocab_size())
  virtual void logits(std::span<float> logits) = 0;
  /// The most likely token, the lowest id on ties; the same as argmax of logits(), with less to exchange.
  /// @throws BadLogits  when the model computed values that are not numbers
  virtual int32_t argmax() = 0;

  /// Called now and then while there is nothing to do: proof of life for the other ranks.
  virtual void idle() = 0;
  /// Ends the other ranks' loops. Nothing may be called afterwards.
  virtual void stop() = 0;
};

}  // namespace tandem
