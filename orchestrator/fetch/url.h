#pragma once

#include <string>
#include <string_view>

namespace tandem {

/// An absolute http or https address.
struct Url {
  std::string scheme;        ///< "http" or "https"
  std::string host;          ///< lower case; an IPv6 address without its brackets
  int port = 0;              ///< always set
  std::string target = "/";  ///< path and query as they go on the wire, starts with '/'

  std::string origin() const;   ///< "https://host", the port when it is not the scheme's own
  std::string text() const;     ///< the whole address
  std::string display() const;  ///< without the query, where signed addresses carry secrets; safe to print
  bool same_origin(const Url& other) const;
  bool is_loopback() const;  ///< localhost, 127.0.0.0/8 or ::1
};

/// @throws Error (fetch) for other schemes, user names in the address, control characters, ports out of range
Url parse_url(std::string_view text);

/// Where a Location header leads: an absolute address, or one relative to `base` ("//host/x", "/x", "x").
Url resolve_location(const Url& base, std::string_view location);

/// Percent-encodes all but letters, digits and "-._~"; '/' stays when `keep_slash`.
std::string percent_encode(std::string_view text, bool keep_slash);
/// Undoes it. A '%' without two hex digits stays as it is.
std::string percent_decode(std::string_view text);

}  // namespace tandem
