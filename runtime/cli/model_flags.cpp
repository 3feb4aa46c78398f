#include "runtime/cli/model_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "runtime/cli/version.h"
#include "runtime/common/error.h"
#include "runtime/pack/ling_pack.h"

namespace tandem {

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  command.add_option("--pack", flags.pack, "folder of the pack, or of this rank's part of it")->required();
  command.add_option("--rank", flags.rank, "this rank, from 0")->capture_default_str();
  command.add_option("--world-size", flags.world_size, "how many ranks share the model")->capture_default_str();
  command.add_option("--rendezvous", flags.rendezvous, "HOST:PORT where rank 0 listens and the others join");
  command.add_option("--device", flags.device, "cpu")->capture_default_str();
  command.add_option("--kv-cache", flags.kv_cache, "fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "worker threads; 0: one for each usable core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--prefill-chunk", flags.prefill_chunk, "rows of one prefill pass, a multiple of 64")
      ->capture_default_str();
  command.add_option("--peer-timeout", flags.peer_timeout_seconds, "seconds of silence after which a rank is lost")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
}

ModelOptions model_options(const ModelFlags& flags, int64_t context) {
  if (flags.world_size < 1 || flags.rank < 0 || flags.rank >= flags.world_size) {
    throw Error(ErrorKind::usage,
                "rank " + std::to_string(flags.rank) + " of world size " + std::to_string(flags.world_size) +
                    ", expected a rank from 0 to " + std::to_string(std::max(flags.world_size, 1) - 1),
                "--rank, --world-size");
  }
  if (flags.world_size > 1 && flags.rendezvous.empty()) {
    throw Error(ErrorKind::usage, "world size " + std::to_string(flags.world_size) + " without a rendezvous",
                "--rendezvous", "give all ranks the same --rendezvous HOST:PORT, an address of rank 0");
  }
  ModelOptions options;
  options.folder = flags.pack;
  options.device = flags.device;
  options.context = context;
  options.kv_cache = flags.kv_cache == "bf16" ? KvCacheType::bf16 : KvCacheType::fp32;
  options.threads = flags.threads;
  options.prefill_chunk = flags.prefill_chunk;
  return options;
}

GroupOptions group_options(const ModelFlags& flags, std::map<std::string, std::string> settings) {
  settings["version"] = version();
  settings["pack"] = pack_identity(flags.pack);
  settings["kv-cache"] = flags.kv_cache;
  settings["prefill-chunk"] = std::to_string(flags.prefill_chunk);
  GroupOptions group;
  group.rank = flags.rank;
  group.world_size = flags.world_size;
  group.rendezvous = flags.rendezvous;
  group.settings = std::move(settings);
  group.peer_timeout = std::chrono::seconds(flags.peer_timeout_seconds);
  if (const char* token = std::getenv("TANDEM_JOB_TOKEN")) group.token = token;
  return group;
}

std::unique_ptr<Communicator> join_ranks(const ModelFlags& flags, std::map<std::string, std::string> settings,
                                         std::function<bool()> cancelled) {
  if (flags.world_size == 1) return make_local_communicator();
  GroupOptions group = group_options(flags, std::move(settings));
  group.cancelled = std::move(cancelled);
  return join_group(group);
}

}  // namespace tandem
