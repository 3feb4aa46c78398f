#pragma once

#include <atomic>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/fabric/link_report.h"
#include "orchestrator/health/ladder.h"
#include "orchestrator/launch/nodes.h"
#include "orchestrator/plan/commands.h"

namespace tandem::launch {

/// The stages of `up`, in running order.
enum class Stage { recipe, plan, fetch, split, link, launch, health };
inline constexpr int kNumStages = 7;
std::string_view stage_name(Stage stage);

/// Hears how a run goes. Called from the thread that runs it, except progress(), which comes from node threads, one
/// call at a time.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin(Stage stage) = 0;
  /// @param bytes_total  0: not known or not about bytes
  virtual void progress(const std::string& text, int64_t bytes_done, int64_t bytes_total) = 0;
  /// @param skipped  it was true already
  virtual void end(const std::string& summary, bool skipped) = 0;
  virtual void planned(const Plan& plan) = 0;
};

struct UpResult {
  Plan plan;
  bool already_up = false;
  std::string endpoint;  ///< "http://127.0.0.1:8000/v1"
  std::vector<fabric::LinkReport> links;
  health::Report health;
};

/// From a recipe to a model that answers. What is true already is skipped; whatever ends it early, an error or an
/// interruption, it stops what it started before it throws, and says what is left.
/// @throws Error
UpResult up(const LoadOptions& options, Observer& observer, std::stop_token stop,
            const Connect& connect = connect_node);

// The stages `fetch`, `split` and `link` by themselves, with the plan before them.
struct StageResult {
  Plan plan;
  std::vector<std::string> folders;       ///< fetch: of the pack, by node; split: of the ranks
  std::vector<fabric::LinkReport> links;  ///< link
};
StageResult run_until(Stage last, const LoadOptions& options, bool verify, Observer& observer, std::stop_token stop,
                      const Connect& connect = connect_node);

/// The address at which a client on this machine reaches a server that listens on `address`.
std::string reachable_address(const std::string& address);

}  // namespace tandem::launch
