#include "runtime/pack/ling_pack.h"

#include <cstring>
#include <optional>
#include <set>

#include "orchestrator/split/split.h"
#include "runtime/comm/communicator.h"
#include "runtime/common/error.h"
#include "runtime/common/family.h"
#include "runtime/model/model.h"
#include "runtime/pack/weight_reader.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/runtime/pack/edited_pack.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::EditedPack;
using test::EditedTensor;
using test::TemporaryFolder;

const fs::path kPacks = fs::path(TANDEM_SOURCE_DIR) / "examples" / "packs";
const fs::path kPack = kPacks / "ling-tiny-exl3-3.12bpw";

std::string refusal(const LingPackOptions& options) {
  try {
    LingPack::load(options);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::pack);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "no error";
}

std::string refusal_of(const std::function<void(EditedPack&)>& edit) {
  static const EditedPack original(kPack);
  TemporaryFolder folder;
  EditedPack pack = original;
  edit(pack);
  pack.write(folder.path());
  return refusal({.folder = folder.path()});
}

void check_mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    CAPTURE(text, part);
    CHECK(text.find(part) != std::string::npos);
  }
}

std::vector<float> logits_of(const fs::path& folder) {
  const std::unique_ptr<Communicator> communicator = make_local_communicator();
  const std::unique_ptr<Model> model = Model::load({.folder = folder, .context = 64}, *communicator);
  const std::unique_ptr<SequenceState> state = model->new_sequence();
  std::vector<float> logits(static_cast<size_t>(model->vocab_size()));
  model->logits(model->prefill(*state, std::vector<int32_t>{2019, 50, 299, 44, 2020, 303, 300, 335}), logits);
  return logits;
}

