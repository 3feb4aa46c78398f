#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

// The recipe and the cluster as typed values: everything checked, defaults filled in. load.h makes them from files,
// fields.h says which key of the YAML each member comes from, and recipes/reference.yaml explains every key.
// Optional members are those whose absence means something; the rest have the table's defaults.

/// One place of a value that someone wrote, for errors found after parsing ("recipes/x.yaml:14:20 (engine.context)").
using Where = std::string;

struct ModelSection {
  std::string name;                      ///< the id that /v1/models shows; starts with a letter or digit
  std::string family;                    ///< "bailing_hybrid"; any text for engine.kind: command
  std::string base_repo, base_revision;  ///< the unquantized model; informative, may be empty
  int64_t native_context_tokens = 0;     ///< 0: not stated
  int64_t maximum_context_tokens = 0;    ///< 0: not stated, the native one
};

struct PackSection {
  // Exactly one of the three is set.
  std::string repo;      ///< "org/name" on the hub
  std::string url;       ///< "https://host[:port]/org/name": that repository on that server
  std::string path;      ///< absolute folder on this machine (a relative one was resolved against its file)
  std::string revision;  ///< branch, tag or commit; "main" when not given; unused with `path`
  std::string format;    ///< "exl3", "safetensors", "gguf", ...
  /// Bits a weight by component, e.g. {"routed_experts", 3.0}; "average" among them. May be empty.
  std::map<std::string, double> bits_per_weight;
  int64_t download_bytes = 0;  ///< as published; 0: not stated
  int download_files = 0;
};

struct HardwareSection {
  int nodes = 0;            ///< 0: not stated
  std::string accelerator;  ///< "GB10"; "" or "none": CPUs
  int accelerators = 0;     ///< per node
  int64_t node_memory_bytes = 0;
  std::string transport;                      ///< "any", "tcp" or "roce"
  int64_t min_bandwidth_bits_per_second = 0;  ///< 0: no demand
  std::chrono::nanoseconds max_latency{0};    ///< 0: no demand
};

enum class EngineKind { tandem, command };

struct ReadySection {
  std::string path = "/health";  ///< GET on the HTTP port of rank 0: 200 means ready
};

/// What one rank of a foreign engine runs with, placeholders unresolved. Never passed to a shell.
struct CommandRank {
  std::vector<std::string> argv;   ///< arguments after the program
  std::vector<Where> argv_places;  ///< one per argument
  std::map<std::string, std::string> env;
  std::map<std::string, Where> env_places;
};

struct SamplingSection {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
};

struct EngineSection {
  EngineKind kind = EngineKind::tandem;
  int64_t context_tokens = 0;  ///< per conversation
  int mtp_depth = 0;           ///< drafted tokens a round; 0: serial decoding
  bool mtp_adaptive = false;
  std::string kv_cache;      ///< "fp32" or "bf16"
  int slots = 1;             ///< conversations held at once
  SamplingSection sampling;  ///< for requests that say nothing
  bool loop_guard = false;
  std::string device;  ///< "auto", "cpu" or "cuda"
  int threads = 0;     ///< per rank; 0: the node's cores divided by its ranks
  std::chrono::nanoseconds peer_timeout{0};

  // kind: command
  std::string program;             ///< a name, which the cluster's `programs` turns into an absolute path
  bool split = false;              ///< give each rank its own rank folder instead of the whole pack
  std::vector<CommandRank> ranks;  ///< one per rank once loaded
  ReadySection ready;
  std::vector<int> start_order;  ///< ranks in the order they start; empty: all at once
};

struct Probe {
  std::string prompt;
  int64_t max_tokens = 0;
  std::string expect;  ///< the answer must contain this; "": any sound text will do
  bool thinking = false;
};

struct HealthSection {
  std::chrono::nanoseconds load_timeout{0};
  std::vector<Probe> probes;
};

struct Hook {
  std::string event;  ///< "pre_launch", ...
  std::string name;   ///< of a shipped hook
  std::chrono::nanoseconds timeout{0};
  bool on_nodes = false;  ///< false: once, on the controller
  Where where;
};

/// A published or measured number. There is none without its condition and source.
struct Measurement {
  std::string metric, unit, condition, kind, source, date;
  std::optional<double> value, low, high;  ///< value, or both ends of a range, or all three
  std::optional<int64_t> requests, prompt_tokens;
};

struct Recipe {
  std::string name, title, publisher_name, publisher_url, license;
  ModelSection model;
  PackSection pack;
  HardwareSection hardware;
  int tensor_parallel = 1;  ///< the world size: one rank each
  EngineSection engine;
  int64_t memory_floor_bytes = 0;         ///< free memory every node keeps while serving
  std::vector<int64_t> rank_floor_bytes;  ///< one per rank; memory_floor_bytes unless overridden
  int64_t resident_bytes = 0;             ///< memory.resident: what one rank of a foreign engine takes; 0: unknown
  HealthSection health;
  std::vector<Hook> hooks;
  std::vector<Measurement> measurements;
  std::vector<std::string> notes;

  std::map<std::string, Where> places;  ///< of the keys that reasons of a blocked plan name
  Where where(const std::string& path) const {
    const auto it = places.find(path);
    return it == places.end() ? path : it->second;
  }
};

struct ClusterNode {
  std::string name;          ///< "local" on the default cluster
  std::string address;       ///< how the controller reaches it; "127.0.0.1": this machine
  std::string link_address;  ///< the ranks' own network; `address` unless given
  std::string user;          ///< "" : the current one
  int ssh_port = 22;
  // Folders, absolute; "" means the program's default (docs/design.md section 6).
  std::string hub_cache, ranks_folder, state_folder;
  std::vector<std::string> devices;  ///< the ones ranks may use, "cpu", "cuda:0"; empty: all it has
};

struct Cluster {
  std::string name;
  std::vector<ClusterNode> nodes;               ///< never empty
  bool is_default = false;                      ///< no cluster file was given: this machine
  std::string listen_address;                   ///< where rank 0 serves HTTP
  int http_port = 0;                            ///< 0: the plan picks a free one from 8000 up
  int rendezvous_port = 0;                      ///< 0: the plan picks a free one from 29500 up
  std::string hub_endpoint;                     ///< "": HF_ENDPOINT, else the public hub
  std::map<std::string, std::string> programs;  ///< engine.program -> absolute path
  std::map<std::string, std::string> env;       ///< for every rank; the owner's, any name
};

}  // namespace tandem
