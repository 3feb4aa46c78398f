#include "orchestrator/fetch/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

namespace tandem {
namespace {

constexpr int64_t kHashPiece = 1 << 20;

}  // namespace

PartialFile::PartialFile(const RepoFolder& folder, HubFile file, int64_t range_bytes, std::string ref)
    : folder_(folder), file_(std::move(file)), ref_(std::move(ref)), range_bytes_(range_bytes) {
  hash_.emplace(file_);
  struct stat info {};
  const bool has_data = ::stat(folder_.incomplete(file_).c_str(), &info) == 0 && S_ISREG(info.st_mode);
  const auto state = has_data ? Journal::load(folder_.journal(file_)) : std::nullopt;
  const auto end_of_done = [&]() -> int64_t {
    for (auto i = static_cast<int64_t>(state->done.size()); i > 0; --i) {
      if (state->done[static_cast<size_t>(i - 1)]) return std::min(i * state->header.range_bytes, file_.size);
    }
    return 0;
  };
  if (state && state->header.etag == file_.etag() && state->header.size == file_.size &&
      info.st_size >= end_of_done()) {
    resumed_ = true;
    range_bytes_ = state->header.range_bytes;  // the grid the journal's ranges lie on
    if (state->hashed_ranges > 0 && hash_->restore(state->hash_state, state->hashed_ranges * range_bytes_)) {
      hashed_ranges_ = state->hashed_ranges;
    } else {
      hash_.emplace(file_);
    }
  }
  num_ranges_ = (file_.size + range_bytes_ - 1) / range_bytes_;
  ranges_.assign(static_cast<size_t>(num_ranges_), RangeState::todo);
  if (!resumed_) return;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (state->done[i]) ranges_[i] = RangeState::done;
  }
  resumed_bytes_ = state->done_bytes();
  bytes_done_ = resumed_bytes_;
}

int64_t PartialFile::missing_disk_bytes() const {
  struct stat info {};
  const bool there = resumed_ && ::stat(folder_.incomplete(file_).c_str(), &info) == 0;
  const int64_t allocated = there ? std::min<int64_t>(static_cast<int64_t>(info.st_blocks) * 512, file_.size) : 0;
  return file_.size - std::max(allocated, resumed_bytes_);  // a compressing file system allocates less than it holds
}

PartialFile::Claim PartialFile::range(int64_t index) const {
  return {index, index * range_bytes_, std::min((index + 1) * range_bytes_, file_.size), false};
}

void PartialFile::open_files() {
  if (data_) return;
  const auto data_path = folder_.incomplete(file_);
  if (resumed_) {
    journal_ = Journal::append_to(folder_.journal(file_));
    data_ = open_cache_file(data_path, O_RDWR);
    return;
  }
  // The journal first: one of an earlier content must be gone before the data it speaks of is.
  if (num_ranges_ > 1) {
    journal_ = Journal::create(folder_.journal(file_), {file_.etag(), file_.size, range_bytes_, ref_, file_.path});
  } else {
    remove_quietly(folder_.journal(file_));
  }
  data_ = open_cache_file(data_path, O_RDWR | O_CREAT | O_TRUNC);
}

std::optional<PartialFile::Claim> PartialFile::claim() {
  std::lock_guard lock(mutex_);
  if (one_stream_ && claims_ > 0) return std::nullopt;
  const auto next = std::find(ranges_.begin(), ranges_.end(), RangeState::todo);
  if (next == ranges_.end()) return std::nullopt;
  open_files();
  ++claims_;
  if (one_stream_) return Claim{0, 0, file_.size, true};
  *next = RangeState::claimed;
  return range(next - ranges_.begin());
}

void PartialFile::release(const Claim& claim) {
  std::lock_guard lock(mutex_);
  --claims_;
  if (!claim.whole) ranges_[static_cast<size_t>(claim.index)] = RangeState::todo;
}

bool PartialFile::is_done(int64_t index) const {
  std::lock_guard lock(mutex_);
  return ranges_[static_cast<size_t>(index)] == RangeState::done;
}

void PartialFile::use_one_stream() {
  std::lock_guard lock(mutex_);
  one_stream_ = true;
}

void PartialFile::write(int64_t offset, std::string_view data) {
  write_at(data_, folder_.incomplete(file_), data, offset);
  bytes_done_ += static_cast<int64_t>(data.size());
}

void PartialFile::finish(int64_t index) {
  sync_data(data_, folder_.incomplete(file_));
  if (journal_) journal_->note_range(index);
  std::lock_guard lock(mutex_);
  auto& state = ranges_[static_cast<size_t>(index)];
  if (state == RangeState::claimed) --claims_;
  state = RangeState::done;
}

bool PartialFile::waits_for_hash() const {
  std::lock_guard lock(mutex_);
  return !hashing_ && !handed_out_ &&
         std::all_of(ranges_.begin(), ranges_.end(), [](RangeState state) { return state == RangeState::done; });
}

bool PartialFile::advance_hash() {
  std::unique_lock lock(mutex_);
  if (hashing_ || handed_out_) return false;
  open_files();
  hashing_ = true;
  while (hashed_ranges_ < num_ranges_ && ranges_[static_cast<size_t>(hashed_ranges_)] == RangeState::done) {
    const Claim next = range(hashed_ranges_);
    lock.unlock();
    hash_range(next);
    if (const auto state = hash_->state(); state && journal_ && next.index + 1 < num_ranges_) {
      journal_->note_hash(next.index + 1, *state);
    }
    lock.lock();
    ++hashed_ranges_;
  }
  hashing_ = false;
  handed_out_ = hashed_ranges_ == num_ranges_;
  return handed_out_;
}

void PartialFile::hash_range(const Claim& range) {
  std::string piece;
  for (int64_t offset = range.begin; offset < range.end; offset += kHashPiece) {
    piece.resize(static_cast<size_t>(std::min(kHashPiece, range.end - offset)));
    read_exactly(data_, offset, std::as_writable_bytes(std::span(piece)), folder_.incomplete(file_), ErrorKind::fetch);
    hash_->update(piece);
  }
  // Synced and hashed: nobody reads these pages soon, and on machines whose GPU shares the memory they are in the way.
  posix_fadvise(data_.get(), range.begin, range.end - range.begin, POSIX_FADV_DONTNEED);
}

std::string PartialFile::publish() {
  if (std::string mismatch = hash_->mismatch(); !mismatch.empty()) return mismatch;
  std::lock_guard lock(mutex_);
  sync_data(data_, folder_.incomplete(file_));
  rename_file(folder_.incomplete(file_), folder_.blob(file_));
  sync_folder(folder_.blobs(), ErrorKind::fetch);
  remove_quietly(folder_.journal(file_));
  data_.close();
  journal_.reset();
  published_ = true;
  return "";
}

void PartialFile::restart() {
  std::lock_guard lock(mutex_);
  data_.close();
  journal_.reset();
  resumed_ = false;
  handed_out_ = false;
  hashed_ranges_ = 0;
  hash_.emplace(file_);
  std::fill(ranges_.begin(), ranges_.end(), RangeState::todo);
  bytes_done_ = 0;
}

void PartialFile::discard() {
  std::lock_guard lock(mutex_);
  data_.close();
  journal_.reset();
  remove_quietly(folder_.journal(file_));
  remove_quietly(folder_.incomplete(file_));
}

}  // namespace tandem
