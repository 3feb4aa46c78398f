#include "orchestrator/launch/up.h"

#include <optional>

#include "orchestrator/launch/job_record.h"
#include "orchestrator/launch/run.h"
#include "orchestrator/node/rank_state.h"
#include "runtime/common/error.h"

namespace tandem::launch {
namespace {

std::string join(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += (text.empty() ? "" : "; ") + sentence;
  return text;
}

/// The error that ended a run, with what the clean-up achieved.
Error after_clean_up(const Error& error, Run& run) {
  // What breaks while the user is already stopping the run is an echo of that: a probe whose peer just went, say.
  const bool interrupted = run.stop_requested() || error.kind() == ErrorKind::interrupted;
  const ErrorKind kind = interrupted ? ErrorKind::interrupted : error.kind();
  std::vector<std::string> left;
  try {
    left = run.clean_up(/*remove_logs=*/interrupted);
  } catch (const Error& e) {
    left.push_back(std::string("cleaning up failed: ") + e.what());
  }
  if (!left.empty())
    return Error(kind, std::string(error.what()) + "; left behind: " + join(left), error.where(),
                 "tandem down " + run.name());
  if (!interrupted) return error;
  return Error(ErrorKind::interrupted, "interrupted during " + run.stage_text(), "",
               run.started() ? "everything that was started is stopped; downloads and rank folders are kept"
                             : "nothing was started; what was downloaded or written is kept, and the next run goes on "
                               "from there");
}

}  // namespace

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::recipe:
      return "recipe";
    case Stage::plan:
      return "plan";
    case Stage::fetch:
      return "fetch";
    case Stage::split:
      return "split";
    case Stage::link:
      return "link";
    case Stage::launch:
      return "launch";
    case Stage::health:
      return "health";
  }
  return "";
}

std::string reachable_address(const std::string& address) {
  if (address.empty() || address == "0.0.0.0") return "127.0.0.1";
  return address == "::" ? "::1" : address;
}

UpResult up(const LoadOptions& options, Observer& observer, std::stop_token stop, const Connect& connect) {
  Run run(options, /*verify=*/false, observer, stop, connect);
  std::optional<JobLock> lock;
  try {
    run.read_recipe();
    lock.emplace(node::default_state_folder(), run.name(), "up");
    run.make_plan();
    if (run.serves_already()) {
      run.check_that_it_serves();
      return run.result(/*already_up=*/true);
    }
    run.refuse_other_settings();
    run.fetch();
    run.split();
    run.verify_link();
    run.launch();
    run.check_health();
    return run.result(/*already_up=*/false);
  } catch (const Error& e) {
    throw after_clean_up(e, run);
  }
}

StageResult run_until(Stage last, const LoadOptions& options, bool verify, Observer& observer, std::stop_token stop,
                      const Connect& connect) {
  Run run(options, verify, observer, stop, connect);
  try {
    run.read_recipe();
    run.make_plan();
    if (last == Stage::link) {
      run.verify_link();  // needs no pack
      return run.stage_result();
    }
    run.fetch();
    if (last == Stage::split) run.split();
    return run.stage_result();
  } catch (const Error& e) {
    throw after_clean_up(e, run);
  }
}

}  // namespace tandem::launch
