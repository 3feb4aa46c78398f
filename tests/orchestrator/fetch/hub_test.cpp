#include "orchestrator/fetch/hub.h"

#include <nlohmann/json.hpp>

#include "orchestrator/fetch/content_hash.h"
#include "orchestrator/fetch/url.h"
#include "runtime/common/hash.h"
#include "tests/catch.h"
#include "tests/fakes/fake_hub.h"
#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

HubOptions hub_at(const std::string& endpoint) {
  return test_options(endpoint, "").hub;
}

template <typename Function>
Error thrown_by(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("nothing was thrown");
}

/// A server that gives every request the same answer.
ScriptedServer always(std::string answer) {
  return ScriptedServer([answer](const WireRequest&) { return WireReply{answer}; });
}

std::string tree_of(const std::string& path) {
  return nlohmann::json::array({{{"type", "file"}, {"path", path}, {"size", 1}, {"oid", std::string(40, 'a')}}}).dump();
}

}  // namespace

TEST_CASE("a hub lists its files with sizes and hashes at the commit of a branch", "[fetch]") {
  const auto files = test_pack();
  FakeHub hub(files);
  HubClient client(hub_at(hub.endpoint()));
  const std::string commit = client.resolve_commit("org/pack", "main");
  REQUIRE(commit == hub.commit());
  const auto listed = client.list_files("org/pack", commit);
  REQUIRE(listed.size() == files.size());
  for (const HubFile& file : listed) {
    INFO(file.path);
    const std::string& content = files.at(file.path);
    CHECK(file.size == static_cast<int64_t>(content.size()));
    CHECK(file.etag() == (content.size() >= 10'000 ? sha256_hex(content) : git_blob_sha1(content)));
  }
  CHECK(std::is_sorted(listed.begin(), listed.end(), [](auto& a, auto& b) { return a.path < b.path; }));
}

TEST_CASE("a list for a lock file has a sha256 for every file", "[fetch]") {
  const auto files = test_pack();
  FakeHub hub(files);
  HubClient client(hub_at(hub.endpoint()));
  for (const HubFile& file : client.list_files_with_sha256("org/pack", hub.commit())) {
    CHECK(file.sha256 == sha256_hex(files.at(file.path)));
  }
}

TEST_CASE("a file list in several pages is read to its end", "[fetch]") {
  ScriptedServer server([](const WireRequest& request) {
    const bool first = request.target.find("cursor") == std::string::npos;
    std::vector<std::string> headers;
    if (first) headers.push_back("Link: </api/models/org/pack/tree/main?recursive=true&cursor=abc>; rel=\"next\"");
    return WireReply{http_answer(200, tree_of(first ? "a" : "b"), headers)};
  });
  HubClient client(hub_at(server.endpoint()));
  const auto files = client.list_files("org/pack", "main");
  REQUIRE(files.size() == 2);
  CHECK(files[1].path == "b");
}

TEST_CASE("a file list that continues on another server is refused", "[fetch]") {
  auto server = always(http_answer(200, tree_of("a"), {"Link: <http://127.0.0.2:9/next>; rel=\"next\""}));
  HubClient client(hub_at(server.endpoint()));
  CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring("another server"));
}

TEST_CASE("file names that would leave their folder or deceive are refused", "[fetch]") {
  const std::vector<std::string> bad = {"../x",       "a/../b", "/etc/passwd", "a//b", "a\\b",
                                        "a\nb",       "",       ".",           "a/.",  "nul",
                                        "a/COM1.txt", "x.",     "a:b",         "\xff", std::string(300, 'x')};
  for (const std::string& path : bad) {
    INFO(printable(path));
    CHECK_THROWS_AS(check_file_path(path), Error);
  }
  CHECK_NOTHROW(check_file_path("sub/model-00001-of-00002.safetensors"));
  CHECK_NOTHROW(check_file_path(".gitattributes"));
  auto server = always(http_answer(200, tree_of("../../.bashrc")));
  HubClient client(hub_at(server.endpoint()));
  const Error error = thrown_by([&] { client.list_files("org/pack", "main"); });
  CHECK(error.where() == "../../.bashrc");
}

TEST_CASE("file lists that contradict themselves are refused", "[fetch]") {
  const auto file = [](const std::string& path) { return HubFile{path, 1, "", std::string(40, 'a')}; };
  CHECK_THROWS_WITH(check_file_list({file("Model"), file("model")}), ContainsSubstring("case"));
  CHECK_THROWS_WITH(check_file_list({file("a"), file("a/b")}), ContainsSubstring("both a file and a folder"));
  CHECK_THROWS_WITH(check_file_list({HubFile{"a", 1, "", ""}}), ContainsSubstring("no usable content hash"));
  CHECK_THROWS_WITH(check_file_list({HubFile{"a", 1, "../../x", ""}}), ContainsSubstring("no usable content hash"));
  CHECK_THROWS_WITH(check_file_list({HubFile{"a", INT64_MAX, "", std::string(40, 'a')}, file("b")}),
                    ContainsSubstring("impossible size"));
  CHECK_THROWS_WITH(check_file_list(std::vector<HubFile>(20'001, file("a"))), ContainsSubstring("20001 files"));

  const nlohmann::json two_sizes = nlohmann::json::array({{{"type", "file"},
                                                           {"path", "a"},
                                                           {"size", 5},
                                                           {"oid", ""},
                                                           {"lfs", {{"oid", std::string(64, 'a')}, {"size", 6}}}}});
  auto server = always(http_answer(200, two_sizes.dump()));
  HubClient client(hub_at(server.endpoint()));
  CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring("two sizes for one file: 5 and 6"));
}

TEST_CASE("repository ids and revisions that cannot be names are refused", "[fetch]") {
  for (const char* repo : {"", "a/b/c", "../x", "a/", "/a", "a--b", "a/b ", ".a", "a/b\n"}) {
    INFO(printable(repo));
    CHECK_THROWS_AS(check_repo_id(repo), Error);
  }
  for (const char* revision : {"", "../x", "a b", "a//b", "-x", "/a", "a/", ".x"}) {
    INFO(printable(revision));
    CHECK_THROWS_AS(check_revision(revision), Error);
  }
  CHECK_NOTHROW(check_repo_id("bertholomus/Ling-3.1-flash-1019-EXL3-3.03bpw"));
  CHECK_NOTHROW(check_revision("refs/pr/1"));
}

TEST_CASE("answers that are no hub's are recognised", "[fetch]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"<html>", "not JSON"},
      {"{}", "not a list"},
      {"[1]", "not an object"},
      {"[{\"type\": \"file\", \"path\": \"a\"}]", "no usable size"},
      {"[{\"type\": \"file\", \"path\": \"a\", \"size\": 1.5}]", "no usable size"},
      {"[{\"type\": \"file\", \"path\": \"a\", \"size\": 18446744073709551615}]", "no usable size"}};
  for (const auto& [body, message] : cases) {
    INFO(body);
    auto server = always(http_answer(200, body));
    HubClient client(hub_at(server.endpoint()));
    CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring(message));
  }
  auto server = always(http_answer(200, "[]", {"Content-Encoding: gzip"}));
  HubClient client(hub_at(server.endpoint()));
  CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring("compressed"));
}

