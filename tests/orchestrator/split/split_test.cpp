#include "orchestrator/split/split.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "orchestrator/bench/synthetic_pack.h"
#include "runtime/common/error.h"
#include "runtime/common/manifest.h"
#include "runtime/common/pack.h"
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
constexpr const char* kTinyPacks[] = {"ling-tiny-exl3-3.64bpw", "ling-tiny-exl3-3.12bpw"};

SplitOptions options_for(const fs::path& pack, const fs::path& ranks, int world_size = 2) {
  return {.pack_folder = pack, .ranks_folder = ranks, .world_size = world_size, .disk_reserve_bytes = 0};
}

std::vector<fs::path> folders(const SplitResult& result) {
  std::vector<fs::path> paths;
  for (const SplitResult::Rank& rank : result.ranks) paths.push_back(rank.folder);
  return paths;
}

/// A model small enough to write in milliseconds, with every kind of layer.
SyntheticPackOptions small_pack() {
  LingConfig c = read_ling_config(kPacks / kTinyPacks[0]);
  c.num_hidden_layers = 4;
  c.layer_group_size = 2;
  c.vocab_size = 512;
  SyntheticPackOptions options{.config = c};
  for (int i = 0; i < kNumQuantizedComponents; ++i) options.bits.bits[static_cast<size_t>(i)] = 4;
  options.shard_bytes = 1 << 20;
  return options;
}

