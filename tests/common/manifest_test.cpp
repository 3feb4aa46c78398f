#include "runtime/common/manifest.h"

#include <filesystem>

#include "runtime/common/error.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using test::write_text;

std::string message_of(const auto& action) {
  try {
    action();
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::pack);
    return e.what();
  }
  return "";
}

Manifest example() {
  Manifest m;
  m.pack_repo = "someone/pack";
  m.pack_commit = std::string(40, 'c');
  m.pack_hash = std::string(64, 'a');
  m.family = "BailingMoeV3ForCausalLM";
  m.world_size = 2;
  m.rank = 1;
  m.bits[Component::routed_experts] = 3.5;
  m.files = {{"model.safetensors", 5, sha256_hex("12345")}, {"config.json", 2, sha256_hex("{}")}};
  return m;
}

void write_example(const fs::path& folder, const Manifest& manifest) {
  write_text(folder / "model.safetensors", "12345");
  write_text(folder / "config.json", "{}");
  int written = 0;
  write_manifest(folder, manifest, [&](ManifestTensor& t) {
    if (written == 2) return false;
    if (written++ == 0)
      t = {.info = {.name = "a.trellis", .dtype = DType::i16, .shape = {2, 3}, .begin = 64},
           .file = 0,
           .full_shape = {2, 6},
           .axis = 1,
           .ranges = {{0, 1}, {3, 5}}};
    else
      t = {.info = {.name = "b", .dtype = DType::f32, .shape = {}, .begin = 76}, .file = 0};
    return true;
  });
}

TEST_CASE("a manifest reads back as it was written", "[manifest]") {
  TemporaryFolder temp;
  const Manifest written = example();
  write_example(temp.path(), written);
  CHECK(is_rank_folder(temp.path()));
  const Manifest m = read_manifest(temp.path());
  CHECK(m.pack_repo == written.pack_repo);
  CHECK(m.pack_commit == written.pack_commit);
  CHECK(m.pack_hash == written.pack_hash);
  CHECK(m.family == written.family);
  CHECK(m.world_size == 2);
  CHECK(m.rank == 1);
  CHECK(m.layout_version == kSplitLayoutVersion);
  CHECK(m.bits[Component::routed_experts] == 3.5);
  CHECK(m.bits[Component::head] == 16);
  REQUIRE(m.files.size() == 2);
  CHECK(m.files[1].name == "config.json");
  CHECK(m.files[1].sha256 == written.files[1].sha256);
  REQUIRE(m.tensors.size() == 2);
  CHECK(m.tensors[0].full_shape == std::vector<int64_t>{2, 6});
  CHECK(m.tensors[0].axis == 1);
  CHECK(m.tensors[0].ranges == std::vector<Range>{{0, 1}, {3, 5}});
  CHECK(m.tensors[0].info.begin == 64);
  CHECK(m.tensors[0].info.end == 76);
  CHECK(m.tensors[1].axis == -1);
  CHECK(m.tensors[1].full_shape.empty());
  CHECK(read_manifest(temp.path(), false).tensors.empty());
}

TEST_CASE("a rank folder of another rank, world, pack or layout is refused by name", "[manifest]") {
  TemporaryFolder temp;
  Manifest m = example();
  write_example(temp.path(), m);
  const auto refusal = [&](const ManifestExpectation& expected) {
    return message_of([&] { check_manifest(temp.path(), m, expected); });
  };
  CHECK(refusal({}).empty());
  CHECK(refusal({.world_size = 2, .rank = 1, .pack_hash = m.pack_hash}).empty());
  CHECK(refusal({.rank = 0}) == "the rank folder is of rank 1, expected 0");
  CHECK(refusal({.world_size = 4}) == "the rank folder is of world size 2, expected 4");
  CHECK(refusal({.pack_hash = std::string(64, 'b')}) ==
        "the rank folder is of pack " + m.pack_hash + ", expected " + std::string(64, 'b'));
  m.layout_version = kSplitLayoutVersion + 1;
  CHECK(refusal({}) == "the rank folder is of layout version 2, expected 1");
}

