#include "runtime/tokenizer/bpe.h"

#include <queue>
#include <tuple>

namespace tandem {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

void Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  merges_.try_emplace(pair_key(left, right), Merge{static_cast<int32_t>(merges_.size()), merged});
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  // A linked list of symbols, and a queue of the merges that looked possible when they were queued. A merge is stale
  // when one of its two symbols has changed since; stale ones are dropped when they surface.
  struct Symbol {
    int32_t id;
    int previous, next;
  };
  struct Candidate {
    int32_t rank;
    int left, right;
    int32_t left_id, right_id, merged;
    bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };
  const int count = static_cast<int>(word.size());
  std::vector<Symbol> symbols(count);
  for (int i = 0; i < count; ++i)
    symbols[i] = {byte_ids_[static_cast<uint8_t>(word[i])], i - 1, i + 1 == count ? -1 : i + 1};

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int left, int right) {
    if (left < 0 || right < 0) return;
    if (const Merge* merge = find(symbols[left].id, symbols[right].id))
      queue.push({merge->rank, left, right, symbols[left].id, symbols[right].id, merge->merged});
  };
  for (int i = 0; i + 1 < count; ++i) consider(i, i + 1);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    if (left.id != best.left_id || right.id != best.right_id || left.next != best.right) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }
  for (int i = count ? 0 : -1; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace tandem
