#include "tests/runtime/model/golden.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/float_format.h"
#include "orchestrator/split/split.h"
#include "runtime/comm/control_link.h"
#include "runtime/common/error.h"
#include "runtime/common/safetensors.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/text_files.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::vector<T> read_tensor(const std::string& file, const SafetensorsHeader& header, const char* name) {
  const TensorInfo* info = header.find(name);
  REQUIRE(info);
  std::vector<T> values(static_cast<size_t>(info->bytes()) / sizeof(T));
  std::memcpy(values.data(), file.data() + header.data_offset + info->begin, static_cast<size_t>(info->bytes()));
  return values;
}

/// Rank folders of a pack, cut once for all tests of this program.
std::vector<fs::path> rank_folders(const std::string& pack, int world_size) {
  static const TemporaryFolder folder;
  static std::map<std::pair<std::string, int>, std::vector<fs::path>> cut;
  std::vector<fs::path>& folders = cut[{pack, world_size}];
  if (folders.empty()) {
    const SplitResult result = split_pack(
        {.pack_folder = pack, .ranks_folder = folder.path(), .world_size = world_size, .disk_reserve_bytes = 0});
    for (const SplitResult::Rank& rank : result.ranks) folders.push_back(rank.folder);
  }
  return folders;
}

std::string free_rendezvous() {
  const comm::Socket socket = comm::listen_on({"127.0.0.1", 0});
  return "127.0.0.1:" + std::to_string(comm::local_port(socket));
}

}  // namespace

Golden::Golden(const std::string& bits) {
  const fs::path folder = fs::path(TANDEM_TEST_DATA) / "golden";
  const fs::path path = folder / ("golden-" + bits + "bpw.safetensors");
  const SafetensorsHeader header = read_safetensors_header(path);
  const std::string file = read_text(path);
  tokens = read_tensor<int32_t>(file, header, "passage.tokens");
  top_ids = read_tensor<int16_t>(file, header, "passage.top_ids");
  for (const uint16_t half : read_tensor<uint16_t>(file, header, "passage.top_logprobs")) {
    top_logprobs.push_back(fp16_to_float(half));
  }
  logits = read_tensor<float>(file, header, "passage.logits_first_64");
  mtp_logits = read_tensor<float>(file, header, "passage.mtp_logits_first_32");
  token_logprobs = read_tensor<float>(file, header, "passage.token_logprobs");

  for (const nlohmann::json& chat : nlohmann::json::parse(read_text(folder / ("golden-" + bits + "bpw.json")))) {
    chats.push_back({.prompt_tokens = chat.at("prompt_tokens").get<std::vector<int32_t>>(),
                     .greedy_tokens = chat.at("greedy_tokens").get<std::vector<int32_t>>(),
                     .mtp_depth = chat.at("mtp_depth").get<int64_t>(),
                     .rounds = chat.at("rounds").get<int64_t>(),
                     .accepted = chat.at("accepted").get<int64_t>()});
  }
}

std::string example_pack(const std::string& bits) {
  return std::string(TANDEM_SOURCE_DIR) + "/examples/packs/ling-tiny-exl3-" + bits + "bpw";
}

void with_model(const std::string& pack, int world_size, ModelOptions options,
                const std::function<void(Model&, int rank)>& body) {
  // Threads of a team wait for each other: on a machine that other tests keep busy, one is faster than two.
  if (options.threads == 0) options.threads = 1;
  if (world_size == 1) {
    const std::unique_ptr<Communicator> communicator = make_local_communicator();
    options.folder = pack;
    body(*Model::load(options, *communicator), 0);
    return;
  }
  const std::vector<fs::path> folders = rank_folders(pack, world_size);
  const std::string rendezvous = free_rendezvous();
  std::vector<std::string> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        GroupOptions group;
        group.rank = rank;
        group.world_size = world_size;
        group.rendezvous = rendezvous;
        group.peer_timeout = std::chrono::minutes(2);  // sanitizers on a busy machine
        const std::unique_ptr<Communicator> communicator = join_group(group);
        ModelOptions own = options;
        own.folder = folders[static_cast<size_t>(rank)];
        const std::unique_ptr<Model> model = Model::load(own, *communicator);
        body(*model, rank);
        communicator->barrier(std::chrono::minutes(5));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& error : errors) REQUIRE(error == "");
}

std::vector<float> logits_of(Model& model, HiddenRows hidden) {
  std::vector<float> logits(static_cast<size_t>(hidden.rows * model.vocab_size()));
  model.logits(hidden, logits);
  return logits;
}

std::vector<int32_t> generate_serial(Model& model, std::span<const int32_t> prompt, int64_t count) {
  const std::unique_ptr<SequenceState> state = model.new_sequence();
  std::vector<int32_t> tokens = model.argmax(model.prefill(*state, prompt));
  while (static_cast<int64_t>(tokens.size()) < count) {
    tokens.push_back(model.argmax(model.decode(*state, std::span(tokens).last(1))).front());
  }
  return tokens;
}

Drafted generate_drafted(Model& model, std::span<const int32_t> prompt, int64_t count, int64_t depth) {
  const std::unique_ptr<SequenceState> state = model.new_sequence();
  Drafted result;
  std::vector<int32_t>& tokens = result.tokens;

  // The MTP layer reads the prompt along with the trunk; its last row waits for the first token.
  std::vector<int32_t> next(prompt.begin() + 1, prompt.end());
  HiddenRows certain = model.prefill(*state, prompt, [&](int64_t first, HiddenRows hidden) {
    const int64_t rows = std::min(hidden.rows, static_cast<int64_t>(next.size()) - first);
    if (rows > 0) {
      model.mtp_forward(*state, hidden.slice(0, rows),
                        std::span(next).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)));
    }
    return true;
  });
  tokens = model.argmax(certain);
  std::vector<int32_t> certain_next = tokens;

  while (static_cast<int64_t>(tokens.size()) < count) {
    HiddenRows draft_hidden = model.mtp_forward(*state, certain, certain_next).last();
    const int64_t certain_rows = state->mtp_length();
    std::vector<int32_t> block{tokens.back()};
    for (int64_t i = 0; i < depth; ++i) {
      if (i > 0) draft_hidden = model.mtp_forward(*state, draft_hidden, std::span(block).last(1));
      block.push_back(model.argmax(draft_hidden).front());
    }
    model.mtp_truncate(*state, certain_rows);

    const HiddenRows hidden = model.decode(*state, block);
    const std::vector<int32_t> best = model.argmax(hidden);
    size_t accepted = 0;
    while (accepted < static_cast<size_t>(depth) && block[accepted + 1] == best[accepted]) ++accepted;
    const auto keep = static_cast<int64_t>(accepted) + 1;
    model.rollback(*state, keep);
    certain = hidden.slice(0, keep);
    certain_next.assign(best.begin(), best.begin() + keep);
    tokens.insert(tokens.end(), certain_next.begin(), certain_next.end());
    ++result.rounds;
    result.accepted += keep - 1;
  }
  tokens.resize(static_cast<size_t>(count));
  return result;
}

}  // namespace tandem::test
