#include "orchestrator/node/protocol.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "orchestrator/node/process.h"

namespace tandem::node {
namespace {

using nlohmann::json;

constexpr ErrorKind kKinds[] = {ErrorKind::internal, ErrorKind::usage,      ErrorKind::recipe, ErrorKind::plan,
                                ErrorKind::fetch,    ErrorKind::pack,       ErrorKind::split,  ErrorKind::node,
                                ErrorKind::link,     ErrorKind::launch,     ErrorKind::health, ErrorKind::peer_lost,
                                ErrorKind::memory,   ErrorKind::interrupted};

std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// How deep a line of ours may nest; a parser's recursion must not be the sender's to choose.
constexpr int kMaxDepth = 64;

bool too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

std::string program_version() {
  return TANDEM_VERSION;
}

std::string machine_architecture() {
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

Hello own_hello() {
  char hostname[256] = "";
  gethostname(hostname, sizeof hostname - 1);
  return {program_version(), machine_architecture(), boot_id(), hostname};
}

json to_json(const Hello& hello) {
  return {{"tandem_node", kProtocolVersion},
          {"version", hello.version},
          {"arch", hello.arch},
          {"boot_id", hello.boot_id},
          {"hostname", hello.hostname}};
}

Hello check_hello(const json& line, const std::string& own_version) {
  const auto protocol = line.find("tandem_node");
  if (protocol == line.end() || !protocol->is_number_integer())
    throw Error(ErrorKind::node, "the node's first line is no greeting of `tandem node`", "",
                "check that `tandem` is what the cluster file starts there");
  const Hello hello{text_at(line, "version"), text_at(line, "arch"), text_at(line, "boot_id"),
                    text_at(line, "hostname")};
  if (*protocol != kProtocolVersion || hello.version != own_version)
    throw Error(ErrorKind::node,
                "the node runs tandem " + printable(hello.version, 64) + " (protocol " + protocol->dump() +
                    "), this is tandem " + own_version + " (protocol " + std::to_string(kProtocolVersion) + ")",
                "", "install the same version on both");
  return hello;
}

json error_to_json(const Error& error) {
  return {
      {"kind", error_kind_name(error.kind())}, {"what", error.what()}, {"where", error.where()}, {"fix", error.fix()}};
}

Error error_from_json(const json& j) {
  if (!j.is_object()) return Error(ErrorKind::node, "the node reported an error without saying which");
  const std::string name = text_at(j, "kind");
  ErrorKind kind = ErrorKind::node;
  for (const ErrorKind candidate : kKinds)
    if (error_kind_name(candidate) == name) kind = candidate;
  return Error(kind, text_at(j, "what"), text_at(j, "where"), text_at(j, "fix"));
}

void LineSplitter::add(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() > kMaxLineBytes && buffer_.find('\n') == std::string::npos)
    throw Error(ErrorKind::node,
                "a line of the node protocol is longer than " + std::to_string(kMaxLineBytes) + " bytes");
}

std::optional<std::string> LineSplitter::next() {
  const size_t newline = buffer_.find('\n', scanned_);
  if (newline == std::string::npos) {
    scanned_ = buffer_.size();
    return std::nullopt;
  }
  std::string line = buffer_.substr(0, newline);
  buffer_.erase(0, newline + 1);
  scanned_ = 0;
  if (!line.empty() && line.back() == '\r') line.pop_back();  // a terminal in between
  return line;
}

std::optional<json> parse_line(std::string_view line) {
  if (too_deep(line)) return std::nullopt;
  json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  return parsed;
}

std::string format_line(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::node
