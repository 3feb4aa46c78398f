#pragma once

#include <chrono>
#include <mutex>
#include <ostream>
#include <string>

#include "orchestrator/launch/up.h"

namespace tandem::cli {

struct DisplayOptions {
  bool live = false;   ///< a terminal: one line per stage, rewritten in place
  bool color = false;  ///< repeats what words say already
  bool quiet = false;  ///< nothing at all
  bool show_plan = true;
  int columns = 80;  ///< of the terminal
};

/// Shows the stages of a run, a line each: "[3/7] fetch   downloaded 14.1 MiB  (2.1 s)". What a stage does meanwhile
/// goes to the live line, or, elsewhere, to a plain line now and then.
class StageDisplay : public launch::Observer {
 public:
  StageDisplay(std::ostream& out, DisplayOptions options);
  ~StageDisplay() override;

  void begin(launch::Stage stage) override;
  void progress(const std::string& text, int64_t bytes_done, int64_t bytes_total) override;
  void end(const std::string& summary, bool skipped) override;
  void planned(const Plan& plan) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::string head() const;
  std::string with_rate(const std::string& text, int64_t bytes_done, int64_t bytes_total);
  void clear_line();

  std::ostream& out_;
  DisplayOptions options_;
  std::mutex mutex_;
  launch::Stage stage_ = launch::Stage::recipe;
  Clock::time_point stage_began_, last_shown_;
  std::string last_text_;
  int64_t first_bytes_ = -1;  ///< what was there when this stage's first bytes were told
  Clock::time_point first_bytes_at_;
  bool line_open_ = false;
};

}  // namespace tandem::cli
