#include "runtime/common/pack.h"

#include <filesystem>

#include "runtime/common/error.h"
#include "runtime/common/family.h"
#include "runtime/common/shard.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::read_text;
using test::TemporaryFolder;
using test::write_text;

const fs::path kPacks = fs::path(TANDEM_SOURCE_DIR) / "examples" / "packs";
const fs::path kSharded = kPacks / "ling-tiny-exl3-3.64bpw";
const fs::path kSingle = kPacks / "ling-tiny-exl3-3.12bpw";

void write_tensors(const fs::path& path, std::vector<TensorInfo> tensors, std::byte fill = {}) {
  SafetensorsWriter writer(path, std::move(tensors));
  int64_t bytes = 0;
  for (const TensorInfo& t : writer.tensors()) bytes += t.bytes();
  writer.append(std::vector<std::byte>(static_cast<size_t>(bytes), fill));
  writer.finish();
}

std::string refusal(const fs::path& folder) {
  try {
    Pack::open(folder);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::pack);
    return e.what();
  }
  return "";
}

TEST_CASE("a pack finds its tensors over all its files", "[pack]") {
  const Pack pack = Pack::open(kSharded);
  CHECK(pack.files().size() == 3);
  CHECK(pack.tensors().size() == 1109);
  const PackTensor& tensor = pack.at("model.layers.8.eh_proj.trellis");
  CHECK(tensor.info.shape == std::vector<int64_t>{32, 16, 64});
  CHECK(pack.files()[static_cast<size_t>(tensor.file)].name == "model-00003-of-00003.safetensors");
  const auto bytes = pack.data(tensor);
  const std::string file = read_text(kSharded / "model-00003-of-00003.safetensors");
  CHECK(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) ==
        std::string_view(file).substr(static_cast<size_t>(tensor.file_offset), bytes.size()));
  CHECK(pack.find("model.layers.8.eh_proj.weight") == nullptr);
  CHECK_THROWS_AS(pack.at("model.layers.8.eh_proj.weight"), Error);
}

TEST_CASE("EXL3 linears are recognised by their tensors", "[pack]") {
  const Pack pack = Pack::open(kSingle);
  const auto routed = pack.find_exl3("model.layers.1.mlp.experts.0.gate_proj");
  REQUIRE(routed);
  CHECK(routed->bits_per_weight() == 2);
  CHECK(routed->codebook == Codebook::mul1);
  CHECK(routed->in_features == 256);
  CHECK(routed->out_features == 256);
  CHECK(pack.find_exl3("model.layers.3.attention.kv_a_proj_with_mqa")->out_features == 640);
  CHECK_FALSE(pack.find_exl3("model.layers.3.attention.kv_b_proj"));
  CHECK_FALSE(pack.find_exl3("no.such.module"));
}

