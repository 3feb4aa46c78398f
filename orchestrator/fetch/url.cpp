#include "orchestrator/fetch/url.h"

#include <algorithm>
#include <charconv>

#include "runtime/common/error.h"

namespace tandem {
namespace {

int default_port(std::string_view scheme) {
  return scheme == "https" ? 443 : 80;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  // A query may be a signature, and before an '@' may be a password.
  std::string shown(text.substr(0, text.find('?')));
  if (const auto at = shown.rfind('@'); at != std::string::npos) shown = "...@" + shown.substr(at + 1);
  throw Error(ErrorKind::fetch, "not a usable address: " + why, printable(shown, 300),
              "give an address like https://huggingface.co or http://127.0.0.1:8090");
}

}  // namespace

std::string Url::origin() const {
  std::string text = scheme + "://" + (host.find(':') == std::string::npos ? host : "[" + host + "]");
  if (port != default_port(scheme)) text += ":" + std::to_string(port);
  return text;
}

std::string Url::text() const {
  return origin() + target;
}

std::string Url::display() const {
  return printable(origin() + target.substr(0, target.find('?')), 500);
}

bool Url::same_origin(const Url& other) const {
  return scheme == other.scheme && host == other.host && port == other.port;
}

bool Url::is_loopback() const {
  if (host == "localhost" || host == "::1") return true;
  // Only the dotted form: "127.example.org" is somebody's name.
  return host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string::npos;
}

Url parse_url(std::string_view text) {
  if (text.size() > 8000) refuse(text.substr(0, 100), "longer than 8000 characters");
  for (char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) refuse(text, "it holds a space or control character");
  }
  Url url;
  const auto colon = text.find("://");
  if (colon == std::string_view::npos) refuse(text, "it must start with http:// or https://");
  for (char c : text.substr(0, colon)) url.scheme += lower(c);
  if (url.scheme != "http" && url.scheme != "https") refuse(text, "it must start with http:// or https://");

  std::string_view rest = text.substr(colon + 3);
  rest = rest.substr(0, rest.find('#'));
  const auto end = rest.find_first_of("/?");
  std::string_view authority = rest.substr(0, end);
  if (end != std::string_view::npos) {
    url.target = rest[end] == '/' ? std::string(rest.substr(end)) : "/" + std::string(rest.substr(end));
  }
  if (authority.find('@') != std::string_view::npos) refuse(text, "a user name or password in it is not supported");

  std::string_view port;
  if (!authority.empty() && authority.front() == '[') {
    const auto close = authority.find(']');
    if (close == std::string_view::npos) refuse(text, "'[' without ']'");
    for (char c : authority.substr(1, close - 1)) url.host += lower(c);
    if (url.host.find_first_not_of("0123456789abcdef:.") != std::string::npos) refuse(text, "no IPv6 address");
    std::string_view after = authority.substr(close + 1);
    if (!after.empty() && after.front() != ':') refuse(text, "unexpected text after ']'");
    if (!after.empty()) port = after.substr(1);
  } else {
    const auto at = authority.find(':');
    for (char c : authority.substr(0, at)) url.host += lower(c);
    if (at != std::string_view::npos) port = authority.substr(at + 1);
    if (url.host.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz.-_") != std::string::npos) {
      refuse(text, "the host name has unusual characters");
    }
  }
  if (url.host.empty()) refuse(text, "it names no host");
  url.port = default_port(url.scheme);
  if (!port.empty()) {
    const auto [stop, failed] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (failed != std::errc() || stop != port.data() + port.size() || url.port < 1 || url.port > 65535) {
      refuse(text, "the port must be 1 to 65535");
    }
  }
  return url;
}

Url resolve_location(const Url& base, std::string_view location) {
  if (location.find("://") != std::string_view::npos && location.find("://") < location.find_first_of("/?#")) {
    return parse_url(location);
  }
  if (location.rfind("//", 0) == 0) return parse_url(base.scheme + ":" + std::string(location));
  if (!location.empty() && location.front() == '/') return parse_url(base.origin() + std::string(location));
  const std::string path = base.target.substr(0, base.target.find('?'));
  return parse_url(base.origin() + path.substr(0, path.rfind('/') + 1) + std::string(location));
}

std::string percent_encode(std::string_view text, bool keep_slash) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (keep_slash && c == '/');
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace tandem
