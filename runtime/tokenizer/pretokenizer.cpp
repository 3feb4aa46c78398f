#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/tokenizer/pretokenizer.h"

#include <pcre2.h>

#include <algorithm>

#include "runtime/common/error.h"

namespace tandem {

struct Pretokenizer::Impl {
  std::string where;
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, pcre2_code_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context{nullptr, pcre2_match_context_free};
};

Pretokenizer::Pretokenizer(const std::string& pattern, const std::string& where) : impl_(std::make_unique<Impl>()) {
  impl_->where = where;
  int error = 0;
  PCRE2_SIZE offset = 0;
  // UCP makes \s and friends Unicode-aware, as Oniguruma's are.
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (!impl_->code) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw Error(ErrorKind::pack,
                "the pre-tokenizer's pattern does not compile at character " + std::to_string(offset) + ": " +
                    reinterpret_cast<const char*>(message),
                where, "use the pack's original tokenizer.json");
  }
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);  // without JIT it only runs slower
  impl_->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(impl_->context.get(), 1'000'000);
  pcre2_set_depth_limit(impl_->context.get(), 10'000);
  pcre2_set_heap_limit(impl_->context.get(), 64 * 1024);  // KiB
}

Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

void Pretokenizer::split(std::string_view text, const std::function<void(std::string_view)>& emit) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr), pcre2_match_data_free);
  size_t at = 0;       // where the search goes on
  size_t emitted = 0;  // everything before is already in a word
  while (at < text.size()) {
    const int found = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  at == 0 ? 0 : PCRE2_NO_UTF_CHECK, match.get(), impl_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error(ErrorKind::pack,
                  "the pre-tokenizer's pattern gave up on a text of " + std::to_string(text.size()) +
                      " bytes (PCRE2 error " + std::to_string(found) + ")",
                  impl_->where, "use the pack's original tokenizer.json");
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
    const size_t begin = span[0], end = std::max(span[0], span[1]);  // \K could put the end before the start
    if (begin > emitted) emit(text.substr(emitted, begin - emitted));
    if (end > begin) emit(text.substr(begin, end - begin));
    emitted = std::max(emitted, end);
    if (end > at) {
      at = end;
    } else {  // an empty match: step over one character
      ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
    }
  }
  if (emitted < text.size()) emit(text.substr(emitted));
}

}  // namespace tandem