TEST_CASE("broken EXL3 linears are refused with the module's name", "[pack]") {
  const auto refusal_of = [](const std::vector<TensorInfo>& tensors, std::byte fill = {}) -> std::string {
    TemporaryFolder temp;
    write_text(temp / "config.json", "{}");
    write_tensors(temp / "model.safetensors", tensors, fill);
    const Pack pack = Pack::open(temp.path());
    try {
      pack.find_exl3("m");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::pack);
      return e.what();
    }
    return "";
  };
  const auto trellis = [](std::vector<int64_t> shape) {
    return TensorInfo{.name = "m.trellis", .dtype = DType::i16, .shape = std::move(shape)};
  };
  const TensorInfo suh{.name = "m.suh", .dtype = DType::f16, .shape = {128}};
  const TensorInfo svh{.name = "m.svh", .dtype = DType::f16, .shape = {256}};
  const TensorInfo mcg{.name = "m.mcg", .dtype = DType::i32, .shape = {}};
  const TensorInfo mul1{.name = "m.mul1", .dtype = DType::i32, .shape = {}};
  CHECK(refusal_of({trellis({8, 16, 48}), suh, svh}).empty());
  CHECK(refusal_of({trellis({8, 16, 48}), svh}) == "m: EXL3 needs suh or su next to trellis");
  CHECK(refusal_of({trellis({8, 16, 48}), suh}) == "m: EXL3 needs svh or sv next to trellis");
  CHECK(refusal_of({trellis({8, 16, 48}), suh, svh, mcg, mul1}) == "m: both codebook markers are there, mcg and mul1");
  CHECK(refusal_of({trellis({8, 16, 48}), suh, svh, mul1}, std::byte{1}) ==
        "m: the codebook marker is 16843009, expected 2212286765");
  CHECK(refusal_of({trellis({8, 16, 24}), suh, svh}) == "m: a tile has 24 words, no rate of codebook 3inst");
  CHECK(refusal_of({trellis({8, 16, 144}), suh, svh}) == "m: a tile has 144 words, no rate of codebook 3inst");
  CHECK(refusal_of({trellis({8, 16, 0}), suh, svh}) == "m: a tile has 0 words, no rate of codebook 3inst");
  CHECK(refusal_of({trellis({8, 768}), suh, svh}) ==
        "m: trellis has shape [8, 768] I16, expected three dimensions of I16");
  CHECK(refusal_of({trellis({4, 16, 48}), suh, svh}) ==
        "m: trellis has shape [4, 16, 48], whose features are not multiples of 128");
  CHECK(refusal_of({trellis({16, 16, 48}), suh, svh}) == "m: suh has shape [128] F16, expected [256] F16");
  CHECK(refusal_of({trellis({8, 8, 48}), suh, svh}) == "m: svh has shape [256] F16, expected [128] F16");
  const TensorInfo su{.name = "m.su", .dtype = DType::i16, .shape = {8}};
  const TensorInfo sv{.name = "m.sv", .dtype = DType::i16, .shape = {16}};
  CHECK(refusal_of({trellis({8, 16, 48}), su, sv}).empty());
}

TEST_CASE("a tensor in two files is refused", "[pack]") {
  TemporaryFolder temp;
  write_text(temp / "config.json", "{}");
  write_tensors(temp / "a.safetensors", {{.name = "w", .dtype = DType::u8, .shape = {4}}});
  write_tensors(temp / "b.safetensors", {{.name = "w", .dtype = DType::u8, .shape = {4}}});
  CHECK(refusal(temp.path()) == "tensor 'w' is in two files, a.safetensors and b.safetensors");
}