TEST_CASE("a JSON answer without end is cut off at its limit", "[fetch]") {
  auto server = always("HTTP/1.1 200 OK\r\nContent-Length: 90000000000\r\n\r\n[");
  HubClient client(hub_at(server.endpoint()));
  CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring("larger than"));
}

TEST_CASE("every refusal of the hub has its own sentence and way out", "[fetch]") {
  struct Case {
    int status;
    std::vector<std::string> headers;
    std::string token;
    std::string what;
    std::string fix;
  };
  const std::vector<Case> cases = {
      {401, {}, "", "does not exist under this name", "set HF_TOKEN"},
      {401, {}, "hf_x", "does not accept the token", "/settings/tokens"},
      {403, {"X-Error-Code: GatedRepo"}, "hf_x", "is gated", "accept its terms"},
      {403, {"X-Error-Message: nope"}, "hf_x", "the token may not read org/pack (403); it says: nope", "read access"},
      {404, {"X-Error-Code: RepoNotFound"}, "", "no repository org/pack", "private"},
      {404, {"X-Error-Code: RevisionNotFound"}, "", "no revision \"main\"", "branch, tag or commit"},
      {429, {}, "", "no more requests for now (429), 3 times in a row", "wait some minutes"},
      {500, {}, "", "a problem of its own (500), 3 times", "later"},
      {418, {}, "", "unexpected answer 418", "HF_ENDPOINT"},
  };
  for (const Case& one : cases) {
    INFO(one.status << " " << one.what);
    auto server = always(http_answer(one.status, "{\"error\": \"\"}", one.headers));
    HubOptions options = hub_at(server.endpoint());
    options.token = one.token;
    HubClient client(options);
    const Error error = thrown_by([&] { client.resolve_commit("org/pack", "main"); });
    CHECK_THAT(error.what(), ContainsSubstring(one.what));
    CHECK_THAT(error.fix(), ContainsSubstring(one.fix));
    CHECK_THAT(error.where(), ContainsSubstring(server.endpoint()));
    CHECK(error.kind() == ErrorKind::fetch);
    CHECK(error.report().find("hf_x") == std::string::npos);
  }
}

