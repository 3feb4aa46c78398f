#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "orchestrator/fetch/hub.h"

namespace tandem {

/// Compares a file on disk with what it should be: size, and the hashes that are known.
/// @param on_bytes  called with the number of bytes checked since the last call
/// @return "" when it is the same, else what differs ("absent", "has 12 bytes, expected 13", "sha256 is ..., expected
/// ...")
/// @throws Error (interrupted) once `cancel` is set; (fetch) when it cannot be read
std::string file_mismatch(const std::filesystem::path& path, const HubFile& file, const std::atomic<bool>* cancel,
                          const std::function<void(int64_t)>& on_bytes);

}  // namespace tandem
