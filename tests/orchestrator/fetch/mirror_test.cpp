#include "orchestrator/fetch/mirror.h"

#include <unistd.h>

#include <fstream>

#include "orchestrator/fetch/http.h"
#include "orchestrator/fetch/mirror_request.h"
#include "tests/catch.h"
#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

struct Fetched {
  HttpResponse response;
  std::string body;
};

Fetched get(const std::string& url, const std::string& range = "") {
  HttpWatch watch{RetryPolicy{}};
  HttpConnection connection(watch);
  HttpConnection::Headers headers;
  if (!range.empty()) headers.emplace_back("Range", range);
  Fetched fetched;
  // The target goes out as it is: a client of a test must be able to be rude.
  fetched.response = connection.get(
      parse_url(url), headers, [](const HttpResponse&) { return true; },
      [&](std::string_view data) {
        fetched.body += data;
        return true;
      });
  return fetched;
}

void write_pack(const fs::path& folder) {
  for (const auto& [path, content] : test_pack()) write_file(folder / path, content);
}

MirrorOptions serve(const fs::path& root) {
  MirrorOptions options;
  options.root = root;
  return options;
}

}  // namespace

TEST_CASE("a folder of packs can be fetched from a mirror", "[mirror]") {
  TemporaryFolder packs;
  TemporaryFolder cache;
  write_pack(packs / "org/pack");
  write_pack(packs / "plain");
  RunningMirror mirror(serve(packs.path()));
  FetchOptions options = test_options(mirror.endpoint(), cache.path());
  const FetchResult result = fetch_pack(options);
  CHECK(difference(result.snapshot, test_pack()).empty());
  options.repo = "plain";
  CHECK(fetch_pack(options).commit == result.commit);  // the same content, wherever it lies
  options.repo = "someone/plain";
  CHECK(fetch_pack(options).commit == result.commit);  // a folder without its publisher's name
  options.repo = "org/other";
  CHECK_THAT(error_of(options).what(), ContainsSubstring("no repository org/other"));
}

TEST_CASE("a mirror of a cache serves what was fetched, under the same commit", "[mirror]") {
  TemporaryFolder packs;
  TemporaryFolder first;
  TemporaryFolder second;
  write_pack(packs / "org/pack");
  std::string commit;
  {
    RunningMirror mirror(serve(packs.path()));
    commit = fetch_pack(test_options(mirror.endpoint(), first.path())).commit;
  }
  RunningMirror mirror(serve(first.path()));
  for (const std::string& revision : {std::string("main"), commit}) {
    FetchOptions options = test_options(mirror.endpoint(), second / revision);
    options.revision = revision;
    const FetchResult result = fetch_pack(options);
    CHECK(result.commit == commit);
    CHECK(difference(result.snapshot, test_pack()).empty());
  }
  SECTION("but not a commit of which only a part is there") {
    fs::remove(fs::canonical(first / "models--org--pack/snapshots" / commit / "config.json"));
    CHECK_THAT(error_of(test_options(mirror.endpoint(), second / "third")).what(), ContainsSubstring("no revision"));
  }
}

