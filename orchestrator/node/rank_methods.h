#pragma once

#include <string>

#include "orchestrator/node/server.h"

namespace tandem::node {

/// The methods about ranks. Every one takes "state_folder" ("" or absent: this node's default).
///   start   {spec}                     starts one rank; refused when it runs already or a port of it is taken
///           -> {status}
///   keep    {job}                      the job is ready: its ranks outlive this helper, and may be restarted
///           -> {ranks: [status]}
///   stop    {job, remove, remove_logs}   ends all ranks of the job and proves it
///           -> {ranks: [status], processes_left: [{pid, command}], ports_left: [{port, pid, command}], removed}
///   status  {job?}                     -> {jobs: [{job, launch_key, ranks: [status], ports}]}
///   logs    {job, rank?, lines, follow}  events {rank, line}; follow runs until cancelled
///   watch   {job}                      an event {ranks: [status]} at every change; ends when a rank has failed
/// @param executable  for `EXECUTABLE node supervise`; "" = this program
Methods rank_methods(std::string executable = "");

}  // namespace tandem::node
