#include "runtime/common/safetensors.h"

#include <sys/resource.h>

#include <cstring>
#include <filesystem>

#include "runtime/common/error.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::read_text;
using test::TemporaryFolder;
using test::write_text;

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string file_text(const std::string& json, size_t data_bytes) {
  return length_prefix(json.size()) + json + std::string(data_bytes, 'x');
}

/// What the header of a file with this JSON is refused for, "" when it is not.
std::string refusal(const std::string& json, int64_t data_bytes = 8) {
  try {
    parse_safetensors_header(json, data_bytes, "a.safetensors");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::pack);
    CHECK(e.where() == "a.safetensors");
    CHECK(std::string(e.what()).find('\n') == std::string::npos);
    return e.what();
  }
  return "";
}

std::string one(const std::string& fields) {
  return "{\"w\":{" + fields + "}}";
}

std::string entry(const std::string& name, int64_t begin, int64_t end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST_CASE("a header gives tensors in the order of their bytes", "[safetensors]") {
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]}}   )",
      8, "x");
  REQUIRE(header.tensors.size() == 3);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[0].shape.empty());
  CHECK(header.tensors[1].name == "empty");
  CHECK(header.tensors[2].name == "b");
  CHECK(header.tensors[2].shape == std::vector<int64_t>{2, 1});
  CHECK(header.metadata.at("format") == "pt");
  CHECK(header.find("b")->bytes() == 4);
  CHECK(header.find("c") == nullptr);
}

TEST_CASE("hostile headers are refused with one sentence each", "[safetensors]") {
  CHECK(refusal("") == "the header does not start with '{'");
  CHECK(refusal("[]") == "the header does not start with '{'");
  CHECK(refusal("{") == "not valid JSON at byte 2");
  CHECK(refusal("{\"w\":}").starts_with("not valid JSON at byte "));
  CHECK(refusal("{} {}").starts_with("not valid JSON at byte "));
  CHECK(refusal(std::string("{\"\xff\":{}}")).starts_with("not valid JSON at byte "));
  CHECK(refusal("{}", 8) == "the tensors end at byte 0 of the data, the file has 8");
  CHECK(refusal("{\"w\":3}") == "the header has an unexpected entry at 'w'");
  CHECK(refusal("{\"w\":[1]}") == "the header has an unexpected entry at 'w'");
  CHECK(refusal("{\"w\":{\"dtype\":{\"a\":1}}}") == "the header has an unexpected entry at 'w.dtype'");
  CHECK(refusal("{\"w\":{\"shape\":[[1]]}}") == "JSON nested deeper than 3 levels");
  CHECK(refusal("{\"w\":{\"colour\":\"red\"}}") == "the header has an unexpected entry at 'w.colour'");
  CHECK(refusal("{\"__metadata__\":{\"a\":1}}") == "the header has an unexpected entry at '__metadata__.a'");
  CHECK(refusal("{\"__metadata__\":{},\"__metadata__\":{}}") == "the header has two __metadata__ objects");
  CHECK(refusal("{\"__metadata__\":{\"a\":\"" + std::string(2 << 20, 'm') + "\"}}") ==
        "__metadata__ has more than 1 MiB");
  CHECK(refusal(one("")) == "tensor 'w' lacks dtype, shape or a pair of data_offsets");
  CHECK(refusal(one(R"("dtype":"F16","shape":[4],"data_offsets":[0])")) ==
        "tensor 'w' lacks dtype, shape or a pair of data_offsets");
  CHECK(refusal(one(R"("dtype":"F12","shape":[4],"data_offsets":[0,8])")) == "tensor 'w' has the unknown dtype 'F12'");
  CHECK(refusal(one(R"("dtype":"F16","dtype":"F32","shape":[4],"data_offsets":[0,8])")) ==
        "the header has an unexpected entry at 'w.dtype'");
  CHECK(refusal(one(R"("dtype":"F16","shape":[4],"shape":[4],"data_offsets":[0,8])")) ==
        "tensor 'w' has two entries 'shape'");
  CHECK(refusal(one(R"("dtype":"F16","shape":[-4],"data_offsets":[0,8])")) ==
        "tensor 'w': 'shape' holds something other than a natural number below 2^63");
  CHECK(refusal(one(R"("dtype":"F16","shape":[4.5],"data_offsets":[0,8])")) ==
        "tensor 'w': 'shape' holds something other than a natural number below 2^63");
  CHECK(refusal(one(R"("dtype":"F16","shape":["4"],"data_offsets":[0,8])")) ==
        "tensor 'w': 'shape' holds something other than a natural number below 2^63");
  CHECK(refusal(one(R"("dtype":"F16","shape":[18446744073709551615],"data_offsets":[0,8])")) ==
        "tensor 'w': 'shape' holds something other than a natural number below 2^63");
  CHECK(refusal(one(R"("dtype":"F16","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,8])")) ==
        "tensor 'w': 'shape' has more than 8 entries");
  CHECK(refusal(one(R"("dtype":"F16","shape":[4294967296,4294967296],"data_offsets":[0,8])")) ==
        "tensor 'w' has a shape whose size overflows: [4294967296, 4294967296]");
  CHECK(refusal(one(R"("dtype":"F16","shape":[5],"data_offsets":[0,8])")) ==
        "tensor 'w' has shape [5] F16, 10 bytes, but occupies 8");
  CHECK(refusal(one(R"("dtype":"F16","shape":[4],"data_offsets":[8,0])")) ==
        "tensor 'w' ends before it begins: [8, 0)");
  CHECK(refusal(one(R"("dtype":"F16","shape":[4],"data_offsets":[8,16])")) ==
        "tensor 'w' lies at [8, 16), past the end of the data at 8");
  CHECK(refusal("{" + entry("a", 0, 6) + "," + entry("b", 4, 8) + "}") == "tensor 'b' overlaps the tensor before it");
  CHECK(refusal("{" + entry("a", 0, 3) + "," + entry("b", 5, 8) + "}") ==
        "nobody owns the bytes [3, 5) before tensor 'b'");
  CHECK(refusal("{" + entry("a", 0, 5) + "}") == "the tensors end at byte 5 of the data, the file has 8");
  CHECK(refusal("{" + entry("a", 0, 4) + "," + entry("a", 4, 8) + "}") == "the header lists tensor 'a' twice");
  CHECK(refusal("{" + entry(std::string(2000, 'n'), 0, 8) + "}") ==
        "a tensor's name has 2000 bytes, the limit is 1024");
  const std::string control = refusal("{" + entry("a\\u001b[31m", 0, 3) + "}");
  CHECK(control.find('\x1b') == std::string::npos);
}

