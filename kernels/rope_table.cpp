#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "kernels/rope.h"
#include "runtime/common/error.h"

namespace tandem {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorKind::pack, "the config describes no rotary embedding: " + what);
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void stretch(const RopeConfig& config, const YarnScaling& yarn, RopeTable& table) {
  const double dim = static_cast<double>(config.rope_dim);
  // The (fractional) pair that turns this often within the original window.
  const auto pair_of = [&](double rotations) {
    return dim * std::log(yarn.original_max_position_embeddings / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  const double low = std::max(std::floor(pair_of(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(yarn.beta_slow)), dim - 1.0);
  const double width = std::max(high - low, 1e-3);
  for (size_t j = 0; j < table.inverse_frequencies.size(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / width, 0.0, 1.0);
    double& frequency = table.inverse_frequencies[j];
    frequency = frequency / yarn.factor * ramp + frequency * (1.0 - ramp);
  }
  const double m = yarn.mscale.value_or(0.0);
  const double m_all = yarn.mscale_all_dim.value_or(0.0);
  if (yarn.attention_factor) {
    table.rotation_factor = *yarn.attention_factor;
  } else if (m != 0.0 && m_all != 0.0) {
    table.rotation_factor = yarn_magnitude(yarn.factor, m) / yarn_magnitude(yarn.factor, m_all);
  } else {
    table.rotation_factor = yarn_magnitude(yarn.factor, 1.0);
  }
  if (m_all != 0.0) table.softmax_factor = std::pow(yarn_magnitude(yarn.factor, m_all), 2);
}

}  // namespace

RopeTable build_rope_table(const RopeConfig& config) {
  require(config.rope_dim > 0 && config.rope_dim % 2 == 0 && config.rope_dim <= 4096,
          "qk_rope_head_dim " + std::to_string(config.rope_dim) + ", expected an even number up to 4096");
  require(std::isfinite(config.theta) && config.theta > 1.0,
          "rope_theta " + std::to_string(config.theta) + ", expected more than 1");
  RopeTable table;
  for (int64_t i = 0; i < config.rope_dim; i += 2) {
    table.inverse_frequencies.push_back(
        std::pow(config.theta, -static_cast<double>(i) / static_cast<double>(config.rope_dim)));
  }
  if (config.yarn) {
    const YarnScaling& yarn = *config.yarn;
    require(std::isfinite(yarn.factor) && yarn.factor > 0.0,
            "rope_scaling factor " + std::to_string(yarn.factor) + ", expected more than 0");
    require(std::isfinite(yarn.original_max_position_embeddings) && yarn.original_max_position_embeddings >= 1.0,
            "original_max_position_embeddings " + std::to_string(yarn.original_max_position_embeddings) +
                ", expected at least 1");
    require(
        std::isfinite(yarn.beta_fast) && yarn.beta_fast > 0.0 && std::isfinite(yarn.beta_slow) && yarn.beta_slow > 0.0,
        "beta_fast " + std::to_string(yarn.beta_fast) + ", beta_slow " + std::to_string(yarn.beta_slow) +
            ", expected more than 0");
    stretch(config, yarn, table);
    require(std::isfinite(table.rotation_factor) && table.rotation_factor > 0.0 && std::isfinite(table.softmax_factor),
            "attention_factor, mscale or mscale_all_dim out of range");
  }
  return table;
}

}  // namespace tandem
