#include "orchestrator/fetch/fetch.h"

#include <algorithm>
#include <set>

#include "orchestrator/fetch/cache.h"
#include "orchestrator/fetch/content_hash.h"
#include "orchestrator/fetch/mirror_request.h"
#include "runtime/common/hash.h"
#include "tests/catch.h"
#include "tests/fakes/fake_hub.h"
#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

const std::string kBig = "model-00001-of-00002.safetensors";

bool asks_for(const WireRequest& request, const std::string& path) {
  return parse_mirror_request(request.target).path == path;
}

/// A fault that needs the hub it is part of: for answers that are right but for one detail.
struct FaultyHub {
  using Fault = std::function<std::optional<WireReply>(const FakeHub&, const WireRequest&)>;
  explicit FaultyHub(Fault fault)
      : hub(test_pack(), [this, fault](const WireRequest& request) { return fault(hub, request); }) {}
  FakeHub hub;
};

/// Fetches the same pack again, from a hub without faults: nothing of the failed run may be in the way.
void check_next_run_succeeds(const fs::path& cache) {
  FakeHub good(test_pack());
  const FetchResult result = fetch_pack(test_options(good.endpoint(), cache));
  CHECK(difference(result.snapshot, test_pack()).empty());
  CHECK(leftovers(cache).empty());
}

}  // namespace

TEST_CASE("a fetched pack is whole, in the cache's layout, without leftovers", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  std::vector<FetchProgress> seen;
  const FetchResult result = fetch_pack(options, [&](const FetchProgress& progress) { seen.push_back(progress); });

  CHECK(result.snapshot == cache / "models--org--pack" / "snapshots" / hub.commit());
  CHECK(difference(result.snapshot, test_pack()).empty());
  CHECK(leftovers(cache.path()).empty());
  CHECK(read_file(cache / "models--org--pack/refs/main") == hub.commit());
  const fs::path link = fs::read_symlink(result.snapshot / "tokens/merges.txt");
  CHECK(link.string().rfind("../../../blobs/", 0) == 0);
  CHECK(result.bytes_downloaded == result.bytes_total);
  CHECK(result.bytes_reused == 0);
  REQUIRE(!seen.empty());
  CHECK(seen.back().phase == FetchProgress::Phase::done);
  CHECK(seen.back().bytes_done == result.bytes_total);

  const auto snapshot = find_snapshot(cache.path(), "org/pack", "main");
  REQUIRE(snapshot);
  CHECK(snapshot->complete == true);
  CHECK(snapshot->refs == std::vector<std::string>{"main"});
  CHECK(snapshot->bytes == result.bytes_total);
  const auto cached = list_cache(cache.path());
  REQUIRE(cached.size() == 1);
  CHECK(cached[0].repo == "org/pack");
  CHECK(cached[0].blob_bytes == result.bytes_total);
  CHECK(cached[0].partial_bytes == 0);
}

TEST_CASE("a pack that is there is not asked for again", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  fetch_pack(options);
  const size_t before = hub.requests().size();

  SECTION("by branch: one request says that the commit is the same") {
    const FetchResult result = fetch_pack(options);
    CHECK(result.bytes_downloaded == 0);
    CHECK(hub.requests().size() == before + 1);
  }
  SECTION("by commit: no request at all") {
    options.revision = hub.commit();
    CHECK(fetch_pack(options).bytes_reused == fetch_pack(options).bytes_total);
    CHECK(hub.requests().size() == before);
  }
  SECTION("offline: the branch's last commit") {
    options.offline = true;
    options.hub.endpoint = "http://127.0.0.1:1";
    CHECK(fetch_pack(options).commit == hub.commit());
  }
  SECTION("offline, with a file gone: an error that names it") {
    options.offline = true;
    fs::remove(fs::canonical(cache / "models--org--pack/snapshots" / hub.commit() / kBig));
    CHECK_THAT(error_of(options).what(), ContainsSubstring(kBig + " is missing"));
  }
}

