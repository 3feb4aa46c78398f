#include "orchestrator/fetch/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "orchestrator/fetch/file_io.h"
#include "orchestrator/fetch/url.h"

namespace tandem {
namespace {

constexpr std::string_view kMagic = "tandem-journal";
constexpr std::string_view kVersion = "1";
constexpr int64_t kMaxJournalBytes = 64LL << 20;
constexpr int64_t kMaxRanges = 1LL << 24;

/// FNV-1a: enough to tell a whole line from a torn one.
std::string check_sum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

std::string sealed(const std::string& line) {
  return line + " " + check_sum(line) + "\n";
}

std::vector<std::string_view> split_words(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Takes the next whole line off `text`, without its check sum. Nothing at the end or at a damaged line.
std::optional<std::string_view> take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos || end < 17) return std::nullopt;
  const std::string_view line = text.substr(0, end - 17);
  if (text[end - 17] != ' ' || text.substr(end - 16, 16) != check_sum(line)) return std::nullopt;
  text.remove_prefix(end + 1);
  return line;
}

std::string word(std::string_view text) {
  return text.empty() ? "-" : percent_encode(text, true);
}

/// An empty word is written "-", which therefore is no name of its own.
std::string unword(std::string_view text) {
  return text == "-" ? "" : percent_decode(text);
}

bool read_header(std::string_view line, JournalHeader* header) {
  const auto words = split_words(line);
  if (words.size() != 7 || words[0] != kMagic || words[1] != kVersion) return false;
  const auto size = number(words[3]);
  const auto range_bytes = number(words[4]);
  if (!size || !range_bytes || *range_bytes == 0 || *range_bytes % 64 != 0) return false;
  header->etag = unword(words[2]);
  header->size = *size;
  header->range_bytes = *range_bytes;
  header->ref = unword(words[5]);
  header->path = unword(words[6]);
  return header->size / header->range_bytes < kMaxRanges;
}

/// Facts in the order they were noted; a hash state is only believed when all its ranges were noted before.
void read_fact(std::string_view line, JournalState* state) {
  const auto words = split_words(line);
  const auto num_ranges = static_cast<int64_t>(state->done.size());
  if (words.size() == 2 && words[0] == "range") {
    const auto index = number(words[1]);
    if (index && *index < num_ranges) state->done[static_cast<size_t>(*index)] = true;
  } else if (words.size() == 3 && words[0] == "hash") {
    const auto count = number(words[1]);
    // The last range of a file may end anywhere, and a hash state only exists after multiples of 64 bytes.
    if (!count || *count >= num_ranges) return;
    if (!std::all_of(state->done.begin(), state->done.begin() + *count, [](bool done) { return done; })) return;
    state->hashed_ranges = *count;
    state->hash_state = words[2];
  }
}

/// The whole lines at the start of `content`, in bytes; the state they describe.
std::optional<JournalState> parse(std::string_view content, size_t* good_bytes) {
  JournalState state;
  std::string_view rest = content;
  const auto first = take_line(rest);
  if (!first || !read_header(*first, &state.header)) return std::nullopt;
  state.done.assign(static_cast<size_t>(state.header.num_ranges()), false);
  while (const auto line = take_line(rest)) read_fact(*line, &state);
  *good_bytes = content.size() - rest.size();
  return state;
}

}  // namespace

int64_t JournalState::done_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < done.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * header.range_bytes;
    if (done[i]) bytes += std::min(header.range_bytes, header.size - begin);
  }
  return bytes;
}

Journal Journal::create(const std::filesystem::path& path, const JournalHeader& header) {
  Journal journal(open_cache_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND), path);
  journal.append(std::string(kMagic) + " " + std::string(kVersion) + " " + word(header.etag) + " " +
                 std::to_string(header.size) + " " + std::to_string(header.range_bytes) + " " + word(header.ref) + " " +
                 word(header.path));
  return journal;
}

Journal Journal::append_to(const std::filesystem::path& path) {
  size_t good_bytes = 0;
  const std::string content = read_if_small(path, kMaxJournalBytes);
  parse(content, &good_bytes);
  Journal journal(open_cache_file(path, O_WRONLY | O_APPEND), path);
  if (ftruncate(journal.file_.get(), static_cast<off_t>(good_bytes)) != 0) {
    throw cache_file_error("writing", path, errno);
  }
  return journal;
}

std::optional<JournalState> Journal::load(const std::filesystem::path& path) {
  size_t good_bytes = 0;
  return parse(read_if_small(path, kMaxJournalBytes), &good_bytes);
}

void Journal::note_range(int64_t index) {
  append("range " + std::to_string(index));
}

void Journal::note_hash(int64_t hashed_ranges, std::string_view state) {
  append("hash " + std::to_string(hashed_ranges) + " " + std::string(state));
}

void Journal::append(const std::string& line) {
  const std::string text = sealed(line);
  // One write per line: with O_APPEND lines of several threads never mix.
  ssize_t written = 0;
  do {
    written = write(file_.get(), text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(text.size())) {
    throw cache_file_error("writing", path_, written < 0 ? errno : ENOSPC);
  }
}

}  // namespace tandem