std::string message_of(const auto& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string bytes_of(const Pack& pack, const std::string& name) {
  const auto bytes = pack.data(pack.at(name));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("slices of the example packs re-join to the original, byte for byte", "[split]") {
  for (const char* name : kTinyPacks) {
    TemporaryFolder temp;
    const SplitResult result = split_pack(options_for(kPacks / name, temp.path()));
    REQUIRE(result.ranks.size() == 2);
    CHECK(result.unused_tensors.empty());
    CHECK(compare_split(kPacks / name, folders(result)) == "");
    for (const SplitResult::Rank& rank : result.ranks) {
      const Pack pack = Pack::open(rank.folder);
      const LingConfig config = read_ling_config(rank.folder);
      CHECK(check_tensors(pack, ModuleTable(config), 2).empty());
      CHECK(read_text(rank.folder / "tokenizer.json") == read_text(kPacks / name / "tokenizer.json"));
      CHECK(read_text(rank.folder / "chat_template.jinja") == read_text(kPacks / name / "chat_template.jinja"));
      CHECK_FALSE(fs::exists(rank.folder.string() + ".partial"));
      CHECK_FALSE(fs::exists(rank.folder / "split.journal"));
    }
  }
}

TEST_CASE("an unquantized pack with separate q, k and v re-joins, too", "[split]") {
  TemporaryFolder temp;
  SyntheticPackOptions options = small_pack();
  options.fused = false;
  options.bits = {};
  write_synthetic_pack(temp / "pack", options);
  CHECK(compare_split(temp / "pack", folders(split_pack(options_for(temp / "pack", temp / "ranks")))) == "");
}

TEST_CASE("a fused tensor's slice is the slices of its parts, side by side", "[split]") {
  TemporaryFolder temp;
  SyntheticPackOptions options = small_pack();
  write_synthetic_pack(temp / "fused", options);
  options.fused = false;
  write_synthetic_pack(temp / "separate", options);
  const auto fused_folders = folders(split_pack(options_for(temp / "fused", temp / "ranks")));
  const auto separate_folders = folders(split_pack(options_for(temp / "separate", temp / "ranks")));
  for (size_t rank = 0; rank < 2; ++rank) {
    const Pack fused = Pack::open(fused_folders[rank]);
    const Pack separate = Pack::open(separate_folders[rank]);
    const std::string at = "model.layers.0.attention.";
    std::string svh, conv, trellis;
    for (const char* part : {"q", "k", "v"}) {
      svh += bytes_of(separate, at + part + "_proj.svh");
      conv += bytes_of(separate, at + part + "_conv1d.weight");
    }
    const std::vector<int64_t> shape = fused.at(at + "qkv_proj.trellis").info.shape;
    REQUIRE(shape == std::vector<int64_t>{16, 48, 64});
    for (int64_t row = 0; row < shape[0]; ++row)
      for (const char* part : {"q", "k", "v"}) {
        const std::string whole = bytes_of(separate, at + part + "_proj.trellis");
        const size_t row_bytes = whole.size() / static_cast<size_t>(shape[0]);
        trellis += whole.substr(static_cast<size_t>(row) * row_bytes, row_bytes);
      }
    CHECK(bytes_of(fused, at + "qkv_proj.svh") == svh);
    CHECK(bytes_of(fused, at + "conv1d.weight") == conv);
    CHECK(bytes_of(fused, at + "qkv_proj.trellis") == trellis);
  }
}

TEST_CASE("tensors of a rank folder are aligned for use in place", "[split]") {
  TemporaryFolder temp;
  const SplitResult result = split_pack(options_for(kPacks / kTinyPacks[0], temp.path()));
  const Pack pack = Pack::open(result.ranks[1].folder);
  for (const PackTensor& tensor : pack.tensors()) {
    int64_t alignment = 64;
    while (tensor.info.bytes() % alignment != 0) alignment /= 2;
    CHECK(tensor.file_offset % alignment == 0);
  }
}

TEST_CASE("the manifest says what the folder is", "[split]") {
  TemporaryFolder temp;
  SplitOptions options = options_for(kPacks / kTinyPacks[0], temp.path());
  options.pack_repo = "someone/ling-tiny";
  options.pack_commit = std::string(40, 'a');
  options.pack_key = pack_key(options.pack_repo, options.pack_commit);
  const SplitResult result = split_pack(options);
  CHECK(result.ranks[1].folder == temp / "ling-tiny-aaaaaaaaaaaa-l1-tp2/rank1");
  const Manifest manifest = read_manifest(result.ranks[1].folder);
  CHECK(manifest.pack_repo == "someone/ling-tiny");
  CHECK(manifest.pack_commit == options.pack_commit);
  CHECK(manifest.pack_hash == Pack::open(options.pack_folder).content_hash());
  CHECK(manifest.world_size == 2);
  CHECK(manifest.rank == 1);
  CHECK(manifest.bits[Component::routed_experts] == 3);
  CHECK(manifest.bits[Component::mla_attention] == 6);
  CHECK(manifest.bits[Component::embedding] == 16);
  CHECK(manifest.tensors.size() == Pack::open(options.pack_folder).tensors().size());
  verify_rank_folder(result.ranks[1].folder, manifest);
  const auto planned = planned_rank_bytes(options.pack_folder, 2, {});
  int64_t weights = 0;
  for (const ManifestFile& file : manifest.files)
    if (file.name.ends_with(".safetensors")) weights += file.bytes;
  CHECK(planned[1] == weights);
}

TEST_CASE("only the ranks asked for are written", "[split]") {
  TemporaryFolder temp;
  SplitOptions options = options_for(kPacks / kTinyPacks[1], temp.path());
  options.ranks = {1};
  const SplitResult result = split_pack(options);
  REQUIRE(result.ranks.size() == 1);
  CHECK(fs::exists(result.ranks[0].folder));
  CHECK_FALSE(fs::exists(result.ranks[0].folder.parent_path() / "rank0"));
  options.ranks = {2};
  CHECK(message_of([&] { split_pack(options); }) == "rank 2 is not one of the world's 2");
}

TEST_CASE("a second split finds everything there and writes nothing", "[split]") {
  TemporaryFolder temp;
  const SplitOptions options = options_for(kPacks / kTinyPacks[0], temp.path());
  const SplitResult first = split_pack(options);
  const auto before = fs::last_write_time(first.ranks[0].folder / "model-00001-of-00003.safetensors");
  const SplitResult second = split_pack(options);
  CHECK_FALSE(first.ranks[0].already_there);
  CHECK(second.ranks[0].already_there);
  CHECK(second.ranks[1].already_there);
  CHECK(second.ranks[0].bytes == first.ranks[0].bytes);
  CHECK(fs::last_write_time(first.ranks[0].folder / "model-00001-of-00003.safetensors") == before);
}

TEST_CASE("a damaged rank folder is replaced", "[split]") {
  TemporaryFolder temp;
  const SplitOptions options = options_for(kPacks / kTinyPacks[0], temp.path());
  const SplitResult first = split_pack(options);
  fs::resize_file(first.ranks[0].folder / "model-00002-of-00003.safetensors", 100);
  fs::remove(first.ranks[1].folder / "tokenizer.json");
  const SplitResult second = split_pack(options);
  CHECK_FALSE(second.ranks[0].already_there);
  CHECK_FALSE(second.ranks[1].already_there);
  CHECK(compare_split(options.pack_folder, folders(second)) == "");
  CHECK_FALSE(fs::exists(first.ranks[0].folder.string() + ".old"));
}

TEST_CASE("worlds that do not divide the model are refused with reasons", "[split]") {
  TemporaryFolder temp;
  const std::string four = message_of([&] { split_pack(options_for(kPacks / kTinyPacks[0], temp.path(), 4)); });
  CHECK(four ==
        "the model cannot be cut for 4 ranks: qk_nope_head_dim + qk_rope_head_dim (MLA queries): 1 heads a rank of 192 "
        "are 192 channels, not a multiple of EXL3's block of 128; moe_intermediate_size 256 has 2 blocks of 128, which "
        "4 ranks cannot share evenly; shared expert width 256 has 2 blocks of 128, which 4 ranks cannot share evenly");
  const std::string three = message_of([&] { split_pack(options_for(kPacks / kTinyPacks[0], temp.path(), 3)); });
  CHECK(three.starts_with("the model cannot be cut for 3 ranks: num_attention_heads 4 does not divide by 3 ranks"));
  CHECK(message_of([&] { split_pack(options_for(kPacks / kTinyPacks[0], temp.path(), 1)); }) ==
        "world size 1 needs no split");
  CHECK(fs::is_empty(temp.path()));
}

TEST_CASE("a rank folder is not split again", "[split]") {
  TemporaryFolder temp;
  const SplitResult result = split_pack(options_for(kPacks / kTinyPacks[0], temp / "ranks"));
  CHECK(message_of([&] { split_pack(options_for(result.ranks[0].folder, temp / "again")); }) ==
        "this is a rank folder already, not a pack");
}

TEST_CASE("a pack that lacks a tensor is refused before anything is written", "[split]") {
  TemporaryFolder temp;
  fs::copy(kPacks / kTinyPacks[0], temp / "pack");
  fs::remove(temp / "pack" / "model-00003-of-00003.safetensors");
  fs::remove(temp / "pack" / "model.safetensors.index.json");
  CHECK(message_of([&] {
          split_pack(options_for(temp / "pack", temp / "ranks"));
        }).starts_with("the pack has no tensor for 'model."));
  CHECK_FALSE(fs::exists(temp / "ranks"));
}

TEST_CASE("a disk without the room for it is refused before anything is written", "[split]") {
  TemporaryFolder temp;
  SplitOptions options = options_for(kPacks / kTinyPacks[0], temp / "ranks");
  options.disk_reserve_bytes = int64_t{1} << 60;
  const std::string message = message_of([&] { split_pack(options); });
  CHECK(message.starts_with("the rank folders need "));
  CHECK(message.find("stay in reserve") != std::string::npos);
  for (const auto& entry : fs::recursive_directory_iterator(temp / "ranks")) CHECK(fs::is_directory(entry));
}

TEST_CASE("a disk that fills up during the split leaves nothing half-visible, and room lets it go on", "[split]") {
  TemporaryFolder temp;
  fs::create_directory(temp / "small");
  if (::mount("tmpfs", (temp / "small").c_str(), "tmpfs", 0, "size=12m") != 0) TANDEM_SKIP("needs the right to mount");
  struct Unmount {
    fs::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{temp / "small"};
  SplitOptions options = options_for(kPacks / kTinyPacks[0], temp / "small");
  options.disk_reserve_bytes = -(int64_t{1} << 30);  // as if the room had gone after the check
  CHECK(message_of([&] { split_pack(options); }) == "the disk is full");
  for (const auto& entry : fs::recursive_directory_iterator(temp / "small")) {
    CHECK_FALSE(is_rank_folder(entry.path()));
    CHECK((entry.is_directory() || entry.path().extension() != ".partial"));
  }
  REQUIRE(::mount("tmpfs", (temp / "small").c_str(), "tmpfs", MS_REMOUNT, "size=64m") == 0);
  CHECK(compare_split(options.pack_folder, folders(split_pack(options))) == "");
}

TEST_CASE("two splits of one rank at the same time: the second says so", "[split]") {
  TemporaryFolder temp;
  const SplitOptions options = options_for(kPacks / kTinyPacks[0], temp.path());
  const std::string key = pack_key(kTinyPacks[0], Pack::open(options.pack_folder).content_hash());
  const fs::path partial = rank_folder_path(temp.path(), key, 2, 0).string() + ".partial";
  fs::create_directories(partial);
  const int holder = ::open(partial.c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(holder, LOCK_EX) == 0);
  CHECK(message_of([&] { split_pack(options); }) == "another process is splitting this rank");
  ::close(holder);
  CHECK(compare_split(options.pack_folder, folders(split_pack(options))) == "");
}

TEST_CASE("a cancelled split says so and can be finished later", "[split]") {
  TemporaryFolder temp;
  write_synthetic_pack(temp / "pack", small_pack());
  const SplitOptions options = options_for(temp / "pack", temp / "ranks");
  const std::atomic<bool> cancel{true};
  try {
    split_pack(options, {}, &cancel);
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::interrupted);
  }
  CHECK(compare_split(options.pack_folder, folders(split_pack(options))) == "");
}

TEST_CASE("progress ends at the total", "[split]") {
  TemporaryFolder temp;
  SplitProgress last;
  int64_t before = 0;
  split_pack(options_for(kPacks / kTinyPacks[0], temp.path()), [&](const SplitProgress& now) {
    CHECK(now.bytes_done >= before);
    before = now.bytes_done;
    last = now;
  });
  CHECK(last.bytes_total > 0);
  CHECK(last.bytes_done == last.bytes_total);
  CHECK(last.files_done == 3);
  CHECK(last.files_total == 3);
}

/// Inode and modification time of every finished file in the partial folders.
std::map<std::string, std::pair<ino_t, int64_t>> finished_files(const fs::path& ranks) {
  std::map<std::string, std::pair<ino_t, int64_t>> files;
  if (!fs::exists(ranks)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(ranks)) {
    if (entry.path().filename() != "split.journal") continue;
    const std::string journal = read_text(entry.path());
    for (const auto& file : fs::directory_iterator(entry.path().parent_path())) {
      struct stat info {};
      if (journal.find(" " + file.path().filename().string() + "\n") == std::string::npos) continue;
      if (::stat(file.path().c_str(), &info) != 0) continue;
      const std::string rank = entry.path().parent_path().stem().string();
      files[rank + "/" + file.path().filename().string()] = {
          info.st_ino, info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec};
    }
  }
  return files;
}

TEST_CASE("a split killed at any moment goes on from its finished files", "[split]") {
  TemporaryFolder temp;
  SyntheticPackOptions pack = small_pack();
  pack.shard_bytes = 300'000;  // a dozen files
  write_synthetic_pack(temp / "pack", pack);
  SplitOptions options = options_for(temp / "pack", temp / "ranks");
  options.threads = 2;

  // Every run is killed a little later than the one before, until one gets through.
  int kills = 0;
  bool done = false;
  std::set<std::string> kept;
  for (int delay_us = 500; !done; delay_us += 1500) {
    const auto before = finished_files(temp / "ranks");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        split_pack(options);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    done = WIFEXITED(status);
    if (done)
      CHECK(WEXITSTATUS(status) == 0);
    else
      ++kills;
    const auto after = finished_files(temp / "ranks");
    if (after.empty()) continue;  // published
    for (const auto& [name, identity] : before) {
      kept.insert(name);
      if (after.contains(name))
        CHECK(after.at(name) == identity);
      else
        CHECK(fs::exists(temp / "ranks"));
    }
  }
  CHECK(kills > 3);
  const SplitResult result = split_pack(options);
  CHECK(result.ranks[0].already_there);
  CHECK(compare_split(options.pack_folder, folders(result)) == "");
  for (const SplitResult::Rank& rank : result.ranks) {
    verify_rank_folder(rank.folder, read_manifest(rank.folder));
    // Nothing but what the manifest lists, and the manifest.
    const auto entries = std::distance(fs::directory_iterator(rank.folder), fs::directory_iterator());
    CHECK(static_cast<size_t>(entries) == read_manifest(rank.folder).files.size() + 1);
    CHECK_FALSE(fs::exists(rank.folder.string() + ".partial"));
  }
}

TEST_CASE("finished files are not written again", "[split]") {
  TemporaryFolder temp;
  SyntheticPackOptions pack = small_pack();
  pack.shard_bytes = 300'000;
  write_synthetic_pack(temp / "pack", pack);
  SplitOptions options = options_for(temp / "pack", temp / "ranks");
  options.ranks = {0};
  const SplitResult whole = split_pack(options);
  // As a kill would leave it: some files finished and noted, one noted only in half, one under its temporary name.
  const fs::path partial = whole.ranks[0].folder.string() + ".partial";
  const Manifest manifest = read_manifest(whole.ranks[0].folder);
  fs::rename(whole.ranks[0].folder, partial);
  fs::remove(partial / kManifestName);
  std::string journal = "tandem.split-journal/v1 " + manifest.pack_hash + " layout 1 rank 0 of 2\n";
  for (int i = 0; i < 3; ++i)
    journal += manifest.files[static_cast<size_t>(i)].sha256 + " " +
               std::to_string(manifest.files[static_cast<size_t>(i)].bytes) + " " +
               manifest.files[static_cast<size_t>(i)].name + "\n";
  write_text(partial / "split.journal", journal + manifest.files[3].sha256.substr(0, 30));
  fs::rename(partial / manifest.files[4].name, partial / (manifest.files[4].name + ".partial"));
  const auto before = finished_files(temp / "ranks");
  REQUIRE(before.size() == 3);

  const SplitResult resumed = split_pack(options);
  CHECK(resumed.ranks[0].bytes_resumed == manifest.files[0].bytes + manifest.files[1].bytes + manifest.files[2].bytes);
  for (const auto& [name, identity] : before) {
    struct stat info {};
    REQUIRE(::stat((resumed.ranks[0].folder / fs::path(name).filename()).c_str(), &info) == 0);
    CHECK(info.st_ino == identity.first);
  }
  verify_rank_folder(resumed.ranks[0].folder, read_manifest(resumed.ranks[0].folder));
}

TEST_CASE("a journal of another pack is not trusted", "[split]") {
  TemporaryFolder temp;
  SplitOptions options = options_for(kPacks / kTinyPacks[0], temp.path());
  options.pack_key = "one-key-for-both";
  const fs::path partial = rank_folder_path(temp.path(), options.pack_key, 2, 0).string() + ".partial";
  fs::create_directories(partial);
  write_text(partial / "model-00001-of-00003.safetensors", "x");
  write_text(partial / "split.journal", "tandem.split-journal/v1 other layout 1 rank 0 of 2\n" + std::string(64, '0') +
                                            " 1 model-00001-of-00003.safetensors\n");
  CHECK(compare_split(options.pack_folder, folders(split_pack(options))) == "");
}

TEST_CASE("a flipped byte in a rank folder is found when it is verified", "[split]") {
  TemporaryFolder temp;
  const SplitResult result = split_pack(options_for(kPacks / kTinyPacks[0], temp.path()));
  const Manifest manifest = read_manifest(result.ranks[1].folder);
  const fs::path file = result.ranks[1].folder / "model-00002-of-00003.safetensors";
  std::string bytes = read_text(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text(file, bytes);
  check_manifest(result.ranks[1].folder, manifest, {});  // size alone does not tell
  CHECK(message_of([&] {
          verify_rank_folder(result.ranks[1].folder, manifest);
        }).starts_with("the file 'model-00002-of-00003.safetensors' is damaged: sha256 "));
}

TEST_CASE("tensors that the model does not use are left out and named", "[split]") {
  TemporaryFolder temp;
  write_synthetic_pack(temp / "pack", small_pack());
  {
    SafetensorsWriter extra(temp / "pack" / "extra.safetensors",
                            {{.name = "model.layers.0.rotary.inv_freq", .dtype = DType::f32, .shape = {2}}});
    extra.append(std::vector<std::byte>(8));
    extra.finish();
  }
  const SplitResult result = split_pack(options_for(temp / "pack", temp / "ranks"));
  CHECK(result.unused_tensors == std::vector<std::string>{"model.layers.0.rotary.inv_freq"});
  CHECK_FALSE(fs::exists(result.ranks[0].folder / "extra.safetensors"));
}

TEST_CASE("keys and paths of rank folders stay inside the cache", "[split]") {
  CHECK(pack_key("org/name-3.03bpw", "0123456789abcdef") == "name-3.03bpw-0123456789ab");
  CHECK(rank_folder_path("/r", "../../etc", 2, 1) == "/r/-..-etc-l1-tp2/rank1");
  CHECK(rank_folder_path("/r", "..", 2, 0) == "/r/pack-l1-tp2/rank0");
}

}  // namespace
}  // namespace tandem
