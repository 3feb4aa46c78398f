// From checked trees to the typed recipe and cluster, and the rules that concern more than one key.
#include <algorithm>
#include <set>

#include "orchestrator/recipe/layers.h"
#include "orchestrator/recipe/reader.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kFamilies = {"bailing_hybrid"};

class RecipeBuilder {
 public:
  RecipeBuilder(const Value& root, Problems& problems, std::vector<Note>& notes)
      : root_(root), read_(root, Document::recipe), problems_(problems), notes_(notes) {}

  Recipe build() {
    recipe_.name = read_.text("name");
    recipe_.title = read_.text("title");
    recipe_.publisher_name = optional("publisher.name");
    recipe_.publisher_url = optional("publisher.url");
    recipe_.license = read_.text("license");
    recipe_.tensor_parallel = static_cast<int>(read_.integer("parallel.tensor"));
    model();
    pack();
    hardware();
    engine();
    memory();
    health();
    hooks();
    measurements();
    recipe_.notes = read_.texts("notes");
    for (const char* path :
         {"parallel.tensor", "pack", "engine.context", "engine.device", "engine.kv_cache", "engine.program",
          "engine.mtp.depth", "engine.sampling", "engine.loop_guard", "memory.floor", "hooks", "model.name"})
      recipe_.places[path] = read_.where(path);
    check_engine_keys(root_, "");
    return std::move(recipe_);
  }

 private:
  std::string optional(std::string_view path) const { return read_.has(path) ? read_.text(path) : std::string(); }

  void problem(std::string what, std::string_view path, std::string fix) {
    problems_.add(std::move(what), read_.where(path), std::move(fix));
  }

  void model() {
    ModelSection& model = recipe_.model;
    model.name = read_.text("model.name");
    model.family = read_.text("model.family");
    model.base_repo = optional("model.base.repo");
    model.base_revision = optional("model.base.revision");
    model.native_context_tokens = read_.tokens("model.context.native");
    model.maximum_context_tokens = read_.tokens("model.context.maximum");
    if (model.maximum_context_tokens != 0 && model.maximum_context_tokens < model.native_context_tokens)
      problem("model.context.maximum is " + std::to_string(model.maximum_context_tokens) +
                  ", below model.context.native, " + std::to_string(model.native_context_tokens),
              "model.context.maximum", "leave it out when the context cannot be stretched");
  }

  void pack() {
    PackSection& pack = recipe_.pack;
    const Value& value = *read_.find("pack");
    const std::vector<std::string_view> sources = {"repo", "url", "path"};
    const auto given =
        std::count_if(sources.begin(), sources.end(), [&](auto key) { return value.find(key) != nullptr; });
    if (given != 1)
      problem(given == 0 ? "the pack has neither repo nor url nor path"
                         : "the pack has more than one of repo, url and path",
              "pack", "give exactly one of them");
    pack.repo = optional("pack.repo");
    pack.url = optional("pack.url");
    if (const Value* path = read_.find("pack.path")) pack.path = pack_path(*path);
    pack.revision = read_.text("pack.revision");
    pack.format = read_.text("pack.format");
    for (const auto& [key, text] : read_.free_map("pack.bits_per_weight"))
      pack.bits_per_weight[key] = read_.number("pack.bits_per_weight." + key);
    pack.download_bytes = read_.bytes("pack.download.size");
    pack.download_files = static_cast<int>(read_.integer("pack.download.files"));
    const std::string& revision = pack.revision;
    const bool pinned = revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (pack.path.empty() && !pinned)
      notes_.push_back(
          {"the pack is not pinned: `" + revision + "` may be another commit tomorrow; `tandem lock` pins it",
           read_.where("pack.revision"), true});
  }

  static std::string pack_path(const Value& path) {
    fs::path result = path.text;
    if (result.is_relative() && path.layer != Layer::set) result = fs::path(*path.place.file).parent_path() / result;
    return fs::absolute(result).lexically_normal().string();
  }

  void hardware() {
    HardwareSection& hardware = recipe_.hardware;
    hardware.nodes = read_.has("hardware") ? static_cast<int>(read_.integer("hardware.nodes")) : 0;
    hardware.accelerator = read_.text("hardware.node.accelerator");
    if (hardware.accelerator == "none") hardware.accelerator.clear();
    hardware.accelerators = static_cast<int>(read_.integer("hardware.node.accelerators"));
    hardware.node_memory_bytes = read_.bytes("hardware.node.memory");
    hardware.transport = read_.text("hardware.link.transport");
    hardware.min_bandwidth_bits_per_second = read_.bandwidth("hardware.link.min_bandwidth");
    hardware.max_latency = read_.duration("hardware.link.max_latency");
  }

