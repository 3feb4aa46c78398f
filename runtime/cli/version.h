#pragma once

#include <map>
#include <string>
#include <vector>

namespace tandem {

/// "0.1.0"
std::string version();

/// What this build is and can do. A function of sources and machine alone: no dates, no commits.
/// @param options  the flags of each command
/// @return         text for people, or one JSON object
std::string version_text(const std::map<std::string, std::vector<std::string>>& options, bool as_json);

}  // namespace tandem
