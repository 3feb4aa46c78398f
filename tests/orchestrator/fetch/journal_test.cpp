#include "orchestrator/fetch/journal.h"

#include "orchestrator/fetch/content_hash.h"
#include "runtime/common/hash.h"
#include "tests/catch.h"
#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

const JournalHeader kHeader{std::string(64, 'e'), 1000, 128, "refs/pr/1", "a folder/model.safetensors"};

}  // namespace

TEST_CASE("a journal says what was noted, and for what", "[fetch]") {
  TemporaryFolder folder;
  {
    Journal journal = Journal::create(folder / "j", kHeader);
    journal.note_range(0);
    journal.note_range(7);
    journal.note_hash(1, std::string(64, 'a'));
  }
  Journal::append_to(folder / "j").note_range(3);
  const auto state = Journal::load(folder / "j");
  REQUIRE(state);
  CHECK(state->header.etag == kHeader.etag);
  CHECK(state->header.ref == kHeader.ref);
  CHECK(state->header.path == kHeader.path);
  CHECK(state->header.num_ranges() == 8);
  CHECK(state->done == std::vector<bool>{true, false, false, true, false, false, false, true});
  CHECK(state->hashed_ranges == 1);
  CHECK(state->done_bytes() == 128 + 128 + 104);
}

TEST_CASE("a journal cut anywhere is believed up to its last whole line", "[fetch]") {
  TemporaryFolder folder;
  {
    Journal journal = Journal::create(folder / "j", kHeader);
    for (int i = 0; i < 8; ++i) journal.note_range(i);
  }
  const std::string whole = read_file(folder / "j");
  int64_t last_bytes = -1;
  for (size_t size = 0; size <= whole.size(); ++size) {
    write_file(folder / "cut", whole.substr(0, size));
    const auto state = Journal::load(folder / "cut");
    if (!state) continue;
    CHECK(state->done_bytes() >= last_bytes);
    last_bytes = state->done_bytes();
    // A line appended after the torn one must be readable.
    Journal::append_to(folder / "cut").note_range(7);
    CHECK(Journal::load(folder / "cut")->done[7]);
  }
  CHECK(last_bytes == 1000);
}

TEST_CASE("a damaged journal never claims a range that was not noted", "[fetch]") {
  TemporaryFolder folder;
  {
    Journal journal = Journal::create(folder / "j", kHeader);
    journal.note_range(1);
  }
  const std::string whole = read_file(folder / "j");
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write_file(folder / "damaged", damaged);
    const auto state = Journal::load(folder / "damaged");
    if (state) CHECK(state->done_bytes() <= 128);
    if (state && state->done_bytes() == 128) CHECK(state->done[1]);
  }
}

TEST_CASE("journals of other versions, absurd sizes and foreign texts count as none", "[fetch]") {
  TemporaryFolder folder;
  CHECK_FALSE(Journal::load(folder / "absent"));
  for (const char* text : {"", "\n", "tandem-journal 1 a 1 64 - -\n", "hello 0123456789abcdef\n"}) {
    write_file(folder / "j", text);
    CHECK_FALSE(Journal::load(folder / "j"));
  }
  Journal::create(folder / "huge", {"e", INT64_MAX, 64, "", "p"});
  CHECK_FALSE(Journal::load(folder / "huge"));
}

TEST_CASE("a hash state is ignored when its ranges are not all there", "[fetch]") {
  TemporaryFolder folder;
  {
    Journal journal = Journal::create(folder / "j", kHeader);
    journal.note_range(0);
    journal.note_hash(2, std::string(64, 'a'));
  }
  CHECK(Journal::load(folder / "j")->hashed_ranges == 0);
}

TEST_CASE("a sha256 continues from its written state", "[fetch]") {
  const std::string content = random_bytes(100'000, 5);
  for (const size_t cut : {size_t{0}, size_t{64}, size_t{6400}, size_t{99'968}}) {
    ResumableSha256 first;
    first.update(std::string_view(content).substr(0, cut));
    const auto state = first.state();
    REQUIRE(state);
    ResumableSha256 second;
    REQUIRE(second.restore(*state, static_cast<int64_t>(cut)));
    second.update(std::string_view(content).substr(cut));
    CHECK(second.hex_digest() == sha256_hex(content));
  }
  ResumableSha256 odd;
  odd.update("abc");
  CHECK_FALSE(odd.state());
  CHECK_FALSE(odd.restore("not hex", 64));
  CHECK_FALSE(odd.restore(std::string(64, 'a'), 63));
}

TEST_CASE("git's blob hash is git's", "[fetch]") {
  CHECK(git_blob_sha1("") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  CHECK(git_blob_sha1("hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a");
}