  void engine() {
    EngineSection& engine = recipe_.engine;
    engine.kind = read_.text("engine.kind") == "command" ? EngineKind::command : EngineKind::tandem;
    engine.context_tokens = read_.tokens("engine.context");
    const ModelSection& model = recipe_.model;
    const int64_t longest = model.maximum_context_tokens ? model.maximum_context_tokens : model.native_context_tokens;
    if (longest != 0 && engine.context_tokens > longest)
      problem("engine.context is " + std::to_string(engine.context_tokens) + ", above the model's " +
                  std::to_string(longest),
              "engine.context", "set it to " + std::to_string(longest) + " or less");
    engine.mtp_depth = static_cast<int>(read_.integer("engine.mtp.depth"));
    engine.mtp_adaptive = read_.boolean("engine.mtp.adaptive");
    engine.kv_cache = read_.text("engine.kv_cache");
    engine.slots = static_cast<int>(read_.integer("engine.slots"));
    engine.sampling = {read_.optional_number("engine.sampling.temperature"),
                       read_.optional_number("engine.sampling.top_p"), read_.optional_number("engine.sampling.min_p"),
                       read_.optional_integer("engine.sampling.top_k")};
    engine.loop_guard = read_.boolean("engine.loop_guard");
    engine.device = read_.text("engine.device");
    engine.threads = static_cast<int>(read_.integer("engine.threads"));
    engine.peer_timeout = read_.duration("engine.peer_timeout");
    if (engine.kind == EngineKind::command) {
      command();
      return;
    }
    if (std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end())
      problem("the runtime does not know the model family `" + model.family + "`", "model.family",
              "it knows " + kFamilies.front() + "; other models need engine.kind: command");
    if (recipe_.pack.format != "exl3" && recipe_.pack.format != "safetensors")
      problem("the runtime does not read packs of format `" + recipe_.pack.format + "`", "pack.format",
              "it reads exl3 and safetensors; other formats need engine.kind: command");
  }

  void command() {
    EngineSection& engine = recipe_.engine;
    const int world_size = recipe_.tensor_parallel;
    engine.program = read_.text("engine.program");
    if (engine.program.empty())
      problem("`engine.program` is missing", "engine", "engine.kind: command needs the program's name");
    engine.split = read_.boolean("engine.split");
    engine.ready.path = read_.text("engine.ready.path");
    const bool common = read_.has("engine.argv"), by_rank = read_.has("engine.ranks");
    if (common == by_rank)
      problem(common ? "engine.argv and engine.ranks are both given" : "the engine has no arguments", "engine",
              "give engine.argv for all ranks, or engine.ranks with one item for each");
    CommandRank shared;
    add_variables(read_, "engine.env", shared);
    add_arguments(read_, "engine.argv", shared);
    if (!by_rank) engine.ranks.assign(static_cast<size_t>(world_size), shared);
    for (const Reader& item : read_.items("engine.ranks")) {
      CommandRank rank = shared;
      add_arguments(item, "argv", rank);
      add_variables(item, "env", rank);
      engine.ranks.push_back(std::move(rank));
    }
    if (static_cast<int>(engine.ranks.size()) != world_size)
      problem("engine.ranks describes " + std::to_string(engine.ranks.size()) + " of the ranks, parallel.tensor is " +
                  std::to_string(world_size),
              "engine.ranks", "describe each rank once");
    for (const std::string& rank : read_.texts("engine.start_order")) engine.start_order.push_back(std::stoi(rank));
    const std::set<int> different(engine.start_order.begin(), engine.start_order.end());
    if (!engine.start_order.empty() &&
        (static_cast<int>(engine.start_order.size()) != world_size ||
         static_cast<int>(different.size()) != world_size || *different.rbegin() != world_size - 1))
      problem("engine.start_order does not name each of the " + std::to_string(world_size) + " ranks once",
              "engine.start_order",
              "list the ranks 0 to " + std::to_string(world_size - 1) + " in the order they start");
  }

  static void add_arguments(const Reader& read, std::string_view path, CommandRank& rank) {
    rank.argv = read.texts(path);
    rank.argv_places = read.places(path);
  }

  static void add_variables(const Reader& read, std::string_view path, CommandRank& rank) {
    const Value* variables = read.find(path);
    if (!variables) return;
    const std::vector<std::string> places = read.places(path);
    for (size_t i = 0; i < variables->entries.size(); ++i) {
      rank.env[variables->entries[i].key] = variables->entries[i].value.text;
      rank.env_places[variables->entries[i].key] = places[i];
    }
  }

  void memory() {
    recipe_.memory_floor_bytes = read_.bytes("memory.floor");
    recipe_.resident_bytes = read_.bytes("memory.resident");
    recipe_.rank_floor_bytes.assign(static_cast<size_t>(recipe_.tensor_parallel), recipe_.memory_floor_bytes);
    const std::vector<Reader> ranks = read_.items("memory.ranks");
    if (ranks.size() > recipe_.rank_floor_bytes.size()) {
      problem("memory.ranks has " + std::to_string(ranks.size()) + " items, but parallel.tensor is " +
                  std::to_string(recipe_.tensor_parallel),
              "memory.ranks", "remove the ones too many");
      return;
    }
    for (size_t i = 0; i < ranks.size(); ++i) recipe_.rank_floor_bytes[i] = ranks[i].bytes("floor");
  }

