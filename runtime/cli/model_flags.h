#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/model/model.h"

namespace CLI {
class App;
}

namespace tandem {

/// Flags that all commands share which load a model.
struct ModelFlags {
  std::string pack;
  int rank = 0;
  int world_size = 1;
  std::string rendezvous;
  std::string device = "cpu";
  std::string kv_cache = "fp32";
  int threads = 0;
  int64_t prefill_chunk = 256;
  int peer_timeout_seconds = 8;
};

/// Adds them to a command; `flags` must outlive the parse.
void add_model_flags(CLI::App& command, ModelFlags& flags);

/// What the flags say to Model::load. @throws Error kind `usage` for values that exclude each other
ModelOptions model_options(const ModelFlags& flags, int64_t context);

/// How this rank finds the others, which must have the same pack, version and `settings`. The job's token comes from
/// the environment, TANDEM_JOB_TOKEN, where other users of the machine do not see it.
GroupOptions group_options(const ModelFlags& flags, std::map<std::string, std::string> settings);

/// Joins the other ranks, which must have the same pack, version and `settings`.
std::unique_ptr<Communicator> join_ranks(const ModelFlags& flags, std::map<std::string, std::string> settings,
                                         std::function<bool()> cancelled);

}  // namespace tandem
