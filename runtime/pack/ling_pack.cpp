#include "runtime/pack/ling_pack.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/short_conv.h"
#include "runtime/common/error.h"
#include "runtime/common/family.h"
#include "runtime/common/manifest.h"
#include "runtime/common/pack.h"
#include "runtime/common/shard.h"
#include "runtime/pack/weight_reader.h"

namespace tandem {

struct LingPack::Parts {
  Parts(Pack opened, LingConfig parsed, const LingPackOptions& options)
      : pack(std::move(opened)),
        config(std::move(parsed)),
        table(config),
        reader(pack, table, options.world_size, options.place, options.progress) {}

  Pack pack;
  LingConfig config;
  ModuleTable table;
  WeightReader reader;
  LingWeights weights;
  std::string pack_hash;
  int64_t bytes_per_decode = 0;
};

namespace {

/// Refuses a folder that is not what this rank needs. Returns the identity of the whole pack.
std::string check_folder(const LingPackOptions& options, const Pack& pack) {
  if (is_rank_folder(options.folder)) {
    const Manifest manifest = read_manifest(options.folder, /*with_tensors=*/false);
    check_manifest(options.folder, manifest, {.world_size = options.world_size, .rank = options.rank});
    return manifest.pack_hash;
  }
  if (options.world_size > 1) {
    throw Error(ErrorKind::pack,
                "the folder is a whole pack, but rank " + std::to_string(options.rank) + " of " +
                    std::to_string(options.world_size) + " needs a folder cut for it",
                options.folder.string(),
                "cut the pack with `tandem split`, then give each rank its own folder; or use --world-size 1");
  }
  return pack.content_hash();
}

/// Reads the weights in the order of the forward pass.
class Assembler {
 public:
  Assembler(const LingConfig& config, WeightReader& reader, int world_size, int rank)
      : config_(config), reader_(reader), world_size_(world_size), rank_(rank) {}

  LingWeights assemble(bool with_mtp) {
    LingWeights weights;
    weights.word_embeddings = reader_.matrix("model.word_embeddings.weight");
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) weights.layers.push_back(read_layer(layer));
    weights.norm = reader_.vector("model.norm.weight");
    weights.lm_head = lm_head(weights.word_embeddings);
    weights.lm_head_first_token = config_.vocab_size / world_size_ * rank_;
    if (with_mtp && config_.num_nextn_predict_layers > 0) weights.mtp = mtp(config_.num_hidden_layers);
    return weights;
  }

 private:
  static std::string prefix_of(int layer) { return "model.layers." + std::to_string(layer) + "."; }

  KdaWeights kda(const std::string& attention) {
    KdaWeights kda;
    if (reader_.has(attention + "qkv_proj")) {
      kda.qkv_proj.push_back(reader_.linear(attention + "qkv_proj"));
    } else {
      for (const char* part : {"q_proj", "k_proj", "v_proj"}) kda.qkv_proj.push_back(reader_.linear(attention + part));
    }
    const int64_t channels = 3 * config_.kda_width() / world_size_;
    const auto by_tap = [&](const float* stored, float* out) {
      short_conv_weight_by_tap(stored, channels, config_.short_conv_kernel_size, out);
    };
    kda.conv1d = reader_.has(attention + "conv1d")
                     ? reader_.vector(attention + "conv1d.weight", by_tap)
                     : reader_.vectors({attention + "q_conv1d.weight", attention + "k_conv1d.weight",
                                        attention + "v_conv1d.weight"},
                                       by_tap);
    kda.f_proj = reader_.linear(attention + "f_proj");
    kda.b_proj = reader_.linear(attention + "b_proj");
    kda.g_proj = reader_.linear(attention + "g_proj");
    kda.A_log = reader_.vector(attention + "A_log");
    kda.dt_bias = reader_.vector(attention + "dt_bias");
    kda.o_norm = reader_.vector(attention + "o_norm.weight");
    kda.o_proj = reader_.linear(attention + "o_proj");
    return kda;
  }