TEST_CASE("ranges, sizes and hashes are answered as the hub does", "[mirror]") {
  TemporaryFolder packs;
  write_pack(packs / "pack");
  RunningMirror mirror(serve(packs.path()));
  const std::string content = test_pack().at("model-00001-of-00002.safetensors");
  const std::string url = mirror.endpoint() + "/pack/resolve/main/model-00001-of-00002.safetensors";
  const Fetched whole = get(url);
  CHECK(whole.response.status == 200);
  CHECK(whole.body == content);
  CHECK(whole.response.content_length() == static_cast<int64_t>(content.size()));
  CHECK(whole.response.header("X-Linked-Size") == std::to_string(content.size()));
  CHECK(whole.response.header("X-Repo-Commit").size() == 40);

  const Fetched middle = get(url, "bytes=1000-1999");
  CHECK(middle.response.status == 206);
  CHECK(middle.response.header("Content-Range") == "bytes 1000-1999/300001");
  CHECK(middle.body == content.substr(1000, 1000));
  CHECK(get(url, "bytes=300000-999999").body == content.substr(300'000));
  CHECK(get(url, "bytes=299000-").body == content.substr(299'000));
  CHECK(get(url, "bytes=-5").body == content.substr(299'996));
  CHECK(get(url, "bytes=300001-").response.status == 416);
  CHECK(get(url, "bytes=0-1,5-6").response.status == 416);
  CHECK(get(mirror.endpoint() + "/pack/resolve/main/empty.txt").response.status == 200);
  CHECK(get(mirror.endpoint() + "/pack/resolve/main/absent").response.status == 404);
  CHECK(get(mirror.endpoint() + "/").body.find("\"pack\"") != std::string::npos);
}

TEST_CASE("no request leaves the pack's folder", "[mirror]") {
  TemporaryFolder outside;
  write_file(outside / "secret.txt", "secret");
  TemporaryFolder packs;
  write_pack(packs / "pack");
  write_file(packs / "other/config.json", "{}");
  fs::create_symlink(outside / "secret.txt", packs / "pack/link.txt");
  fs::create_directory_symlink(outside.path(), packs / "pack/folder");
  fs::create_symlink("config.json", packs / "pack/inside.json");
  RunningMirror mirror(serve(packs.path()));
  for (const char* path :
       {"../other/config.json", "%2e%2e/other/config.json", "..%2fother%2fconfig.json", "link.txt", "folder/secret.txt",
        "/etc/passwd", "%2fetc%2fpasswd", "tokens/../config.json", "config.json%00.txt", ".", ""}) {
    INFO(path);
    const Fetched fetched = get(mirror.endpoint() + "/pack/resolve/main/" + path);
    CHECK(fetched.response.status == 404);
    CHECK(fetched.body.find("secret") == std::string::npos);
  }
  CHECK(get(mirror.endpoint() + "/pack/resolve/main/inside.json").response.status == 200);
  CHECK(get(mirror.endpoint() + "/pack/resolve/..%2f..%2f/config.json").response.status == 404);
  CHECK(get(mirror.endpoint() + "/../pack/resolve/main/config.json").response.status == 404);
}

TEST_CASE("a changed file makes a new commit, and the old one is gone", "[mirror]") {
  TemporaryFolder packs;
  write_pack(packs / "pack");
  RunningMirror mirror(serve(packs.path()));
  HubClient client(test_options(mirror.endpoint(), "").hub);
  const std::string before = client.resolve_commit("pack", "main");
  write_file(packs / "pack/config.json", "{\"changed\": true}\n");
  const std::string after = client.resolve_commit("pack", "main");
  CHECK(before != after);
  CHECK_THROWS_WITH(client.list_files("pack", before), ContainsSubstring("no longer exists"));
}

TEST_CASE("the request log has one line a request, written before the answer", "[mirror]") {
  TemporaryFolder packs;
  write_pack(packs / "pack");
  MirrorOptions options = serve(packs.path());
  options.log = packs / "requests.log";
  RunningMirror mirror(options);
  get(mirror.endpoint() + "/pack/resolve/main/config.json", "bytes=0-3");
  get(mirror.endpoint() + "/nothing/resolve/main/config.json");
  CHECK(read_file(options.log) ==
        "GET /pack/resolve/main/config.json 0-3 206\nGET /nothing/resolve/main/config.json - 404\n");
}

TEST_CASE("a bandwidth limit is kept over all connections", "[mirror]") {
  TemporaryFolder packs;
  TemporaryFolder cache;
  write_pack(packs / "org/pack");
  MirrorOptions options = serve(packs.path());
  options.bytes_per_second = 1'000'000;
  RunningMirror mirror(options);
  const FetchResult result = fetch_pack(test_options(mirror.endpoint(), cache.path()));
  CHECK(result.elapsed.count() >= result.bytes_total / 1000 * 8 / 10);
}

TEST_CASE("a port that is taken and a folder without packs are errors", "[mirror]") {
  TemporaryFolder packs;
  CHECK_THROWS_WITH(Mirror(serve(packs.path())), ContainsSubstring("no packs"));
  CHECK_THROWS_WITH(Mirror(serve(packs / "absent")), ContainsSubstring("no such folder"));
  write_pack(packs / "pack");
  RunningMirror first(serve(packs.path()));
  MirrorOptions options = serve(packs.path());
  options.port = first.port();
  CHECK_THROWS_WITH(Mirror(options), ContainsSubstring("the port is taken"));
}

TEST_CASE("mirror requests are taken apart without decoding too early", "[mirror]") {
  using Kind = MirrorRequest::Kind;
  CHECK(parse_mirror_request("/").kind == Kind::index);
  CHECK(parse_mirror_request("/api/models/org/pack").repo == "org/pack");
  const auto pull = parse_mirror_request("/api/models/org/pack/revision/refs%2Fpr%2F1");
  CHECK(pull.kind == Kind::info);
  CHECK(pull.revision == "refs/pr/1");
  const auto tree = parse_mirror_request("/api/models/pack/tree/main?recursive=true&limit=5&cursor=10");
  CHECK(tree.kind == Kind::tree);
  CHECK(tree.repo == "pack");
  CHECK(tree.limit == 5);
  CHECK(tree.cursor == 10);
  const auto file = parse_mirror_request("/org/pack/resolve/main/a%20b/c?download=true");
  CHECK(file.kind == Kind::file);
  CHECK(file.path == "a b/c");
  CHECK(parse_mirror_request("/org/pack/blob/main/x").kind == Kind::unknown);
}

TEST_CASE("the smallest page size still lists everything", "[mirror]") {
  TemporaryFolder packs;
  write_pack(packs / "pack");
  RunningMirror mirror(serve(packs.path()));
  const Fetched page = get(mirror.endpoint() + "/api/models/pack/tree/main?limit=2");
  CHECK(page.response.header("Link") == "</api/models/pack/tree/main?recursive=true&limit=2&cursor=2>; rel=\"next\"");
}
