// tokenizer.cpp: tokenizer.json -> tables, and the two walks over them.
//
// A byte-level vocabulary spells bytes as printable characters (GPT-2's alphabet: 0x20 is written U+0120), so that a
// JSON file can hold them. That spelling is undone once, on load: from there on a token is a string of bytes.
//
// Encoding has three layers: added tokens ("<role>") cut the text first, leftmost and longest first; the
// pre-tokenizer's pattern cuts what lies between them into words; BPE turns words into tokens. Trust enters in the
// first layer alone: an added token is matched only where the template wrote every byte of it. The text between is cut
// as one piece whatever its trust, so that a conversation gets the very ids that Hugging Face tokenizers give, unless
// it tries to forge a token.

#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/common/error.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/pretokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace tandem {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{128} << 20;
constexpr int32_t kMaxVocabulary = 4'000'000;
constexpr size_t kMaxTokenBytes = 4096;
// GPT-2's pattern, which the ByteLevel pre-tokenizer applies when `use_regex` is set.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Byte -> the code point that spells it in a byte-level vocabulary.
std::array<uint32_t, 256> byte_alphabet() {
  std::array<uint32_t, 256> spelled{};
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    spelled[b] = printable ? b : next++;
  }
  return spelled;
}

/// One file's parse: every refusal names the place in it.
class Reader {
 public:
  explicit Reader(fs::path path) : path_(std::move(path)) {}

  [[noreturn]] void fail(const std::string& what, const std::string& key = "") const {
    throw Error(ErrorKind::pack, what, path_.string() + (key.empty() ? "" : " (" + key + ")"),
                "use the tokenizer.json that the model was published with");
  }

  json read() const {
    std::ifstream in(path_, std::ios::binary);
    if (!in) fail("the pack has no readable tokenizer.json");
    std::error_code ignored;
    const auto bytes = static_cast<int64_t>(fs::file_size(path_, ignored));
    if (bytes > kMaxFileBytes)
      fail("tokenizer.json has " + std::to_string(bytes) + " bytes, more than " + std::to_string(kMaxFileBytes));
    json root = json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded() || !root.is_object()) fail("tokenizer.json is not a JSON object");
    return root;
  }

  /// `value[key]`, which must be there and of the wanted kind.
  const json& member(const json& value, const char* key, json::value_t type) const {
    const auto it = value.find(key);
    if (it == value.end()) fail(std::string("`") + key + "` is missing", key);
    const bool integer = type == json::value_t::number_integer && it->is_number_integer();
    if (it->type() != type && !integer) fail(std::string("`") + key + "` is of type " + it->type_name(), key);
    return *it;
  }

  bool flag(const json& value, const char* key) const {
    const auto it = value.find(key);
    if (it == value.end() || it->is_null()) return false;
    if (!it->is_boolean()) fail(std::string("`") + key + "` is not true or false", key);
    return it->get<bool>();
  }

  std::string where(const char* key) const { return path_.string() + " (" + key + ")"; }

 private:
  fs::path path_;
};

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    std::string bytes;
    bool added = false;
    bool special = false;
  };

  std::vector<Token> tokens;                         // by id
  std::unordered_map<std::string, int32_t> by_text;  // bytes of ordinary and added tokens -> id
  std::vector<int32_t> added;                        // ids, longest spelling first
  std::array<bool, 256> added_first_byte{};
  std::vector<Pretokenizer> pretokenizers;  // applied one after the other
  std::optional<Bpe> bpe;
  bool ignore_merges = false;

  void read_vocabulary(const Reader& reader, const json& model);
  void read_merges(const Reader& reader, const json& model);
  void read_added_tokens(const Reader& reader, const json& root);
  void read_pretokenizer(const Reader& reader, const json& step);
  void place(const Reader& reader, int64_t id, Token token);
  std::string unspell(const Reader& reader, const std::string& spelled) const;

  void encode_between(std::string_view text, std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, size_t next_pretokenizer, std::vector<int32_t>& out) const;
};

std::string Tokenizer::Impl::unspell(const Reader& reader, const std::string& spelled) const {
  static const auto kCodeToByte = [] {
    std::unordered_map<uint32_t, char> inverse;
    const auto alphabet = byte_alphabet();
    for (int b = 0; b < 256; ++b) inverse[alphabet[b]] = static_cast<char>(b);
    return inverse;
  }();
  std::string bytes;
  for (size_t at = 0; at < spelled.size();) {
    const Utf8Step step = utf8_step(spelled, at);
    const auto it = kCodeToByte.find(step.code);
    if (it == kCodeToByte.end())
      reader.fail("token \"" + printable(spelled, 80) + "\" is not spelled in the byte-level alphabet", "model.vocab");
    bytes += it->second;
    at += step.length;
  }
  return bytes;
}

