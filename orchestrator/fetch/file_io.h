#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/common/error.h"
#include "runtime/common/file.h"

namespace tandem {

/// The error for a failed system call on a file of the cache: disk full, quota, permission and a read-only file system
/// each have their own way out. `code` is an errno value.
Error cache_file_error(const std::string& doing, const std::filesystem::path& path, int code);

FileDescriptor open_cache_file(const std::filesystem::path& path, int flags);  ///< mode 0644 when created
void write_at(const FileDescriptor& file, const std::filesystem::path& path, std::string_view data, int64_t offset);
void sync_data(const FileDescriptor& file, const std::filesystem::path& path);

/// Renames within one file system, replacing what was there.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes it if it is there. Failures are logged, not thrown: what is left over is found again by the next run.
void remove_quietly(const std::filesystem::path& path);

/// write_file_atomic() for a file with one writer at a time. Its temporary name is always the same, so that a run after
/// a kill overwrites what was left instead of leaving one more file behind.
void replace_cache_file(const std::filesystem::path& path, std::string_view content);

/// The content, or "" when it is absent, no regular file, unreadable or larger than `max_bytes`.
std::string read_if_small(const std::filesystem::path& path, int64_t max_bytes);

/// What files under way are called while they are not whole: "<name>.tandem.incomplete".
inline constexpr std::string_view kIncompleteSuffix = ".tandem.incomplete";
inline constexpr std::string_view kJournalSuffix = ".tandem.journal";

}  // namespace tandem