template <typename T>
std::vector<T> values_of(const EditedTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("a whole pack is used in place, its small tensors converted", "[pack]") {
  std::vector<double> progress;
  const std::unique_ptr<LingPack> pack =
      LingPack::load({.folder = kPack, .progress = [&](double share) { progress.push_back(share); }});
  const LingWeights& weights = pack->weights();
  CHECK(weights.layers.size() == 8);
  CHECK(std::holds_alternative<KdaWeights>(weights.layers[0].attention));
  CHECK(std::holds_alternative<MlaWeights>(weights.layers[3].attention));
  CHECK(std::holds_alternative<DenseMlpWeights>(weights.layers[0].mlp));
  const auto& moe = std::get<MoeWeights>(weights.layers[7].mlp);
  CHECK(moe.experts.size() == 8);
  CHECK(moe.experts_swiglu_limit == 10.0f);
  CHECK(std::get<MoeWeights>(weights.layers[6].mlp).experts_swiglu_limit == 0.0f);
  CHECK(std::get<MoeWeights>(weights.layers[6].mlp).shared_swiglu_limit == 10.0f);
  REQUIRE(weights.mtp);

  const auto& mla = std::get<MlaWeights>(weights.layers[3].attention);
  CHECK(mla.kv_a_proj_with_mqa.out_features == 576);
  CHECK(std::get<Exl3Weight>(mla.kv_a_proj_with_mqa.weight).out_features == 640);
  CHECK(std::get<Exl3Weight>(mla.kv_a_proj_with_mqa.weight).bits == 6);
  CHECK(std::holds_alternative<DenseWeight>(mla.g_proj.weight));

  CHECK(pack->mapped_bytes() > 12'000'000);
  CHECK(pack->copied_bytes() < 400'000);
  CHECK(progress.size() > 500);
  CHECK(std::is_sorted(progress.begin(), progress.end()));
  CHECK(progress.back() == 1.0);
  CHECK(pack->pack_hash() == pack_identity(kPack));
}

TEST_CASE("weights go where a device places them", "[pack]") {
  std::set<const std::byte*> placed;
  std::vector<std::vector<std::byte>> device;
  const std::unique_ptr<LingPack> pack =
      LingPack::load({.folder = kPack, .place = [&](std::span<const std::byte> bytes) {
                        device.emplace_back(bytes.begin(), bytes.end());
                        placed.insert(device.back().data());
                        return static_cast<const std::byte*>(device.back().data());
                      }});
  const LingWeights& weights = pack->weights();
  const auto is_placed = [&](const void* data) { return placed.contains(static_cast<const std::byte*>(data)); };
  CHECK(is_placed(weights.norm));
  CHECK(is_placed(weights.word_embeddings.data));
  CHECK(is_placed(std::get<Exl3Weight>(weights.lm_head.weight).trellis));
  CHECK(is_placed(std::get<Exl3Weight>(weights.lm_head.weight).suh));
  CHECK(pack->mapped_bytes() == 0);
}

TEST_CASE("broken packs are refused in one sentence that names the tensor", "[pack]") {
  check_mentions(refusal_of([](EditedPack& p) { p.take("model.layers.8.enorm.weight"); }), {"model.layers.8.enorm"});
  check_mentions(refusal_of([](EditedPack& p) { p.take("model.layers.3.mlp.experts.5.down_proj.trellis"); }),
                 {"model.layers.3.mlp.experts.5.down_proj"});
  check_mentions(refusal_of([](EditedPack& p) { p.take("model.layers.8.eh_proj.svh"); }),
                 {"model.layers.8.eh_proj", "svh"});
  check_mentions(refusal_of([](EditedPack& p) {
                   EditedTensor& norm = p.at("model.norm.weight");
                   norm.info.shape = {255};
                   norm.bytes.resize(510);
                 }),
                 {"model.norm", "[255]", "[256]"});
  check_mentions(refusal_of([](EditedPack& p) {
                   EditedTensor& trellis = p.at("lm_head.trellis");
                   trellis.info.shape = {16, 64, 192};
                 }),
                 {"lm_head"});
  check_mentions(refusal_of([](EditedPack& p) {
                   EditedTensor& trellis = p.at("model.layers.8.eh_proj.trellis");
                   trellis.info.shape = {32, 16, 33};
                   trellis.bytes.resize(32 * 16 * 33 * 2);
                 }),
                 {"model.layers.8.eh_proj", "33"});
  check_mentions(
      refusal_of([](EditedPack& p) { p.add("lm_head.mcg", DType::i32, {}, bytes_of<uint32_t>({0xCBAC1FED})); }),
      {"lm_head", "mcg", "mul1"});
  check_mentions(refusal_of([](EditedPack& p) { p.at("lm_head.mul1").bytes = bytes_of<uint32_t>({0x83DCD12E}); }),
                 {"lm_head", "2212286766", "2212286765"});
  check_mentions(refusal_of([](EditedPack& p) {
                   EditedTensor& norm = p.at("model.norm.weight");
                   norm.info.dtype = DType::i16;
                 }),
                 {"model.norm", "I16"});
  // Legal in the format, but no kernel computes it.
  check_mentions(refusal_of([](EditedPack& p) {
                   EditedTensor& trellis = p.at("model.layers.8.eh_proj.trellis");
                   trellis.info.shape = {32, 16, 24};
                   trellis.bytes.resize(32 * 16 * 24 * 2);
                 }),
                 {"model.layers.8.eh_proj", "1.5 bits"});
}

TEST_CASE("other families and unknown switches are refused by name", "[pack]") {
  const auto with_config = [](const std::string& from, const std::string& to) {
    return refusal_of([&](EditedPack& p) {
      const size_t at = p.config.find(from);
      REQUIRE(at != std::string::npos);
      p.config.replace(at, from.size(), to);
    });
  };
  check_mentions(with_config("BailingMoeV3ForCausalLM", "BailingMoeV2_5ForCausalLM"), {"BailingMoeV2_5ForCausalLM"});
  check_mentions(with_config("\"use_nGPT\": false", "\"use_nGPT\": true"), {"use_nGPT"});
  check_mentions(with_config("\"score_function\": \"sigmoid\"", "\"score_function\": \"softmax\""),
                 {"score_function", "softmax"});
  check_mentions(with_config("\"hidden_size\": 256", "\"hidden_size\": 512"), {"256", "512"});
  check_mentions(with_config("\"num_hidden_layers\": 8", "\"num_hidden_layers\": 9"), {"model.layers.9"});
}

TEST_CASE("a folder that is not this rank's is refused by name", "[pack]") {
  CHECK(refusal({.folder = kPack, .rank = 1, .world_size = 2}) ==
        "the folder is a whole pack, but rank 1 of 2 needs a folder cut for it");

  TemporaryFolder ranks;
  const SplitResult split =
      split_pack({.pack_folder = kPack, .ranks_folder = ranks.path(), .world_size = 2, .disk_reserve_bytes = 0});
  const fs::path folder = split.ranks[0].folder;
  CHECK(refusal({.folder = folder, .rank = 0, .world_size = 2}) == "no error");
  check_mentions(refusal({.folder = folder, .rank = 1, .world_size = 2}), {"rank 0", "expected 1"});
  CHECK(refusal({.folder = folder, .rank = 0, .world_size = 1}) != "no error");
  CHECK(refusal({.folder = folder, .rank = 0, .world_size = 4}) != "no error");
  CHECK(pack_identity(folder) == pack_identity(kPack));
}

TEST_CASE("q, k and v stored one by one compute what the fused form computes", "[pack]") {
  EditedPack pack(kPack);
  for (int layer = 0; layer < 8; ++layer) {
    if (layer % 4 == 3) continue;
    const std::string attention = "model.layers." + std::to_string(layer) + ".attention.";
    const auto trellis = values_of<uint16_t>(pack.take(attention + "qkv_proj.trellis"));
    const EditedTensor suh = pack.take(attention + "qkv_proj.suh");
    const auto svh = values_of<uint16_t>(pack.take(attention + "qkv_proj.svh"));
    const EditedTensor marker = pack.take(attention + "qkv_proj.mul1");
    const auto conv = values_of<uint16_t>(pack.take(attention + "conv1d.weight"));
    for (int part = 0; part < 3; ++part) {
      const std::string name = attention + "qkv"[part] + std::string("_proj");
      std::vector<uint16_t> tiles;  // (16, 32, 64) of (16, 96, 64)
      for (int row = 0; row < 16; ++row) {
        const auto begin = trellis.begin() + (row * 96 + part * 32) * 64;
        tiles.insert(tiles.end(), begin, begin + 32 * 64);
      }
      pack.add(name + ".trellis", DType::i16, {16, 32, 64}, bytes_of(tiles));
      pack.add(name + ".suh", DType::f16, {256}, suh.bytes);
      pack.add(name + ".svh", DType::f16, {512},
               bytes_of(std::vector<uint16_t>(svh.begin() + part * 512, svh.begin() + (part + 1) * 512)));
      pack.add(name + ".mul1", DType::i32, {}, marker.bytes);
      pack.add(attention + "qkv"[part] + "_conv1d.weight", DType::f16, {512, 1, 4},
               bytes_of(std::vector<uint16_t>(conv.begin() + part * 2048, conv.begin() + (part + 1) * 2048)));
    }
  }
  TemporaryFolder folder;
  pack.write(folder.path());
  CHECK(logits_of(folder.path()) == logits_of(kPack));
}

TEST_CASE("tensors at odd addresses compute the same", "[pack]") {
  TemporaryFolder folder;
  std::string file = test::read_text(kPack / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  file.insert(8 + length, " ");
  ++length;
  std::memcpy(file.data(), &length, sizeof length);
  test::write_text(folder / "model.safetensors", file);
  test::write_text(folder / "config.json", test::read_text(kPack / "config.json"));
  CHECK(logits_of(folder.path()) == logits_of(kPack));
}

TEST_CASE("a tied head computes logits from the embedding; a stored head wins over the flag", "[pack]") {
  EditedPack pack(kPack);
  const std::string flag = "\"tie_word_embeddings\": false";
  pack.config.replace(pack.config.find(flag), flag.size(), "\"tie_word_embeddings\": true");
  {
    TemporaryFolder folder;
    pack.write(folder.path());
    CHECK(logits_of(folder.path()) == logits_of(kPack));
  }
  for (const char* part : {"trellis", "suh", "svh", "mul1"}) pack.take(std::string("lm_head.") + part);
  TemporaryFolder tied;
  pack.write(tied.path());

  EditedPack copied = pack;
  copied.config = EditedPack(kPack).config;
  const EditedTensor embeddings = pack.at("model.word_embeddings.weight");
  copied.add("lm_head.weight", DType::f16, {2048, 256}, embeddings.bytes);
  TemporaryFolder untied;
  copied.write(untied.path());
  CHECK(logits_of(tied.path()) == logits_of(untied.path()));
}

TEST_CASE("sign words of old packs become factors of plus and minus one", "[pack]") {
  EditedPack edited(kPack);
  edited.take("model.layers.8.eh_proj.suh");
  edited.take("model.layers.8.eh_proj.svh");
  std::vector<uint16_t> su(32, 0);
  su[0] = 0x8001;  // elements 0 and 15
  su[31] = 0x0002;
  edited.add("model.layers.8.eh_proj.su", DType::i16, {32}, bytes_of(su));
  edited.add("model.layers.8.eh_proj.sv", DType::i16, {16}, bytes_of(std::vector<uint16_t>(16, 0xFFFF)));
  edited.add("model.layers.8.eh_proj.bias", DType::f32, {256}, bytes_of(std::vector<float>(256, -0.1f)));
  TemporaryFolder folder;
  edited.write(folder.path());

  const std::unique_ptr<LingPack> pack = LingPack::load({.folder = folder.path()});
  const auto& weight = std::get<Exl3Weight>(pack->weights().mtp->eh_proj.weight);
  constexpr uint16_t kOne = 0x3C00, kMinusOne = 0xBC00;
  CHECK(weight.suh[0] == kMinusOne);
  CHECK(weight.suh[1] == kOne);
  CHECK(weight.suh[15] == kMinusOne);
  CHECK(weight.suh[16] == kOne);
  CHECK(weight.suh[31 * 16 + 1] == kMinusOne);
  CHECK(weight.svh[255] == kMinusOne);
  REQUIRE(weight.bias);
  CHECK(weight.bias[255] == 0xAE66);  // -0.1 in fp16, rounded
}

}  // namespace
}  // namespace tandem
