#include "runtime/cli/version.h"

#include <nlohmann/json.hpp>

#include "kernels/cpu_targets.h"
#include "runtime/common/pack.h"

namespace tandem {
namespace {

const char* architecture() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

std::string version() {
  return TANDEM_VERSION;
}

std::string version_text(const std::map<std::string, std::vector<std::string>>& options, bool as_json) {
  const std::vector<std::string> families{"BailingMoeV3ForCausalLM"};
  const std::vector<std::string> devices{"cpu"};
  std::vector<std::string> codebooks;
  for (const Codebook codebook : {Codebook::three_inst, Codebook::mcg, Codebook::mul1}) {
    codebooks.emplace_back(codebook_name(codebook));
  }
  if (as_json) {
    nlohmann::ordered_json json;
    json["schema_version"] = 1;
    json["program"] = "tandem-runtime";
    json["version"] = version();
    json["build"] = {{"type", TANDEM_BUILD_TYPE}, {"compiler", TANDEM_COMPILER}, {"architecture", architecture()}};
    json["families"] = families;
    json["devices"] = devices;
    json["cpu_targets"] = cpu_targets();
    json["codebooks"] = codebooks;
    json["options"] = options;
    return json.dump(2) + "\n";
  }
  std::string text =
      "tandem-runtime " + version() + " (" + TANDEM_BUILD_TYPE + ", " + TANDEM_COMPILER + ", " + architecture() + ")\n";
  text += "families:    " + joined(families) + "\n";
  text += "devices:     " + joined(devices) + "\n";
  text += "cpu targets: " + joined(cpu_targets()) + "\n";
  text += "codebooks:   " + joined(codebooks) + "\n";
  for (const auto& [command, flags] : options) text += command + ":\n  " + joined(flags) + "\n";
  return text;
}

}  // namespace tandem
