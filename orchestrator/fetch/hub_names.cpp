// Names that come from recipes and hubs and become folders, files and addresses here.
#include <algorithm>
#include <array>
#include <set>

#include "orchestrator/fetch/hub.h"
#include "runtime/common/error.h"

namespace tandem {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool only(std::string_view text, std::string_view extra) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           extra.find(c) != std::string_view::npos;
  });
}

/// Names that mean devices on some systems whatever their suffix; a pack that uses them is up to no good.
bool is_reserved(std::string_view part) {
  const std::string stem = lower_case(part.substr(0, part.find('.')));
  static constexpr std::array<std::string_view, 4> kDevices = {"con", "prn", "aux", "nul"};
  if (std::find(kDevices.begin(), kDevices.end(), stem) != kDevices.end()) return true;
  return stem.size() == 4 && (stem.rfind("com", 0) == 0 || stem.rfind("lpt", 0) == 0) && stem[3] >= '1' &&
         stem[3] <= '9';
}

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int extra = lead < 0x80                   ? 0
                      : lead >= 0xc2 && lead < 0xe0 ? 1
                      : lead >= 0xe0 && lead < 0xf0 ? 2
                      : lead >= 0xf0 && lead < 0xf5 ? 3
                                                    : -1;
    if (extra < 0 || i + static_cast<size_t>(extra) >= text.size()) return false;
    for (int k = 1; k <= extra; ++k) {
      if ((static_cast<unsigned char>(text[i + static_cast<size_t>(k)]) & 0xc0) != 0x80) return false;
    }
    i += static_cast<size_t>(extra) + 1;
  }
  return true;
}

[[noreturn]] void refuse_path(std::string_view path, const std::string& why) {
  throw Error(ErrorKind::fetch, "the hub lists a file name that is not safe to use: " + why, printable(path, 300),
              "do not use this repository unless its publisher explains the name");
}

}  // namespace

bool is_commit(std::string_view revision) {
  return revision.size() == 40 && revision.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void check_repo_id(std::string_view repo) {
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorKind::fetch, "not a repository id: " + why, printable(repo, 200),
                "write it as org/name, like bertholomus/Ling-3.1-flash-1019-EXL3-3.03bpw");
  };
  if (repo.empty() || repo.size() > 96 * 2 + 1) fail("it must have 1 to 193 characters");
  const auto slash = repo.find('/');
  if (slash != std::string_view::npos && repo.find('/', slash + 1) != std::string_view::npos) fail("more than one '/'");
  for (std::string_view part :
       {repo.substr(0, slash), slash == std::string_view::npos ? "x" : repo.substr(slash + 1)}) {
    if (part.empty() || part.size() > 96) fail("each part must have 1 to 96 characters");
    if (!only(part, "-_.")) fail("only letters, digits, '-', '_' and '.' are allowed");
    if (part.front() == '.' || part.front() == '-' || part.back() == '.' || part.back() == '-') {
      fail("a part must not begin or end with '.' or '-'");
    }
    // The cache joins the parts with "--"; ".." would be a way out of it.
    if (part.find("..") != std::string_view::npos || part.find("--") != std::string_view::npos) {
      fail("\"..\" and \"--\" are not allowed");
    }
  }
}

void check_revision(std::string_view revision) {
  const bool parts_fit = [&] {
    for (size_t begin = 0; begin <= revision.size();) {
      const size_t end = std::min(revision.find('/', begin), revision.size());
      const std::string_view part = revision.substr(begin, end - begin);
      if (part.empty() || part.front() == '.' || part.front() == '-' || part.find("..") != std::string_view::npos)
        return false;
      begin = end + 1;
    }
    return true;
  }();
  if (revision.empty() || revision.size() > 200 || !only(revision, "-_./+") || !parts_fit ||
      lower_case(revision).find(".tandem.") != std::string::npos) {
    throw Error(ErrorKind::fetch, "not a revision: expected a branch, tag or commit", printable(revision, 200),
                "write it like main, v1.0 or a commit of 40 hex digits");
  }
}

void check_file_path(std::string_view path) {
  if (path.empty()) refuse_path(path, "it is empty");
  if (path.size() > 1024) refuse_path(path, "longer than 1024 bytes");
  if (!valid_utf8(path)) refuse_path(path, "it is not valid UTF-8");
  for (char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) refuse_path(path, "it holds a control character");
    if (c == '\\') refuse_path(path, "it holds a backslash");
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty()) refuse_path(path, "it is absolute, or has an empty part");
    if (part == "." || part == "..") refuse_path(path, "it steps out of its folder");
    if (part.size() > 255) refuse_path(path, "a part is longer than 255 bytes");
    if (part.back() == ' ' || part.back() == '.') refuse_path(path, "a part ends with a space or full stop");
    if (part.find(':') != std::string_view::npos) refuse_path(path, "it holds a colon");
    if (is_reserved(part)) refuse_path(path, "a part is a reserved device name");
    begin = end + 1;
  }
}

void check_file_list(const std::vector<HubFile>& files) {
  if (static_cast<int64_t>(files.size()) > kMaxHubFiles) {
    throw Error(ErrorKind::fetch,
                "the hub lists " + std::to_string(files.size()) + " files, more than " + std::to_string(kMaxHubFiles),
                "", "check the repository's name");
  }
  std::set<std::string> names;
  std::set<std::string> folders;
  int64_t total = 0;
  for (const HubFile& file : files) {
    check_file_path(file.path);
    const std::string name = lower_case(file.path);
    if (!names.insert(name).second) refuse_path(file.path, "another file has the same name but for case");
    for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
      folders.insert(name.substr(0, slash));
    }
    const auto is_hash = [](std::string_view hash, size_t digits) {
      return hash.size() == digits && hash.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    };
    if (file.size < 0 || __builtin_add_overflow(total, file.size, &total)) {
      throw Error(ErrorKind::fetch, "the hub lists an impossible size: " + std::to_string(file.size),
                  printable(file.path));
    }
    if ((!file.sha256.empty() && !is_hash(file.sha256, 64)) ||
        (!file.git_sha1.empty() && !is_hash(file.git_sha1, 40)) || file.etag().empty()) {
      throw Error(ErrorKind::fetch, "the hub lists no usable content hash for a file", printable(file.path),
                  "check that HF_ENDPOINT is a Hugging Face hub or a `tandem mirror`");
    }
  }
  for (const std::string& folder : folders) {
    if (names.count(folder) != 0) refuse_path(folder, "it is both a file and a folder");
  }
}

std::string repo_page(const HubOptions& hub, std::string_view repo) {
  return hub.endpoint + "/" + printable(repo, 200);
}

}  // namespace tandem