  void health() {
    recipe_.health.load_timeout = read_.duration("health.load_timeout");
    for (const Reader& item : read_.items("health.probes"))
      recipe_.health.probes.push_back(
          {item.text("prompt"), item.tokens("max_tokens"), item.text("expect"), item.boolean("thinking")});
  }

  void hooks() {
    const Value* hooks = read_.find("hooks");
    if (!hooks) return;
    for (const Entry& event : hooks->entries)
      for (const Reader& item : read_.items("hooks." + event.key))
        recipe_.hooks.push_back(
            {event.key, item.text("name"), item.duration("timeout"), item.text("on") == "nodes", item.where("name")});
  }

  void measurements() {
    for (const Reader& item : read_.items("measurements")) {
      Measurement m;
      m.metric = item.text("metric");
      m.unit = item.text("unit");
      m.condition = item.text("condition");
      m.kind = item.text("kind");
      m.source = item.text("source");
      m.date = item.text("date");
      m.value = item.optional_number("value");
      m.requests = item.optional_integer("requests");
      if (item.has("prompt_tokens")) m.prompt_tokens = item.tokens("prompt_tokens");
      if (const std::vector<std::string> range = item.texts("range"); range.size() == 2) {
        m.low = std::stod(range[0]);
        m.high = std::stod(range[1]);
        const double value = m.value.value_or(*m.low);
        if (value < *m.low || value > *m.high || *m.low > *m.high)
          problems_.add("the range does not go from low to high around the value", item.where("range"),
                        "write the lowest, then the highest value");
      } else if (!m.value) {
        problems_.add("the measurement of `" + m.metric + "` has neither value nor range", item.where("metric"),
                      "add `value`");
      }
      recipe_.measurements.push_back(std::move(m));
    }
  }

  /// A key of the other kind of engine would do nothing, and its author would believe it did.
  void check_engine_keys(const Value& value, const std::string& path) {
    for (const Entry& entry : value.entries) {
      const std::string below = path.empty() ? entry.key : path + "." + entry.key;
      const Field* field = find_field(Document::recipe, below);
      const ForEngine kind = recipe_.engine.kind == EngineKind::command ? ForEngine::command : ForEngine::tandem;
      if (field->engine != ForEngine::any && field->engine != kind) {
        problems_.add(
            "`" + below + "` has no effect with engine.kind: " + (kind == ForEngine::command ? "command" : "tandem"),
            entry.place.text(below), "remove it, or change engine.kind");
      } else if (entry.value.kind == Value::Kind::map) {
        check_engine_keys(entry.value, below);
      }
    }
  }

  const Value& root_;
  Reader read_;
  Problems& problems_;
  std::vector<Note>& notes_;
  Recipe recipe_;
};

}  // namespace

Recipe build_recipe(const Layers& layers, Problems& problems, std::vector<Note>& notes) {
  return RecipeBuilder(layers.recipe, problems, notes).build();
}

Cluster build_cluster(const Layers& layers, Problems& problems) {
  const Reader read(layers.cluster, Document::cluster);
  Cluster cluster;
  cluster.name = read.text("name");
  cluster.is_default = layers.default_cluster && layers.cluster.find("nodes")->layer != Layer::set;
  cluster.listen_address = read.text("listen");
  cluster.http_port = static_cast<int>(read.integer("ports.http"));
  cluster.rendezvous_port = static_cast<int>(read.integer("ports.rendezvous"));
  if (cluster.http_port != 0 && cluster.http_port == cluster.rendezvous_port)
    problems.add("ports.http and ports.rendezvous are both " + std::to_string(cluster.http_port),
                 read.where("ports.rendezvous"), "choose two different ports");
  cluster.hub_endpoint = read.text("hub.endpoint");
  cluster.programs = read.free_map("programs");
  cluster.env = read.free_map("env");
  std::set<std::string> names;
  for (const Reader& item : read.items("nodes")) {
    ClusterNode node;
    node.name = item.text("name");
    node.address = item.text("address");
    node.link_address = item.has("link_address") ? item.text("link_address") : node.address;
    node.user = item.text("user");
    node.ssh_port = static_cast<int>(item.integer("port"));
    node.hub_cache = item.text("folders.hub");
    node.ranks_folder = item.text("folders.ranks");
    node.state_folder = item.text("folders.state");
    node.devices = item.texts("devices");
    if (!names.insert(node.name).second)
      problems.add("two machines are called `" + node.name + "`", item.where("name"), "give each a name of its own");
    cluster.nodes.push_back(std::move(node));
  }
  return cluster;
}

}  // namespace tandem
