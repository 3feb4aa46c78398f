#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/health/judge.h"
#include "orchestrator/recipe/recipe.h"

namespace tandem::health {

/// Rungs from "something runs" to "it answers sensibly". That the processes live is watched elsewhere, all the time.
enum class Rung { port, loading, model, probes, ranks };
std::string_view rung_name(Rung rung);

struct Target {
  std::string address;  ///< to connect to
  int port = 0;
  EngineKind engine = EngineKind::tandem;
  std::string ready_path = "/health";
  std::string model;
  int64_t context_tokens = 0;
  int world_size = 1;
  std::vector<Probe> probes;

  std::chrono::milliseconds load_limit{20 * 60'000};   ///< port and loading together
  std::chrono::milliseconds answer_limit{5 * 60'000};  ///< each probe
  std::chrono::milliseconds ranks_limit{15'000};       ///< until every rank has reported its part in them
};

struct Progress {
  Rung rung = Rung::port;
  double fraction = -1;  ///< of this rung; -1: not known
  std::string text;      ///< "loading", "asking `What is 12 + 30?`"
};

struct Report {
  std::string model;
  int64_t context_tokens = 0;                 ///< 0: the engine does not say
  std::vector<Answer> answers;                ///< one per probe
  std::vector<int64_t> rank_bytes_exchanged;  ///< during the probes, by rank; empty: the engine does not say
};

/// What GET /health of tandem-runtime says (docs/design.md section 7).
struct RuntimeHealth {
  std::string phase;
  double progress = 0;
  std::string model;
  int64_t context_tokens = 0;
  int world_size = 0;
  std::string message;
  struct Rank {
    int rank = 0;
    bool alive = false;
    int64_t bytes_exchanged = 0;
  };
  std::vector<Rank> ranks;
};
/// One look, without waiting for anything. Nothing when it does not answer, or not like tandem-runtime.
std::optional<RuntimeHealth> read_health(const std::string& address, int port, std::chrono::milliseconds limit);

/// Climbs until every probe was answered well.
/// @param on_progress  called from this thread, at every change and about twice a second
/// @throws Error  kind `health`: the rung, how long it waited, and the last thing heard; kind `interrupted`
Report climb(const Target& target, const std::function<void(const Progress&)>& on_progress, std::stop_token stop = {});

}  // namespace tandem::health