TEST_CASE("a vanished commit is named as such", "[fetch]") {
  FakeHub hub(test_pack());
  HubClient client(hub_at(hub.endpoint()));
  const Error error = thrown_by([&] { client.list_files("org/pack", std::string(40, 'b')); });
  CHECK_THAT(error.what(), ContainsSubstring("no longer exists on the server"));
}

TEST_CASE("a server that cannot be reached is told apart by cause", "[fetch]") {
  int port = 0;
  {
    auto gone = always("");
    port = gone.port();
  }
  HubClient refused(hub_at("http://127.0.0.1:" + std::to_string(port)));
  CHECK_THROWS_WITH(refused.resolve_commit("org/pack", "main"), ContainsSubstring("no connection to http://127.0.0.1"));

  HubClient nameless(hub_at("http://no-such-host.invalid"));
  CHECK_THROWS_WITH(nameless.resolve_commit("org/pack", "main"), ContainsSubstring("has no address"));

  auto plain = always(http_answer(200, "{}"));
  HubClient tls(hub_at("https://127.0.0.1:" + std::to_string(plain.port())));
  CHECK_THROWS_WITH(tls.resolve_commit("org/pack", "main"), ContainsSubstring("no secure connection"));
}

TEST_CASE("a stalled hub is given up after bounded tries", "[fetch]") {
  ScriptedServer server([](const WireRequest&) {
    return WireReply{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[", WireReply::After::stall};
  });
  HubClient client(hub_at(server.endpoint()));
  const Error error = thrown_by([&] { client.list_files("org/pack", "main"); });
  CHECK_THAT(error.what(), ContainsSubstring("for 300 ms, 3 times in a row"));
  CHECK(server.requests().size() == 3);
}

TEST_CASE("the token goes to the endpoint and nowhere else", "[fetch]") {
  ScriptedServer elsewhere([](const WireRequest&) { return WireReply{http_answer(200, "[]")}; });
  // Another port is another server, whoever runs it.
  ScriptedServer hub([&](const WireRequest& request) {
    if (request.target.find("/tree/") == std::string::npos) return WireReply{http_answer(200, "{}")};
    return WireReply{http_answer(302, "", {"Location: " + elsewhere.endpoint() + "/list?signature=secret"})};
  });
  HubOptions options = hub_at(hub.endpoint());
  options.token = "hf_secret";
  HubClient client(options);
  CHECK(client.list_files("org/pack", "main").empty());
  REQUIRE(hub.requests().size() == 1);
  CHECK(hub.requests()[0].header("authorization") == "Bearer hf_secret");
  REQUIRE(elsewhere.requests().size() == 1);
  CHECK(elsewhere.requests()[0].header("authorization").empty());
}

TEST_CASE("redirects in a circle come to an end", "[fetch]") {
  ScriptedServer server(
      [](const WireRequest& request) { return WireReply{http_answer(302, "", {"Location: " + request.target})}; });
  HubClient client(hub_at(server.endpoint()));
  CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring("redirects in a row"));
}

TEST_CASE("addresses are taken apart, and odd ones refused", "[fetch]") {
  const Url url = parse_url("HTTPS://Example.org:8443/a/b?q=1#x");
  CHECK(url.origin() == "https://example.org:8443");
  CHECK(url.target == "/a/b?q=1");
  CHECK(url.display() == "https://example.org:8443/a/b");
  CHECK(parse_url("http://[::1]:80").origin() == "http://[::1]");
  CHECK(parse_url("http://[::1]").is_loopback());
  CHECK(parse_url("http://127.1.2.3/").is_loopback());
  CHECK_FALSE(parse_url("http://127.example.org/").is_loopback());
  for (const char* bad : {"", "ftp://x", "file:///etc", "http://", "http://user:pw@host/", "http://a b", "http://h:0",
                          "http://h:99999", "http://h:1x", "http://[::1", "http://h\r\nX: y/"}) {
    INFO(printable(bad));
    CHECK_THROWS_AS(parse_url(bad), Error);
  }
  CHECK(thrown_by([] { parse_url("http://user:pw@host/"); }).report().find("pw") == std::string::npos);
  CHECK(resolve_location(url, "/c").text() == "https://example.org:8443/c");
  CHECK(resolve_location(url, "c").text() == "https://example.org:8443/a/c");
  CHECK(resolve_location(url, "//o/c").text() == "https://o/c");
  CHECK(resolve_location(url, "http://o/c").text() == "http://o/c");
}

TEST_CASE("a recipe's address is a folder or a repository on a server", "[fetch]") {
  CHECK(parse_pack_url("file:///packs/my%20pack").folder == "/packs/my pack");
  const PackUrl mirror = parse_pack_url("http://127.0.0.1:8090/org/pack/");
  CHECK(mirror.endpoint == "http://127.0.0.1:8090");
  CHECK(mirror.repo == "org/pack");
  CHECK(parse_pack_url("https://h/prefix/more/org/pack").endpoint == "https://h/prefix/more");
  CHECK(parse_pack_url("http://h/pack").repo == "pack");
  for (const char* bad : {"file://relative", "http://h", "http://h/", "packs/x", "http://h/a/../b"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_pack_url(bad), Error);
  }
}

TEST_CASE("Retry-After is understood as seconds and as a date", "[fetch]") {
  using std::chrono::seconds;
  const auto now = std::chrono::system_clock::from_time_t(1'792'567'680);  // 2026-10-21 07:28:00 UTC
  CHECK(parse_retry_after("7", now) == seconds(7));
  CHECK(parse_retry_after("Wed, 21 Oct 2026 07:28:30 GMT", now) == seconds(30));
  CHECK(parse_retry_after("Wed, 21 Oct 2020 07:28:30 GMT", now) == seconds(0));
  CHECK(parse_retry_after("99999999999999999999", now) == seconds(86400));
  CHECK_FALSE(parse_retry_after("soon", now));
  CHECK_FALSE(parse_retry_after("-5", now));
  CHECK_FALSE(parse_retry_after("", now));
}

TEST_CASE("waits double, differ, and have a limit", "[fetch]") {
  using std::chrono::milliseconds;
  const RetryPolicy policy;
  CHECK(policy.wait_before(1, 0.0) == milliseconds(500));
  CHECK(policy.wait_before(3, 0.0) == milliseconds(2000));
  CHECK(policy.wait_before(3, 0.5) == milliseconds(1500));
  CHECK(policy.wait_before(1000, 0.0) == milliseconds(30'000));
}