TEST_CASE("contents that another tool downloaded are used", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  const std::string content = test_pack().at(kBig);
  write_file(cache / "models--org--pack/blobs" / sha256_hex(content), content);
  const FetchResult result = fetch_pack(test_options(hub.endpoint(), cache.path()));
  CHECK(difference(result.snapshot, test_pack()).empty());
  CHECK(result.bytes_reused == static_cast<int64_t>(content.size()));
  for (const WireRequest& request : hub.content_requests()) CHECK_FALSE(asks_for(request, kBig));
}

TEST_CASE("a blob of the wrong size is not taken for the file", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  write_file(cache / "models--org--pack/blobs" / sha256_hex(test_pack().at(kBig)), "half");
  CHECK(difference(fetch_pack(test_options(hub.endpoint(), cache.path())).snapshot, test_pack()).empty());
}

TEST_CASE("--verify finds a damaged file in the cache and replaces it", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  const FetchResult first = fetch_pack(options);
  std::string damaged = test_pack().at(kBig);
  damaged[1000] ^= 1;
  write_file(fs::canonical(first.snapshot / kBig), damaged);
  CHECK(fetch_pack(options).bytes_downloaded == 0);
  options.verify = true;
  CHECK(fetch_pack(options).bytes_downloaded == static_cast<int64_t>(damaged.size()));
  CHECK(difference(first.snapshot, test_pack()).empty());
}

TEST_CASE("only what the patterns name is fetched", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  options.include = {"*.json", "tokens/*"};
  const FetchResult result = fetch_pack(options);
  CHECK(result.files.size() == 2);
  CHECK(find_snapshot(cache.path(), "org/pack", "main")->complete == false);
  options.include = {"*.gguf"};
  CHECK_THAT(error_of(options).what(), ContainsSubstring("no file of the repository matches"));
  options.include = {};
  CHECK(difference(fetch_pack(options).snapshot, test_pack()).empty());
}

TEST_CASE("a lock file holds the pack to its files", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  options.revision = hub.commit();
  options.expected = HubClient(options.hub).list_files_with_sha256("org/pack", hub.commit());

  SECTION("the same files pass, and are fetched") {
    CHECK(difference(fetch_pack(options).snapshot, test_pack()).empty());
  }
  SECTION("another hash stops it before a byte is fetched") {
    options.expected[2].sha256[0] = options.expected[2].sha256[0] == 'a' ? 'b' : 'a';
    const size_t before = hub.content_requests().size();
    CHECK_THAT(error_of(options).what(), ContainsSubstring("the lock file says"));
    CHECK(hub.content_requests().size() == before);
  }
  SECTION("a small file's sha256 is checked when it arrives") {
    options.expected[0].sha256 = std::string(64, 'a');
    CHECK_THAT(error_of(options).what(), ContainsSubstring("expected aaaaaaaa"));
    CHECK(nothing_visible(cache.path()));
  }
  SECTION("a file that the repository does not have") {
    options.expected[0].path = "other.json";
    CHECK_THAT(error_of(options).what(), ContainsSubstring("other.json is not in the repository"));
  }
}

TEST_CASE("broken connections are continued where they broke", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<int> broken{0};
  FaultyHub faulty([&](const FakeHub& hub, const WireRequest& request) -> std::optional<WireReply> {
    if (!asks_for(request, kBig) || broken++ >= 6) return std::nullopt;
    std::string answer = hub.content_answer(request);
    answer.resize(answer.size() * 2 / 3);
    return WireReply{answer, WireReply::After::close};
  });
  const FetchResult result = fetch_pack(test_options(faulty.hub.endpoint(), cache.path()));
  CHECK(difference(result.snapshot, test_pack()).empty());
  CHECK(result.retries == 6);
  CHECK(result.bytes_downloaded == result.bytes_total);  // no byte came twice
}

TEST_CASE("a stalled connection is replaced", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<int> stalled{0};
  FaultyHub faulty([&](const FakeHub& hub, const WireRequest& request) -> std::optional<WireReply> {
    if (!asks_for(request, kBig) || stalled++ >= 1) return std::nullopt;
    std::string answer = hub.content_answer(request);
    answer.resize(answer.size() - 10);
    return WireReply{answer, WireReply::After::stall};
  });
  const FetchResult result = fetch_pack(test_options(faulty.hub.endpoint(), cache.path()));
  CHECK(difference(result.snapshot, test_pack()).empty());
  CHECK(result.retries == 1);
}

