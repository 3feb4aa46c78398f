// A slice is a list of byte ranges of the source tensor, ascending: one for a cut along the first axis, one a row for a
// cut along a later axis (3,840 bytes for an expert of Ling-3.1-flash at 3 bits). Reading range by range would cost a
// system call each and, for several ranks, read every page twice. So the source is read in windows of a few MiB, and
// every target takes from the window what is its own. Reading, not mapping: a source that is cut short under our hands
// is then an error rather than a SIGBUS, and memory stays bounded by the buffers.
#include "orchestrator/split/shard_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <memory>

namespace tandem {
namespace {

/// Walks over the byte ranges of one slice, relative to the start of the source tensor.
class RangeCursor {
 public:
  RangeCursor(const TensorInfo& full, const Slice& slice) {
    if (!slice.present || full.bytes() == 0) return;
    if (slice.axis < 0) {
      whole_ = {0, full.bytes()};
      ranges_ = &whole_;
      num_ranges_ = 1;
      row_bytes_ = full.bytes();
      rows_ = 1;
      inner_bytes_ = 1;
      return;
    }
    const auto axis = static_cast<size_t>(slice.axis);
    inner_bytes_ = dtype_bytes(full.dtype);
    for (size_t i = axis + 1; i < full.shape.size(); ++i) inner_bytes_ *= full.shape[i];
    row_bytes_ = inner_bytes_ * full.shape[axis];
    rows_ = full.bytes() / row_bytes_;
    ranges_ = slice.ranges.data();
    num_ranges_ = slice.ranges.size();
  }
  RangeCursor(const RangeCursor&) = delete;
  RangeCursor& operator=(const RangeCursor&) = delete;

  bool done() const { return row_ >= rows_; }
  int64_t begin() const { return row_ * row_bytes_ + ranges_[range_].begin * inner_bytes_ + taken_; }
  int64_t end() const { return row_ * row_bytes_ + ranges_[range_].end * inner_bytes_; }
  int64_t last_end() const { return (rows_ - 1) * row_bytes_ + ranges_[num_ranges_ - 1].end * inner_bytes_; }

  void take(int64_t bytes) {
    taken_ += bytes;
    while (!done() && begin() == end()) {
      taken_ = 0;
      if (++range_ < num_ranges_) continue;
      range_ = 0;
      ++row_;
    }
  }

 private:
  Range whole_;
  const Range* ranges_ = nullptr;
  size_t num_ranges_ = 0;
  int64_t inner_bytes_ = 0, row_bytes_ = 0, rows_ = 0;
  int64_t row_ = 0, taken_ = 0;
  size_t range_ = 0;
};

/// Gathers small pieces, so that hashing and writing see large ones.
class BufferedTarget {
 public:
  BufferedTarget(SafetensorsWriter writer, int64_t buffer_bytes) : writer_(std::move(writer)) {
    buffer_.reserve(static_cast<size_t>(buffer_bytes));
  }

  void append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > buffer_.capacity()) flush();
    if (bytes.size() >= buffer_.capacity())
      writer_.append(bytes);
    else
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  int64_t header_bytes() const { return writer_.header_bytes(); }

  StreamedFile::Finished finish() {
    flush();
    return writer_.finish();
  }

 private:
  void flush() {
    writer_.append(buffer_);
    buffer_.clear();
  }

  SafetensorsWriter writer_;
  std::vector<std::byte> buffer_;
};

}  // namespace

void copy_shard(const Pack& pack, const ShardPlan& plan, std::vector<ShardTarget>& targets, int64_t buffer_bytes,
                std::atomic<int64_t>& bytes_done, const std::atomic<bool>& stop) {
  const std::filesystem::path source_path = pack.folder() / plan.name;
  const FileDescriptor source = open_for_reading(source_path, ErrorKind::split);
  std::vector<std::byte> window(static_cast<size_t>(buffer_bytes));
  std::vector<BufferedTarget> outputs;
  outputs.reserve(targets.size());
  for (const ShardTarget& target : targets)
    outputs.emplace_back(SafetensorsWriter(target.folder / plan.name, plan.stored_tensors(target.position),
                                           kRankFileMetadata, ErrorKind::split),
                         buffer_bytes);

  for (const BufferedTarget& output : outputs) bytes_done += output.header_bytes();

  for (const TensorJob& job : plan.jobs) {
    const TensorInfo& info = job.source->info;
    std::vector<std::unique_ptr<RangeCursor>> cursors;
    int64_t last_end = 0;
    for (const ShardTarget& target : targets) {
      cursors.push_back(std::make_unique<RangeCursor>(info, job.slices[target.position]));
      if (!cursors.back()->done()) last_end = std::max(last_end, cursors.back()->last_end());
    }
    for (;;) {
      int64_t begin = last_end;
      for (const auto& cursor : cursors)
        if (!cursor->done()) begin = std::min(begin, cursor->begin());
      if (begin >= last_end) break;
      if (stop) throw Error(ErrorKind::interrupted, "the split was interrupted");
      const int64_t end = std::min(begin + buffer_bytes, last_end);
      const auto bytes = std::span(window).first(static_cast<size_t>(end - begin));
      const int64_t offset = job.source->file_offset + begin;
      read_exactly(source, offset, bytes, source_path, ErrorKind::split);
      for (size_t i = 0; i < cursors.size(); ++i) {
        RangeCursor& cursor = *cursors[i];
        while (!cursor.done() && cursor.begin() < end) {
          const int64_t piece = std::min(cursor.end(), end) - cursor.begin();
          outputs[i].append(bytes.subspan(static_cast<size_t>(cursor.begin() - begin), static_cast<size_t>(piece)));
          bytes_done += piece;
          cursor.take(piece);
        }
      }
      ::posix_fadvise(source.get(), offset, end - begin, POSIX_FADV_DONTNEED);
    }
  }
  for (size_t i = 0; i < targets.size(); ++i) targets[i].result = outputs[i].finish();
}

}  // namespace tandem