TEST_CASE("a header nested a million levels deep is refused", "[safetensors]") {
  CHECK(refusal("{\"a\":" + std::string(1'000'000, '[')) == "the header has an unexpected entry at 'a'");
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  CHECK(refusal(objects) == "the header has an unexpected entry at 'a.a'");
}

TEST_CASE("the length in front of the header is checked before anything is read", "[safetensors]") {
  TemporaryFolder temp;
  const auto refusal_of_file = [&](const std::string& text) -> std::string {
    write_text(temp / "a.safetensors", text);
    try {
      read_safetensors_header(temp / "a.safetensors");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal_of_file("") == "the file has 0 bytes, too few for a safetensors header");
  CHECK(refusal_of_file("abc") == "the file has 3 bytes, too few for a safetensors header");
  CHECK(refusal_of_file(length_prefix(0)) == "the header claims 0 bytes of a file of 8");
  CHECK(refusal_of_file(length_prefix(100) + "{}") == "the header claims 100 bytes of a file of 10");
  CHECK(refusal_of_file(length_prefix(UINT64_MAX) + "{}") ==
        "the header claims 18446744073709551615 bytes, the format's limit is 100000000");
  CHECK(refusal_of_file(file_text("{" + entry("a", 0, 8) + "}", 7)) ==
        "tensor 'a' lies at [0, 8), past the end of the data at 7");
  CHECK(refusal_of_file(file_text("{" + entry("a", 0, 8) + "}", 8)).empty());
}

TEST_CASE("a gibibyte of JSON is refused without reading it", "[safetensors]") {
  TemporaryFolder temp;
  write_text(temp / "a.safetensors", length_prefix(uint64_t{1} << 30) + "{");
  fs::resize_file(temp / "a.safetensors", (uint64_t{1} << 30) + 8);  // sparse: takes no room
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  CHECK_THROWS_AS(read_safetensors_header(temp / "a.safetensors"), Error);
  ::getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 64 * 1024);  // KiB
}