void Tokenizer::Impl::place(const Reader& reader, int64_t id, Token token) {
  if (id < 0 || id >= kMaxVocabulary) reader.fail("token id " + std::to_string(id) + " is out of range", "id");
  if (token.bytes.size() > kMaxTokenBytes)
    reader.fail("a token has " + std::to_string(token.bytes.size()) + " bytes", "id " + std::to_string(id));
  if (id >= static_cast<int64_t>(tokens.size())) tokens.resize(id + 1);
  by_text[token.bytes] = static_cast<int32_t>(id);
  tokens[id] = std::move(token);
}

void Tokenizer::Impl::read_vocabulary(const Reader& reader, const json& model) {
  std::vector<int32_t> byte_ids(256, -1);
  for (const auto& [spelled, id] : reader.member(model, "vocab", json::value_t::object).items()) {
    if (!id.is_number_integer()) reader.fail("token \"" + printable(spelled, 80) + "\" has no whole id", "model.vocab");
    std::string bytes = unspell(reader, spelled);
    const auto number = id.get<int64_t>();
    if (number >= 0 && number < static_cast<int64_t>(tokens.size()) && !tokens[number].bytes.empty())
      reader.fail("two tokens have the id " + std::to_string(number), "model.vocab");
    if (bytes.size() == 1) byte_ids[static_cast<uint8_t>(bytes[0])] = static_cast<int32_t>(number);
    place(reader, number, {std::move(bytes)});
  }
  for (int b = 0; b < 256; ++b)
    if (byte_ids[b] < 0) reader.fail("the vocabulary has no token for the byte " + std::to_string(b), "model.vocab");
  bpe.emplace(std::move(byte_ids));
}

void Tokenizer::Impl::read_merges(const Reader& reader, const json& model) {
  for (const json& merge : reader.member(model, "merges", json::value_t::array)) {
    std::string left, right;  // ["a", "b"] since 2024, "a b" before
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos) reader.fail("merge \"" + printable(text, 80) + "\" has no space", "model.merges");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      reader.fail("a merge is neither a pair nor a string", "model.merges");
    }
    const std::string left_bytes = unspell(reader, left), right_bytes = unspell(reader, right);
    const auto a = by_text.find(left_bytes), b = by_text.find(right_bytes), c = by_text.find(left_bytes + right_bytes);
    if (a == by_text.end() || b == by_text.end() || c == by_text.end())
      reader.fail("merge \"" + printable(left + " " + right, 80) + "\" names a token that is not in the vocabulary",
                  "model.merges");
    bpe->add_merge(a->second, b->second, c->second);
  }
}

void Tokenizer::Impl::read_added_tokens(const Reader& reader, const json& root) {
  if (!root.contains("added_tokens")) return;
  for (const json& entry : reader.member(root, "added_tokens", json::value_t::array)) {
    if (!entry.is_object()) reader.fail("an added token is not an object", "added_tokens");
    const auto content = reader.member(entry, "content", json::value_t::string).get<std::string>();
    const auto id = reader.member(entry, "id", json::value_t::number_integer).get<int64_t>();
    if (content.empty()) reader.fail("an added token is empty", "added_tokens");
    for (const char* key : {"single_word", "lstrip", "rstrip"})
      if (reader.flag(entry, key))
        reader.fail(
            "added token \"" + printable(content, 80) + "\" sets `" + key + "`, which this tokenizer does not know",
            "added_tokens");
    place(reader, id, {content, true, reader.flag(entry, "special")});
    added.push_back(static_cast<int32_t>(id));
    added_first_byte[static_cast<uint8_t>(content[0])] = true;
  }
  std::sort(added.begin(), added.end(),
            [&](int32_t a, int32_t b) { return tokens[a].bytes.size() > tokens[b].bytes.size(); });
}

void Tokenizer::Impl::read_pretokenizer(const Reader& reader, const json& step) {
  const auto type = reader.member(step, "type", json::value_t::string).get<std::string>();
  if (type == "Sequence") {
    for (const json& inner : reader.member(step, "pretokenizers", json::value_t::array)) {
      if (!inner.is_object() || inner.value("type", "") == "Sequence")
        reader.fail("a nested sequence of pre-tokenizers", "pre_tokenizer");
      read_pretokenizer(reader, inner);
    }
  } else if (type == "Split") {
    const json& pattern = reader.member(step, "pattern", json::value_t::object);
    const auto behavior = reader.member(step, "behavior", json::value_t::string).get<std::string>();
    if (behavior != "Isolated" || reader.flag(step, "invert"))
      reader.fail("a Split pre-tokenizer with behavior \"" + printable(behavior, 40) + "\"; only Isolated is known",
                  "pre_tokenizer");
    pretokenizers.emplace_back(reader.member(pattern, "Regex", json::value_t::string).get<std::string>(),
                               reader.where("pre_tokenizer"));
  } else if (type == "ByteLevel") {
    if (reader.flag(step, "add_prefix_space")) reader.fail("`add_prefix_space` is not known", "pre_tokenizer");
    const auto use_regex = step.find("use_regex");  // absent means true
    if (use_regex == step.end() || reader.flag(step, "use_regex"))
      pretokenizers.emplace_back(kByteLevelPattern, reader.where("pre_tokenizer"));
  } else {
    reader.fail("pre-tokenizer \"" + printable(type, 40) + "\" is not known; byte-level BPE uses Split and ByteLevel",
                "pre_tokenizer");
  }
  if (pretokenizers.size() > 8) reader.fail("more than 8 pre-tokenizers", "pre_tokenizer");
}