  MlaWeights mla(const std::string& attention) {
    MlaWeights mla;
    if (config_.q_lora_rank) {
      mla.q_a_proj = reader_.linear(attention + "q_a_proj");
      mla.q_a_layernorm = reader_.vector(attention + "q_a_layernorm.weight");
      mla.q_b_proj = reader_.linear(attention + "q_b_proj");
    } else {
      mla.q_b_proj = reader_.linear(attention + "q_proj");
    }
    mla.kv_a_proj_with_mqa = reader_.linear(attention + "kv_a_proj_with_mqa");
    mla.kv_a_layernorm = reader_.vector(attention + "kv_a_layernorm.weight");
    const PlainMatrix kv_b = reader_.matrix(attention + "kv_b_proj.weight");
    mla.kv_b_proj = {.format = kv_b.format, .data = kv_b.data};
    mla.g_proj = reader_.linear(attention + "g_proj");
    mla.dense = reader_.linear(attention + "dense");
    return mla;
  }

  MlpWeights mlp(const std::string& prefix) {
    return {.gate_proj = reader_.linear(prefix + "gate_proj"),
            .up_proj = reader_.linear(prefix + "up_proj"),
            .down_proj = reader_.linear(prefix + "down_proj")};
  }

  MoeWeights moe(const std::string& prefix, int layer) {
    MoeWeights moe;
    moe.gate = reader_.matrix(prefix + "gate.weight");
    if (config_.moe_router_enable_expert_bias) moe.expert_bias = reader_.vector(prefix + "gate.expert_bias");
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      moe.experts.push_back(mlp(prefix + "experts." + std::to_string(expert) + "."));
    }
    moe.experts_swiglu_limit = static_cast<float>(config_.swiglu_limit(layer, /*shared=*/false));
    if (config_.num_shared_experts > 0) moe.shared_experts = mlp(prefix + "shared_experts.");
    moe.shared_swiglu_limit = static_cast<float>(config_.swiglu_limit(layer, /*shared=*/true));
    return moe;
  }

  LayerWeights read_layer(int index) {
    const std::string prefix = prefix_of(index);
    LayerWeights layer;
    layer.input_layernorm = reader_.vector(prefix + "input_layernorm.weight");
    if (config_.is_mla(index)) {
      layer.attention = mla(prefix + "attention.");
    } else {
      layer.attention = kda(prefix + "attention.");
    }
    layer.post_attention_layernorm = reader_.vector(prefix + "post_attention_layernorm.weight");
    if (config_.is_moe(index)) {
      layer.mlp = moe(prefix + "mlp.", index);
    } else {
      layer.mlp = DenseMlpWeights{mlp(prefix + "mlp."), static_cast<float>(config_.swiglu_limit(index, false))};
    }
    return layer;
  }

  MtpWeights mtp(int index) {
    const std::string prefix = prefix_of(index);
    MtpWeights mtp;
    mtp.enorm = reader_.vector(prefix + "enorm.weight");
    mtp.hnorm = reader_.vector(prefix + "hnorm.weight");
    mtp.eh_proj = reader_.linear(prefix + "eh_proj");
    mtp.layer = read_layer(index);
    mtp.final_layernorm = reader_.vector(prefix + "final_layernorm.weight");
    return mtp;
  }

  /// A stored head wins over tie_word_embeddings: converters leave the flag on beside a quantized head.
  Linear lm_head(const PlainMatrix& embeddings) {
    if (!config_.tie_word_embeddings || reader_.has("lm_head")) return reader_.linear("lm_head");
    const int64_t tokens = config_.vocab_size / world_size_;
    const int64_t offset = tokens * rank_ * config_.hidden_size * float_format_bytes(embeddings.format);
    DenseWeight weight;
    weight.data = static_cast<const std::byte*>(embeddings.data) + offset;
    weight.format = embeddings.format;
    return {config_.hidden_size, tokens, weight};
  }