TEST_CASE("a server that stalls for good is given up; what arrived is kept", "[fetch]") {
  TemporaryFolder cache;
  FaultyHub faulty([&](const FakeHub&, const WireRequest& request) -> std::optional<WireReply> {
    if (!asks_for(request, kBig) || request.header("range").rfind("bytes=262144", 0) != 0) return std::nullopt;
    return WireReply{"", WireReply::After::stall};
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  options.hub.retry.stall_timeout = std::chrono::milliseconds(150);
  const Error error = error_of(options);
  CHECK_THAT(error.what(), ContainsSubstring("3 times in a row"));
  CHECK_THAT(error.fix(), ContainsSubstring("continues where it was"));
  CHECK(nothing_visible(cache.path()));

  FakeHub good(test_pack());
  options.hub.endpoint = good.endpoint();
  fetch_pack(options);
  int64_t requested_again = 0;
  for (const WireRequest& request : good.content_requests()) requested_again += asks_for(request, kBig) ? 1 : 0;
  CHECK(requested_again == 1);  // of five ranges, the one that stalled
}

TEST_CASE("a flipped byte is found, and nothing of the file is shown", "[fetch]") {
  TemporaryFolder cache;
  const bool always = GENERATE(true, false);
  std::atomic<int> flipped{0};
  FaultyHub faulty([&](const FakeHub& hub, const WireRequest& request) -> std::optional<WireReply> {
    if (!asks_for(request, kBig) || request.header("range").rfind("bytes=65536-", 0) != 0) return std::nullopt;
    std::string answer = hub.content_answer(request);
    if (always || flipped++ == 0) answer.back() ^= 1;
    return WireReply{answer};
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  if (always) {
    const Error error = error_of(options);
    CHECK_THAT(error.what(), ContainsSubstring("is wrong, also when downloaded again: sha256 is "));
    CHECK(nothing_visible(cache.path()));
    CHECK_FALSE(fs::exists(cache / "models--org--pack/blobs" / sha256_hex(test_pack().at(kBig))));
    check_next_run_succeeds(cache.path());
  } else {
    CHECK(difference(fetch_pack(options).snapshot, test_pack()).empty());
  }
}

TEST_CASE("answers that break the protocol never reach a file", "[fetch]") {
  struct Case {
    std::string name;
    std::function<WireReply(const FakeHub&, const WireRequest&)> reply;
    std::string what;
  };
  const auto with = [](const std::string& header) {
    return [header](const FakeHub& hub, const WireRequest& request) {
      std::string answer = hub.content_answer(request);
      answer.insert(answer.find("\r\n") + 2, header + "\r\n");
      return WireReply{answer};
    };
  };
  const auto replaced = [](const std::string& from, const std::string& to) {
    return [from, to](const FakeHub& hub, const WireRequest& request) {
      std::string answer = hub.content_answer(request);
      if (const auto at = answer.find(from); at != std::string::npos) answer.replace(at, from.size(), to);
      return WireReply{answer};
    };
  };
  const std::vector<Case> cases = {
      {"another range", replaced("Content-Range: bytes ", "Content-Range: bytes 1"), "the server answers bytes "},
      {"no range", replaced("Content-Range: bytes ", "X-Nothing: "), "the server answers bytes "},
      {"another size", replaced("/300001", "/300002"), "has 300002 bytes, listed are 300001"},
      {"compressed", with("Content-Encoding: gzip"), "compressed (gzip)"},
      {"another content", replaced("ETag: \"", "ETag: \"" + std::string(64, 'f') + "\"\r\nX-Old: \""),
       "another content than its list says"},
      {"another commit", replaced("X-Repo-Commit: ", "X-Repo-Commit: " + std::string(40, 'a') + "\r\nX-Old: "),
       "answers with commit aaaa"},
      {"404", [](auto&, auto&) { return WireReply{http_answer(404, "", {"X-Error-Code: EntryNotFound"})}; },
       "no file " + kBig},
      {"401", [](auto&, auto&) { return WireReply{http_answer(401, "")}; }, "wants a token"},
      {"403", [](auto&, auto&) { return WireReply{http_answer(403, "")}; }, "refuses to give out"},
      {"416", [](auto&, auto&) { return WireReply{http_answer(416, "")}; }, "shorter than its list says (416)"},
      {"429", [](auto&, auto&) { return WireReply{http_answer(429, "")}; }, "no more requests for now (429), 3 times"},
      {"429 for hours", [](auto&, auto&) { return WireReply{http_answer(429, "", {"Retry-After: 7200"})}; },
       "no more requests for now (429)"},
      {"503", [](auto&, auto&) { return WireReply{http_answer(503, "")}; }, "a problem of its own (503)"},
      {"nothing at all",
       [](auto&, auto&) {
         return WireReply{"", WireReply::After::close};
       },
       "closed the connection"},
      {"not HTTP",
       [](auto&, auto&) {
         return WireReply{"hello\r\n\r\n", WireReply::After::close};
       },
       "closed the connection"},
      {"a short file", [](auto&, auto&) { return WireReply{http_answer(200, "short")}; }, ""},
  };
  for (const Case& one : cases) {
    INFO(one.name);
    TemporaryFolder cache;
    FaultyHub faulty([&](const FakeHub& hub, const WireRequest& request) -> std::optional<WireReply> {
      if (!asks_for(request, kBig)) return std::nullopt;
      return one.reply(hub, request);
    });
    const Error error = error_of(test_options(faulty.hub.endpoint(), cache.path()));
    CHECK_THAT(error.what(), ContainsSubstring(one.what));
    CHECK(error.kind() == ErrorKind::fetch);
    CHECK_FALSE(error.fix().empty());
    CHECK(nothing_visible(cache.path()));
    check_next_run_succeeds(cache.path());
  }
}

TEST_CASE("Retry-After is waited for", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<int> refused{0};
  FaultyHub faulty([&](const FakeHub&, const WireRequest& request) -> std::optional<WireReply> {
    // More refusals than tries: a server that says when to come back gets more patience.
    if (!asks_for(request, kBig) || refused++ >= 10) return std::nullopt;
    return WireReply{http_answer(429, "", {"Retry-After: 0"})};
  });
  CHECK(difference(fetch_pack(test_options(faulty.hub.endpoint(), cache.path())).snapshot, test_pack()).empty());
  CHECK(refused > 10);
}

TEST_CASE("a server without range requests still works, in one stream", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<int> broken{0};
  FaultyHub faulty([&](const FakeHub& hub, const WireRequest& request) -> std::optional<WireReply> {
    if (parse_mirror_request(request.target).kind != MirrorRequest::Kind::file) return std::nullopt;
    WireRequest whole = request;
    whole.headers.erase("range");
    std::string answer = hub.content_answer(whole);
    if (request.header("range").empty() && asks_for(request, kBig) && broken++ == 0) {
      answer.resize(answer.size() / 2);
      return WireReply{answer, WireReply::After::close};
    }
    return WireReply{answer};
  });
  const FetchResult result = fetch_pack(test_options(faulty.hub.endpoint(), cache.path()));
  CHECK(difference(result.snapshot, test_pack()).empty());
  CHECK(leftovers(cache.path()).empty());
  CHECK(result.retries == 1);
}

TEST_CASE("contents come from where the hub redirects to, without the token, asking the hub once", "[fetch]") {
  TemporaryFolder cache;
  FakeHub storage(test_pack());
  FaultyHub faulty([&](const FakeHub& hub, const WireRequest& request) -> std::optional<WireReply> {
    if (parse_mirror_request(request.target).kind != MirrorRequest::Kind::file) return std::nullopt;
    return WireReply{
        http_answer(302, "", {"Location: " + storage.endpoint() + request.target, "X-Repo-Commit: " + hub.commit()})};
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  options.hub.token = "hf_secret";
  options.parallel = 1;
  const FetchResult result = fetch_pack(options);
  CHECK(difference(result.snapshot, test_pack()).empty());
  for (const WireRequest& request : storage.requests()) CHECK(request.header("authorization").empty());
  for (const WireRequest& request : faulty.hub.requests()) CHECK(request.header("authorization") == "Bearer hf_secret");
  int64_t asked = 0;
  for (const WireRequest& request : faulty.hub.content_requests()) asked += asks_for(request, kBig) ? 1 : 0;
  CHECK(asked == 1);
}

TEST_CASE("an expired signed address is asked for anew", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<int> served{0};
  FakeHub* storage_hub = nullptr;
  FakeHub storage(test_pack(), [&](const WireRequest& request) -> std::optional<WireReply> {
    if (asks_for(request, kBig) && served++ == 1) return WireReply{http_answer(403, "expired")};
    return WireReply{storage_hub->content_answer(request)};
  });
  storage_hub = &storage;
  FaultyHub faulty([&](const FakeHub&, const WireRequest& request) -> std::optional<WireReply> {
    if (parse_mirror_request(request.target).kind != MirrorRequest::Kind::file) return std::nullopt;
    return WireReply{http_answer(302, "", {"Location: " + storage.endpoint() + request.target})};
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  options.parallel = 1;
  CHECK(difference(fetch_pack(options).snapshot, test_pack()).empty());
}

TEST_CASE("a branch that moved between two runs is fetched anew, its old parts go", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<bool> broken{true};
  FaultyHub faulty([&](const FakeHub&, const WireRequest& request) -> std::optional<WireReply> {
    const std::string range = request.header("range");
    if (broken && asks_for(request, kBig) && range.rfind("bytes=262144", 0) == 0)
      return WireReply{http_answer(404, "")};
    return std::nullopt;
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  options.parallel = 1;
  error_of(options);
  REQUIRE(leftovers(cache.path()).size() == 2);

  auto changed = test_pack();
  changed[kBig] = random_bytes(300'001, 77);
  faulty.hub.replace_files(changed);
  broken = false;
  const FetchResult result = fetch_pack(options);
  CHECK(difference(result.snapshot, changed).empty());
  CHECK(leftovers(cache.path()).empty());
}

TEST_CASE("parts of a pinned commit outlive a fetch of another revision", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<bool> broken{true};
  FaultyHub faulty([&](const FakeHub&, const WireRequest& request) -> std::optional<WireReply> {
    if (broken && asks_for(request, kBig) && request.header("range").rfind("bytes=262144", 0) == 0)
      return WireReply{http_answer(404, "")};
    return std::nullopt;
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  options.parallel = 1;
  options.revision = faulty.hub.commit();
  error_of(options);
  auto changed = test_pack();
  changed[kBig] = random_bytes(300'001, 77);
  faulty.hub.replace_files(changed);
  broken = false;
  options.revision = "main";
  fetch_pack(options);
  CHECK(leftovers(cache.path()).size() == 2);
}

TEST_CASE("a partial file that does not fit its journal starts anew", "[fetch]") {
  TemporaryFolder cache;
  std::atomic<bool> broken{true};
  FaultyHub faulty([&](const FakeHub&, const WireRequest& request) -> std::optional<WireReply> {
    if (broken && asks_for(request, kBig) && request.header("range").rfind("bytes=262144", 0) == 0)
      return WireReply{http_answer(404, "")};
    return std::nullopt;
  });
  FetchOptions options = test_options(faulty.hub.endpoint(), cache.path());
  options.parallel = 1;
  error_of(options);
  const fs::path part = cache / "models--org--pack/blobs" / (sha256_hex(test_pack().at(kBig)) + ".tandem.incomplete");
  REQUIRE(fs::exists(part));
  SECTION("it was cut") {
    fs::resize_file(part, 1000);
  }
  SECTION("it is gone") {
    fs::remove(part);
  }
  SECTION("its bytes were changed behind the journal's back, after the hash passed them or before") {
    std::string content = read_file(part);
    content[70'000] ^= 1;
    write_file(part, content);
    // The hash state stands for the bytes as they arrived, so this one is for --verify to find.
    broken = false;
    fetch_pack(options);
    options.verify = true;
  }
  broken = false;
  CHECK(difference(fetch_pack(options).snapshot, test_pack()).empty());
}

TEST_CASE("two fetches of one repository take turns, and the second downloads nothing", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack(), [](const WireRequest& request) -> std::optional<WireReply> {
    if (parse_mirror_request(request.target).kind == MirrorRequest::Kind::file)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return std::nullopt;
  });
  std::vector<FetchResult> results(2);
  {
    std::vector<std::jthread> threads;
    for (FetchResult& result : results) {
      threads.emplace_back([&] { result = fetch_pack(test_options(hub.endpoint(), cache.path())); });
    }
  }
  CHECK(results[0].bytes_downloaded + results[1].bytes_downloaded == results[0].bytes_total);
  CHECK(difference(results[0].snapshot, test_pack()).empty());
}

TEST_CASE("a cancelled fetch ends soon, with its own kind of error, and can be continued", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack(), [](const WireRequest& request) -> std::optional<WireReply> {
    if (!asks_for(request, kBig)) return std::nullopt;
    return WireReply{"HTTP/1.1 206 OK\r\n", WireReply::After::stall};
  });
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  options.hub.retry.stall_timeout = std::chrono::hours(1);
  std::atomic<bool> cancel{false};
  const auto start = std::chrono::steady_clock::now();
  try {
    fetch_pack(
        options,
        [&](const FetchProgress& progress) {
          if (progress.files_done >= 2) cancel = true;
        },
        &cancel);
    FAIL("it was not interrupted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::interrupted);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  CHECK(nothing_visible(cache.path()));
  check_next_run_succeeds(cache.path());
}

TEST_CASE("too little disk space is said before a byte is downloaded, counting what is there", "[fetch]") {
  TemporaryFolder cache;
  FakeHub hub(test_pack());
  FetchOptions options = test_options(hub.endpoint(), cache.path());
  options.reserve_bytes = INT64_MAX / 2;
  const Error error = error_of(options);
  CHECK_THAT(error.what(), ContainsSubstring("not enough disk space"));
  CHECK(hub.content_requests().empty());
  options.reserve_bytes = 0;
  fetch_pack(options);
  options.reserve_bytes = INT64_MAX / 2;
  options.verify = true;  // complete: nothing is needed
  CHECK(fetch_pack(options).bytes_downloaded == 0);
}

TEST_CASE("options out of range are refused", "[fetch]") {
  TemporaryFolder cache;
  FetchOptions options = test_options("http://127.0.0.1:1", cache.path());
  options.parallel = 0;
  CHECK(error_of(options).kind() == ErrorKind::usage);
  options.parallel = 1;
  options.range_bytes = 1000;
  CHECK(error_of(options).kind() == ErrorKind::usage);
}

TEST_CASE("a folder source is checked, not copied", "[fetch]") {
  TemporaryFolder folder;
  for (const auto& [path, content] : test_pack()) write_file(folder / path, content);
  CHECK(verify_folder(folder.path(), {}).files.size() == 5);
  std::vector<HubFile> expected = {{kBig, 300'001, sha256_hex(test_pack().at(kBig)), ""}};
  CHECK(verify_folder(folder.path(), expected).bytes_total == 300'001);
  expected[0].sha256[5] = expected[0].sha256[5] == 'a' ? 'b' : 'a';
  CHECK_THROWS_WITH(verify_folder(folder.path(), expected), ContainsSubstring("sha256 is"));
  expected[0].size = 5;
  CHECK_THROWS_WITH(verify_folder(folder.path(), expected), ContainsSubstring("has 300001 bytes, expected 5"));
  expected[0].path = "../x";
  CHECK_THROWS_AS(verify_folder(folder.path(), expected), Error);
  CHECK_THROWS_WITH(verify_folder(folder / "absent", {}), ContainsSubstring("no such folder"));
}

TEST_CASE("progress reads like a sentence and never says 100 % too early", "[fetch]") {
  FetchProgress progress;
  progress.phase = FetchProgress::Phase::downloading;
  progress.bytes_done = 999;
  progress.bytes_total = 1000;
  progress.bytes_per_second = 2048;
  progress.remaining = std::chrono::seconds(90);
  progress.file = "model.safetensors";
  CHECK(format_progress(progress) == "999 B of 1000 B   99%  2.0 KiB/s  1m 30s left  model.safetensors");
}