TEST_CASE("missing, changed and damaged files of a rank folder are named", "[manifest]") {
  TemporaryFolder temp;
  const Manifest m = example();
  write_example(temp.path(), m);
  verify_rank_folder(temp.path(), m);
  write_text(temp / "model.safetensors", "12346");
  CHECK(message_of([&] { check_manifest(temp.path(), m, {}); }).empty());
  CHECK(message_of([&] {
          verify_rank_folder(temp.path(), m);
        }).starts_with("the file 'model.safetensors' is damaged: sha256 "));
  write_text(temp / "model.safetensors", "1234");
  CHECK(message_of([&] { check_manifest(temp.path(), m, {}); }) ==
        "the file 'model.safetensors' has 4 bytes, expected 5");
  fs::remove(temp / "model.safetensors");
  CHECK(message_of([&] { check_manifest(temp.path(), m, {}); }) == "the file 'model.safetensors' is missing");
  fs::create_symlink("config.json", temp / "model.safetensors");
  CHECK(message_of([&] { check_manifest(temp.path(), m, {}); }) == "the file 'model.safetensors' is missing");
}

TEST_CASE("hostile manifests are refused", "[manifest]") {
  TemporaryFolder temp;
  const std::string files = R"("files":[{"name":"a","bytes":1,"sha256":")" + std::string(64, '0') + R"("}])";
  const std::string head = R"({"schema":"tandem.rank-folder/v1","world_size":2,"rank":0,"layout_version":1,)"
                           R"("pack":{"hash":"h"},)";
  const auto refusal = [&](const std::string& text) {
    write_text(temp / kManifestName, text);
    return message_of([&] { read_manifest(temp.path()); });
  };
  CHECK(refusal(head + files + "}").empty());
  CHECK(refusal("").starts_with("not valid JSON at byte "));
  CHECK(refusal("[]") == "manifest.json has schema '', expected 'tandem.rank-folder/v1'");
  CHECK(refusal("3").starts_with("manifest.json has "));
  CHECK(refusal("{}") == "manifest.json has schema '', expected 'tandem.rank-folder/v1'");
  CHECK(refusal(R"({"schema":"tandem.rank-folder/v1"})") == "manifest.json is incomplete");
  CHECK(refusal(std::string(1'000'000, '[')) == "JSON nested deeper than 6 levels");
  CHECK(refusal(R"({"world_size":0})") == "manifest.json has an unexpected value at 'world_size'");
  CHECK(refusal(R"({"rank":-1})") == "manifest.json has an unexpected value at 'rank'");
  CHECK(refusal(R"({"bits_per_weight":{"teeth":3}})") ==
        "manifest.json has an unexpected value at 'bits_per_weight.teeth'");
  CHECK(refusal(head + R"("files":{"x":["y"]}})") == "manifest.json is incomplete");
  CHECK(refusal(head + R"("files":[{"name":"../a","bytes":1,"sha256":"x"}]})") ==
        "manifest.json names the file '../a'");
  CHECK(refusal(head + R"("files":[{"name":"a","bytes":1,"sha256":"x"}]})") == "manifest.json has no sha256 of 'a'");
  CHECK(refusal(head + R"("files":[{"name":"a","bytes":-1,"sha256":"x"}]})") ==
        "manifest.json has an unexpected value at 'files.[].bytes'");
  CHECK(refusal(head + files + R"(,"tensors":{"t":{"dtype":"F16","shape":[1],"file":7,"offset":0}}})") ==
        "manifest.json puts 't' in a file it does not list");
  CHECK(refusal(head + files + R"(,"tensors":{"t":{"dtype":"F16","shape":[4611686018427387904,4],"file":0}}})") ==
        "manifest.json gives 't' an impossible shape");
  CHECK(refusal(head + files + R"(,"tensors":{"t":{"dtype":"F16","shape":[1],"file":0,"axis":0,"ranges":[[3,1]]}}})") ==
        "manifest.json gives 't' an impossible range");
  CHECK(refusal(head + files + R"(,"tensors":{"t":[[[[[1]]]]]}})") == "JSON nested deeper than 6 levels");
}

}  // namespace
}  // namespace tandem