TEST_CASE("an index that disagrees with the files is refused", "[pack]") {
  TemporaryFolder temp;
  write_text(temp / "config.json", "{}");
  write_tensors(temp / "a.safetensors", {{.name = "w", .dtype = DType::u8, .shape = {4}}});
  const auto with_index = [&](const std::string& text) {
    write_text(temp / "model.safetensors.index.json", text);
    return refusal(temp.path());
  };
  CHECK(with_index(R"({"weight_map":{"w":"a.safetensors"}})").empty());
  CHECK(with_index(R"({"weight_map":{"w":"b.safetensors"}})") ==
        "the index names the file 'b.safetensors', which is not there");
  CHECK(with_index(R"({"weight_map":{"w":"a.safetensors","v":"a.safetensors"}})") ==
        "the index says that tensor 'v' is in a.safetensors, but it is not");
  CHECK(with_index(R"({"weight_map":{"w":3}})") == "weight_map holds something other than file names");
  CHECK(with_index("nonsense").starts_with("not valid JSON at byte "));
  CHECK(with_index(std::string(100'000, '[')) == "JSON nested deeper than 8 levels");
}

TEST_CASE("folders that are no packs are refused", "[pack]") {
  TemporaryFolder temp;
  CHECK(refusal(temp / "none") == "no such folder");
  CHECK(refusal(temp.path()).starts_with("cannot open 'config.json'"));
  write_text(temp / "config.json", "{}");
  CHECK(refusal(temp.path()) == "the folder holds no safetensors file");
  fs::create_directory(temp / "a.safetensors");
  CHECK(refusal(temp.path()) == "'a.safetensors' is not a regular file");
}

TEST_CASE("links out of a pack are refused, those of the Hugging Face cache are not", "[pack]") {
  TemporaryFolder temp;
  const fs::path snapshot = temp / "models--a--b/snapshots/0123";
  fs::create_directories(snapshot);
  fs::create_directories(temp / "models--a--b/blobs");
  fs::copy(kSingle / "config.json", temp / "models--a--b/blobs/c0");
  fs::copy(kSingle / "model.safetensors", temp / "models--a--b/blobs/c1");
  fs::create_symlink("../../blobs/c0", snapshot / "config.json");
  fs::create_symlink("../../blobs/c1", snapshot / "model.safetensors");
  CHECK(refusal(snapshot).empty());
  CHECK(Pack::open(snapshot).small_files() == std::vector<std::string>{"config.json"});

  write_text(temp / "secret", "{}");
  fs::remove(snapshot / "config.json");
  fs::create_symlink("../../../secret", snapshot / "config.json");
  CHECK(refusal(snapshot) == "'config.json' is a link out of the pack's folder");
  fs::remove(snapshot / "config.json");
  write_text(snapshot / "config.json", "{}");
  fs::create_symlink(temp / "secret", snapshot / "tokenizer.json");
  CHECK_THROWS_AS(Pack::open(snapshot).small_files(), Error);
}

TEST_CASE("the content hash follows the content, not the place", "[pack]") {
  TemporaryFolder temp;
  fs::copy(kSingle, temp / "copy");
  const std::string hash = Pack::open(kSingle).content_hash();
  CHECK(hash.size() == 64);
  CHECK(Pack::open(temp / "copy").content_hash() == hash);
  CHECK(Pack::open(kSharded).content_hash() != hash);
  // Another quantization has the same header and other codes everywhere.
  std::string bytes = read_text(temp / "copy" / "model.safetensors");
  for (size_t i = bytes.size() / 2; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  write_text(temp / "copy" / "model.safetensors", bytes);
  CHECK(Pack::open(temp / "copy").content_hash() != hash);
}

TEST_CASE("packs that contradict their config are refused by module", "[pack]") {
  const auto refusal_with = [](const std::string& from, const std::string& to) -> std::string {
    std::string config = read_text(kSingle / "config.json");
    const size_t at = config.find(from);
    REQUIRE(at != std::string::npos);
    config.replace(at, from.size(), to);
    try {
      check_tensors(Pack::open(kSingle), ModuleTable(parse_ling_config(config, "config.json")), 1);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal_with("\"vocab_size\": 2048", "\"vocab_size\": 4096") ==
        "tensor 'model.word_embeddings.weight' has shape [2048, 256], expected [4096, 256]");
  CHECK(
      refusal_with("\"num_hidden_layers\": 8", "\"num_hidden_layers\": 12").starts_with("the pack has no tensor for"));
  CHECK(refusal_with("\"moe_intermediate_size\": 256", "\"moe_intermediate_size\": 512") ==
        "model.layers.1.mlp.experts.0.gate_proj has shape [256, 256] [out, in], expected [512, 256]");
  CHECK(refusal_with("\"vocab_size\": 2048", "\"vocab_size\": 2048 ").empty());
}

TEST_CASE("a module stored both quantized and not, or fused and not, is refused", "[pack]") {
  TemporaryFolder temp;
  fs::copy(kSingle, temp / "pack");
  const ModuleTable table(read_ling_config(kSingle));
  const auto with_extra = [&](const std::string& name, std::vector<int64_t> shape) -> std::string {
    write_tensors(temp / "pack" / "extra.safetensors",
                  {{.name = name, .dtype = DType::bf16, .shape = std::move(shape)}});
    try {
      check_tensors(Pack::open(temp / "pack"), table, 1);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(with_extra("lm_head.weight", {2048, 256}) == "lm_head is stored twice, quantized and not");
  CHECK(with_extra("model.layers.0.attention.q_proj.weight", {512, 256}) ==
        "model.layers.0.attention.q_proj is stored twice, also as part of model.layers.0.attention.qkv_proj");
  CHECK(with_extra("model.extra.weight", {4}).empty());
}

}  // namespace
}  // namespace tandem
