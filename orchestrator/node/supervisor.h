#pragma once

#include <filesystem>
#include <string>

namespace tandem::node {

/// `tandem node supervise`: runs one rank until it ends or is asked to end.
///
/// Forks, so that the caller's process returns at once, and goes on in a session of its own. The first line on stdout,
/// written before the caller's process returns, is {"supervisor": {...}} once the rank's program runs, or
/// {"error": {...}} when it could not be started.
///
/// The supervisor owns the rank's process group, its log files, its memory guard and its restarts, and writes what
/// happens into the rank's state file (rank_state.h). Signals to it: SIGTERM ends the rank (SIGTERM, a grace time,
/// SIGKILL to the whole group, then to whatever the rank's processes left elsewhere); SIGUSR1 says that the job is
/// ready, which releases the lease and allows restarts. When it is killed itself, the kernel kills the rank.
/// @return the exit code of this process
int run_supervisor(const std::filesystem::path& job_folder, int rank);

/// Kills every process that carries a rank's token and waits until they are gone.
/// @return the number of processes that would not go
int sweep_processes(const std::string& token);

}  // namespace tandem::node
