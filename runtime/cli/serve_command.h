#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/cli/model_flags.h"

namespace tandem {

struct ServeFlags {
  ModelFlags model;
  std::string listen = "127.0.0.1:8000";  ///< rank 0; port 0 takes any
  std::string model_name;                 ///< "" names the model after the pack's folder
  int64_t context = 0;                    ///< 0: the model's native window
  int mtp_depth = 0;
  int slots = 1;
  int64_t queue = 16;
  std::string memory_floor = "0";
  int memory_patience_seconds = 10;
  std::string meminfo = "/proc/meminfo";
  int stall_timeout_seconds = 300;
  // Sampling of requests that do not say; what is not given comes from the pack.
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
};

void add_serve_flags(CLI::App& command, ServeFlags& flags);

/// Serves until SIGTERM or SIGINT, on any rank; all ranks then end in good order.
/// @throws Error  kind `peer_lost`, `memory`, or what loading met; open streams have got it by then
void run_serve(const ServeFlags& flags);

}  // namespace tandem