  const LingConfig& config_;
  WeightReader& reader_;
  int world_size_;
  int rank_;
};

int64_t bytes_of(const MlpWeights& mlp) {
  return mlp.gate_proj.bytes() + mlp.up_proj.bytes() + mlp.down_proj.bytes();
}

int64_t bytes_of(const KdaWeights& kda) {
  int64_t bytes = kda.f_proj.bytes() + kda.b_proj.bytes() + kda.g_proj.bytes() + kda.o_proj.bytes();
  for (const Linear& linear : kda.qkv_proj) bytes += linear.bytes();
  return bytes;
}

int64_t bytes_of(const MlaWeights& mla, const LingConfig& config) {
  const int64_t heads = mla.g_proj.out_features;
  return (mla.q_a_proj ? mla.q_a_proj->bytes() : 0) + mla.q_b_proj.bytes() + mla.kv_a_proj_with_mqa.bytes() +
         heads * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank *
             float_format_bytes(mla.kv_b_proj.format) +
         mla.g_proj.bytes() + mla.dense.bytes();
}

int64_t decode_bytes(const LingWeights& weights, const LingConfig& config) {
  int64_t bytes = weights.lm_head.bytes();
  for (const LayerWeights& layer : weights.layers) {
    if (const auto* kda = std::get_if<KdaWeights>(&layer.attention)) {
      bytes += bytes_of(*kda);
    } else {
      bytes += bytes_of(std::get<MlaWeights>(layer.attention), config);
    }
    if (const auto* dense = std::get_if<DenseMlpWeights>(&layer.mlp)) {
      bytes += bytes_of(dense->mlp);
      continue;
    }
    const auto& moe = std::get<MoeWeights>(layer.mlp);
    int64_t experts = 0;
    for (const MlpWeights& expert : moe.experts) experts += bytes_of(expert);
    bytes += experts / config.num_experts * config.num_experts_per_tok;
    if (moe.shared_experts) bytes += bytes_of(*moe.shared_experts);
    bytes += config.num_experts * config.hidden_size * float_format_bytes(moe.gate.format);
  }
  return bytes;
}

}  // namespace

std::string pack_identity(const std::filesystem::path& folder) {
  if (is_rank_folder(folder)) return read_manifest(folder, /*with_tensors=*/false).pack_hash;
  return Pack::open(folder).content_hash();
}

std::unique_ptr<LingPack> LingPack::load(const LingPackOptions& options) {
  Pack pack = Pack::open(options.folder);
  LingConfig config = parse_ling_config(pack.config_text(), (options.folder / "config.json").string());
  std::string pack_hash = check_folder(options, pack);
  auto parts = std::make_unique<Parts>(std::move(pack), std::move(config), options);
  parts->pack_hash = std::move(pack_hash);
  check_tensors(parts->pack, parts->table, options.world_size);
  parts->weights = Assembler(parts->config, parts->reader, options.world_size, options.rank).assemble(options.with_mtp);
  parts->bytes_per_decode = decode_bytes(parts->weights, parts->config);
  if (options.progress) options.progress(1.0);
  return std::unique_ptr<LingPack>(new LingPack(std::move(parts)));
}

LingPack::LingPack(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LingPack::~LingPack() = default;

const LingConfig& LingPack::config() const {
  return parts_->config;
}
const LingWeights& LingPack::weights() const {
  return parts_->weights;
}
const std::string& LingPack::pack_hash() const {
  return parts_->pack_hash;
}
int64_t LingPack::mapped_bytes() const {
  return parts_->reader.mapped_bytes();
}
int64_t LingPack::copied_bytes() const {
  return parts_->reader.copied_bytes();
}
int64_t LingPack::bytes_per_decode() const {
  return parts_->bytes_per_decode;
}

}  // namespace tandem
