#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/common/file.h"
#include "runtime/common/manifest.h"

namespace tandem {

/// A rank folder in the making: "<final path>.partial", held by one process at a time, with a journal of its finished
/// files. Files are added from several threads.
///
/// The lock is on the folder itself (flock), so it ends with the process however that dies, leaves no lock file, and
/// moves along when the folder is renamed.
class PartialFolder {
 public:
  /// Creates or resumes it. A journal of another pack, layout or rank makes it start afresh.
  /// @throws Error  kind `split`: another process is splitting this rank; the folder cannot be made
  PartialFolder(std::filesystem::path final_path, std::string identity);
  PartialFolder(PartialFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// The finished file of that name, if it is. Thread-safe.
  std::optional<ManifestFile> find(const std::string& name) const;

  /// Notes a file that is whole under its name. Thread-safe.
  void add(const ManifestFile& file);

  /// Bytes of the files that were finished by earlier runs and this one.
  int64_t finished_bytes() const;

  /// Removes the folder, for when there turns out to be nothing to do.
  void discard();

  /// Renames the folder to its final path (replacing what is there) and removes the journal: the last step.
  void publish();

 private:
  void lock();
  void load_journal();

  std::filesystem::path final_path_;
  std::filesystem::path path_;
  std::string identity_;
  FileDescriptor handle_;
  mutable std::mutex mutex_;
  std::map<std::string, ManifestFile> finished_;
};

/// Removes the journal that a process killed right after publishing may have left in a whole rank folder.
void remove_left_journal(const std::filesystem::path& rank_folder);

}  // namespace tandem