TEST_CASE("folders and pipes are no safetensors files", "[safetensors]") {
  TemporaryFolder temp;
  fs::create_directory(temp / "a.safetensors");
  CHECK_THROWS_AS(read_safetensors_header(temp / "a.safetensors"), Error);
  CHECK_THROWS_AS(read_safetensors_header(temp / "missing.safetensors"), Error);
}

TEST_CASE("a header with the tensors of a large shard is read", "[safetensors]") {
  std::string json = "{";
  for (int i = 0; i < 12'500; ++i)
    json += (i ? "," : "") + entry("model.layers.17.mlp.experts." + std::to_string(i) + ".gate_proj.trellis",
                                   int64_t{4} * i, int64_t{4} * (i + 1));
  CHECK(parse_safetensors_header(json + "}", 50'000, "x").tensors.size() == 12'500);
}

TEST_CASE("a written file reads back, aligned, and appears only when finished", "[safetensors]") {
  TemporaryFolder temp;
  const fs::path path = temp / "out.safetensors";
  SafetensorsWriter writer(
      path,
      {{.name = "z \"quoted\"", .dtype = DType::f32, .shape = {2, 3}}, {.name = "a", .dtype = DType::u8, .shape = {5}}},
      {{"format", "pt"}});
  const std::string bytes = "0123456789abcdefghijklmnopqrs";
  writer.append(std::as_bytes(std::span(bytes.data(), 10)));
  CHECK_FALSE(fs::exists(path));
  writer.append(std::as_bytes(std::span(bytes.data() + 10, 19)));
  const StreamedFile::Finished finished = writer.finish();
  const SafetensorsHeader header = read_safetensors_header(path);
  CHECK(header.data_offset % 64 == 0);
  CHECK(header.metadata.at("format") == "pt");
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "z \"quoted\"");
  CHECK(header.tensors[1].begin == 24);
  CHECK(read_text(path).substr(static_cast<size_t>(header.data_offset)) == bytes);
  CHECK(finished.bytes == static_cast<int64_t>(fs::file_size(path)));
  CHECK(finished.sha256 == sha256_hex(read_text(path)));
  CHECK_FALSE(fs::exists(path.string() + ".partial"));
}

TEST_CASE("a file that was not written to its end leaves nothing", "[safetensors]") {
  TemporaryFolder temp;
  {
    SafetensorsWriter writer(temp / "out.safetensors", {{.name = "a", .dtype = DType::u8, .shape = {5}}});
    CHECK_THROWS_AS(writer.finish(), Error);
  }
  CHECK(fs::is_empty(temp.path()));
}

TEST_CASE("a full disk is named as such", "[safetensors]") {
  if (!fs::exists("/dev/full")) TANDEM_SKIP("needs /dev/full");
  TemporaryFolder temp;
  fs::create_symlink("/dev/full", temp / "out.partial");
  try {
    StreamedFile file(temp / "out", 0, ErrorKind::split);
    file.append(std::vector<std::byte>(100));
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(std::string(e.what()) == "the disk is full");
    CHECK(e.kind() == ErrorKind::split);
  }
}

TEST_CASE("hashes are the published ones", "[hash]") {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Hasher sha1(HashKind::sha1);
  sha1.update(std::string_view("abc"));
  CHECK(sha1.finish_hex() == "a9993e364706816aba3e25717850c26c9cd0d89d");
  TemporaryFolder temp;
  write_text(temp / "f", std::string(3'000'000, 'q'));
  CHECK(hash_file_hex(temp / "f") == sha256_hex(std::string(3'000'000, 'q')));
}

TEST_CASE("an atomic write replaces the whole file and leaves no other", "[file]") {
  TemporaryFolder temp;
  write_file_atomic(temp / "f", "first", ErrorKind::node);
  write_file_atomic(temp / "f", "second", ErrorKind::node);
  CHECK(read_small_file(temp / "f", 100, ErrorKind::node) == "second");
  CHECK(std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator()) == 1);
  CHECK_THROWS_AS(read_small_file(temp / "f", 5, ErrorKind::node), Error);
  CHECK_THROWS_AS(write_file_atomic(temp / "none/f", "x", ErrorKind::node), Error);
}

}  // namespace
}  // namespace tandem