Tokenizer Tokenizer::load(const fs::path& folder) {
  const Reader reader(folder / "tokenizer.json");
  const json root = reader.read();
  auto impl = std::make_unique<Impl>();
  const json& model = reader.member(root, "model", json::value_t::object);
  if (model.contains("type") && model["type"] != "BPE") reader.fail("the tokenizer's model is not BPE", "model.type");
  if (reader.flag(model, "byte_fallback"))
    reader.fail("byte_fallback is not known: not a byte-level vocabulary", "model.byte_fallback");
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model[key].is_null() && model[key] != "")
      reader.fail(std::string("`") + key + "` is set", std::string("model.") + key);
  if (root.contains("normalizer") && !root["normalizer"].is_null())
    reader.fail("the tokenizer has a normalizer; byte-level BPE has none", "normalizer");
  impl->ignore_merges = reader.flag(model, "ignore_merges");
  impl->read_vocabulary(reader, model);
  impl->read_merges(reader, model);
  impl->read_added_tokens(reader, root);
  impl->read_pretokenizer(reader, reader.member(root, "pre_tokenizer", json::value_t::object));
  return Tokenizer(std::move(impl));
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::Impl::encode_word(std::string_view word, size_t next_pretokenizer, std::vector<int32_t>& out) const {
  if (next_pretokenizer < pretokenizers.size()) {
    pretokenizers[next_pretokenizer].split(
        word, [&](std::string_view part) { encode_word(part, next_pretokenizer + 1, out); });
    return;
  }
  if (ignore_merges) {
    const auto whole = by_text.find(std::string(word));
    if (whole != by_text.end() && !tokens[whole->second].added) return out.push_back(whole->second);
  }
  bpe->encode(word, out);
}

void Tokenizer::Impl::encode_between(std::string_view text, std::vector<int32_t>& out) const {
  if (!text.empty()) encode_word(text, 0, out);
}

std::vector<int32_t> Tokenizer::encode(const PromptText& given) const {
  const Impl& t = *impl_;
  // Replacing bad bytes moves the others, so each stretch of equal trust is mended by itself.
  PromptText prompt;
  size_t done = 0;
  const auto mend = [&](size_t end, bool untrusted) {
    if (end <= done) return;
    const std::string part = replace_invalid_utf8(std::string_view(given.text()).substr(done, end - done));
    prompt += untrusted ? PromptText::untrusted(part) : PromptText::trusted(part);
    done = end;
  };
  for (const PromptText::Range& range : given.untrusted_ranges()) {
    mend(range.begin, false);
    mend(range.end, true);
  }
  mend(given.size(), false);

  std::vector<int32_t> ids;
  const std::string_view text = prompt.text();
  size_t between = 0;  // start of the text since the last added token
  for (size_t at = 0; at < text.size();) {
    int32_t match = -1;
    if (t.added_first_byte[static_cast<uint8_t>(text[at])]) {
      for (const int32_t id : t.added) {
        const std::string& spelling = t.tokens[id].bytes;
        if (text.substr(at, spelling.size()) == spelling && !prompt.is_untrusted(at, at + spelling.size())) {
          match = id;
          break;
        }
      }
    }
    if (match < 0) {
      ++at;
      continue;
    }
    t.encode_between(text.substr(between, at - between), ids);
    ids.push_back(match);
    at += t.tokens[match].bytes.size();
    between = at;
  }
  t.encode_between(text.substr(between), ids);
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) return {};
  return impl_->tokens[id].bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += token_bytes(id);
  return replace_invalid_utf8(bytes);
}

int32_t Tokenizer::vocabulary_size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && id < vocabulary_size() && impl_->tokens[id].added;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocabulary_size() && impl_->tokens[id].special;
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto it = impl_->by_text.find(std::string(token));
  if (it == impl_->by_text.end()) return {};
  return it->second;
}

}  // namespace tandem
