#include "runtime/common/ling_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/common/error.h"
#include "runtime/common/file.h"

namespace tandem {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int kMaxDepth = 16;

/// Typed access to the fields, with one sentence for whatever is wrong with one.
class Fields {
 public:
  Fields(const json& object, std::string prefix, const std::string& where)
      : object_(object), prefix_(std::move(prefix)), where_(where) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const {
    throw Error(ErrorKind::pack, prefix_ + key + " " + problem, where_,
                "use a pack of the Ling-3 family whose config.json this version knows");
  }

  /// The value, or null when the field is absent or null.
  const json* find(const std::string& key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int64_t integer(const std::string& key, int64_t low, int64_t high) const {
    const json* value = find(key);
    if (!value) refuse(key, "is missing");
    return integer_of(key, *value, low, high);
  }

  int64_t integer_or(const std::string& key, int64_t otherwise, int64_t low, int64_t high) const {
    const json* value = find(key);
    return value ? integer_of(key, *value, low, high) : otherwise;
  }

  int64_t integer_of(const std::string& key, const json& value, int64_t low, int64_t high) const {
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(high)
                                                 : value.is_number_integer() && value.get<int64_t>() <= high;
    if (!fits || value.get<int64_t>() < low)
      refuse(key, "is " + shown(value) + ", expected a whole number from " + std::to_string(low) + " to " +
                      std::to_string(high));
    return value.get<int64_t>();
  }

  double number(const std::string& key, double low, double high) const {
    const json* value = find(key);
    if (!value) refuse(key, "is missing");
    return number_of(key, *value, low, high);
  }

  double number_or(const std::string& key, double otherwise, double low, double high) const {
    const json* value = find(key);
    return value ? number_of(key, *value, low, high) : otherwise;
  }

  double number_of(const std::string& key, const json& value, double low, double high) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= low && number <= high))
      refuse(key, "is " + shown(value) + ", expected a number from " + shown(low) + " to " + shown(high));
    return number;
  }

  bool boolean_or(const std::string& key, bool otherwise) const {
    const json* value = find(key);
    if (value && !value->is_boolean()) refuse(key, "is " + shown(*value) + ", expected true or false");
    return value ? value->get<bool>() : otherwise;
  }

  /// Refuses any value but `only`; an absent field is taken to have it.
  void must_be(const std::string& key, const json& only) const {
    const json* value = find(key);
    if (value && *value != only) refuse(key, "is " + shown(*value) + ", this version knows only " + shown(only));
  }

  static std::string shown(const json& value) {
    return printable(value.dump(-1, ' ', false, json::error_handler_t::replace), 80);
  }

 private:
  const json& object_;
  std::string prefix_;
  const std::string& where_;
};

json parse_bounded(std::string_view text, const std::string& where) {
  if (static_cast<int64_t>(text.size()) > kMaxConfigBytes)
    throw Error(ErrorKind::pack, "config.json has " + std::to_string(text.size()) + " bytes, the limit is 4 MiB",
                where);
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) throw Error(ErrorKind::pack, "config.json is nested too deeply", where);
    return true;
  };
  try {
    json value = json::parse(text.begin(), text.end(), check_depth);
    if (!value.is_object()) throw Error(ErrorKind::pack, "config.json is not an object", where);
    return value;
  } catch (const json::exception&) {
    throw Error(ErrorKind::pack, "config.json is not valid JSON", where);
  }
}

void check_architecture(const Fields& f) {
  const json* list = f.find("architectures");
  if (!list || !list->is_array() || list->empty()) f.refuse("architectures", "is missing");
  if (list->size() != 1 || (*list)[0] != std::string(kLingArchitecture))
    f.refuse("architectures",
             "is " + Fields::shown(*list) + ", this version knows only " + std::string(kLingArchitecture));
}

/// Switches of the family that no released Ling-3 model turns; a wrong guess here would give fluent nonsense.
void check_switches(const Fields& f) {
  for (const char* key : {"value_norm", "up_proj_norm", "use_nGPT", "use_mla_nope", "scale_router_input", "use_bias",
                          "use_qkv_bias", "mtp_use_kda", "use_kda_lora"})
    f.must_be(key, false);
  for (const char* key : {"no_kda_lora", "linear_silu", "use_qk_norm", "rope_interleave"}) f.must_be(key, true);
  f.must_be("score_function", "sigmoid");
  f.must_be("scoring_func", "sigmoid");
  f.must_be("topk_method", "noaux_tc");
  f.must_be("hidden_act", "silu");
  f.must_be("gated_attention_proj_granularity_type", "head_wise");
}

std::optional<YarnConfig> read_rope_scaling(const Fields& outer, const std::string& where) {
  const json* object = outer.find("rope_scaling");
  if (!object) return std::nullopt;
  if (!object->is_object()) outer.refuse("rope_scaling", "is not an object");
  const Fields f(*object, "config.json: rope_scaling.", where);
  const json* type = f.find("rope_type") ? f.find("rope_type") : f.find("type");
  if (!type || *type != "yarn")
    f.refuse("type", "is " + (type ? Fields::shown(*type) : "missing") + ", this version knows only \"yarn\"");
  YarnConfig yarn;
  yarn.factor = f.number("factor", 1.0, 1024.0);
  yarn.original_max_position_embeddings = f.integer_or("original_max_position_embeddings", 0, 1, int64_t{1} << 24);
  yarn.beta_fast = f.number_or("beta_fast", 32.0, 1e-3, 1e4);
  yarn.beta_slow = f.number_or("beta_slow", 1.0, 1e-3, 1e4);
  yarn.mscale = f.number_or("mscale", 1.0, 0.0, 1e3);
  yarn.mscale_all_dim = f.number_or("mscale_all_dim", 0.0, 0.0, 1e3);
  if (f.find("attention_factor")) yarn.attention_factor = f.number("attention_factor", 1e-3, 1e3);
  return yarn;
}

std::vector<double> read_limits(const Fields& f, const std::string& key) {
  const json* list = f.find(key);
  if (!list) return {};
  if (!list->is_array() || list->size() > 1024) f.refuse(key, "is not a list of at most 1024 numbers");
  std::vector<double> limits;
  for (const json& entry : *list) limits.push_back(entry.is_null() ? 0.0 : f.number_of(key, entry, 0.0, 1e6));
  return limits;
}

std::vector<int64_t> read_token_ids(const Fields& f, const std::string& key, int64_t vocab_size) {
  const json* value = f.find(key);
  if (!value) return {};
  if (!value->is_array()) return {f.integer_of(key, *value, 0, vocab_size - 1)};
  if (value->size() > 64) f.refuse(key, "has more than 64 entries");
  std::vector<int64_t> ids;
  for (const json& entry : *value) ids.push_back(f.integer_of(key, entry, 0, vocab_size - 1));
  return ids;
}

void read_shapes(const Fields& f, LingConfig& c) {
  constexpr int64_t kMaxWidth = 1 << 20;
  c.vocab_size = f.integer("vocab_size", 1, 1 << 22);
  c.hidden_size = f.integer("hidden_size", 1, 1 << 16);
  c.intermediate_size = f.integer("intermediate_size", 1, kMaxWidth);
  c.num_hidden_layers = static_cast<int>(f.integer("num_hidden_layers", 1, 1024));
  c.num_attention_heads = static_cast<int>(f.integer("num_attention_heads", 1, 1024));
  c.head_dim = f.integer("head_dim", 1, 1024);
  c.layer_group_size = static_cast<int>(f.integer("layer_group_size", 1, 1024));
  c.first_k_dense_replace = static_cast<int>(f.integer("first_k_dense_replace", 0, 1024));
  c.max_position_embeddings = f.integer("max_position_embeddings", 1, int64_t{1} << 32);
  c.short_conv_kernel_size = static_cast<int>(f.integer("short_conv_kernel_size", 1, 16));
  if (f.find("q_lora_rank")) c.q_lora_rank = f.integer("q_lora_rank", 1, 1 << 16);
  c.kv_lora_rank = f.integer("kv_lora_rank", 1, 1 << 16);
  c.qk_nope_head_dim = f.integer("qk_nope_head_dim", 1, 1024);
  c.qk_rope_head_dim = f.integer("qk_rope_head_dim", 2, 1024);
  c.v_head_dim = f.integer("v_head_dim", 1, 1024);
  c.num_experts = static_cast<int>(f.integer("num_experts", 1, 1 << 14));
  c.num_experts_per_tok = static_cast<int>(f.integer("num_experts_per_tok", 1, 256));
  c.num_shared_experts = static_cast<int>(f.integer_or("num_shared_experts", 0, 0, 16));
  c.moe_intermediate_size = f.integer("moe_intermediate_size", 1, kMaxWidth);
  c.moe_shared_expert_intermediate_size =
      f.integer_or("moe_shared_expert_intermediate_size", c.moe_intermediate_size, 1, kMaxWidth);
  c.n_group = static_cast<int>(f.integer_or("n_group", 1, 1, 1 << 14));
  c.topk_group = static_cast<int>(f.integer_or("topk_group", 1, 1, 1 << 14));
  c.num_nextn_predict_layers = static_cast<int>(f.integer_or("num_nextn_predict_layers", 0, 0, 8));
}

void check_consistency(const Fields& f, const LingConfig& c) {
  const auto must_equal = [&](const std::string& key, int64_t value) {
    if (f.find(key)) f.integer(key, value, value);
  };
  must_equal("qk_head_dim", c.qk_head_dim());
  must_equal("rotary_dim", c.qk_rope_head_dim);
  if (f.integer_or("num_kv_heads_for_linear_attn", 0, 0, 1024) != 0)
    must_equal("num_kv_heads_for_linear_attn", c.num_attention_heads);
  if (c.qk_rope_head_dim % 2 != 0) f.refuse("qk_rope_head_dim", "is odd");
  // Bounds the tensor table: real models have some 40,000.
  if (static_cast<int64_t>(c.num_layers_with_mtp()) * c.num_experts > 1 << 18)
    f.refuse("num_experts", "times the number of layers is over 262144");
  if (c.num_experts % c.n_group != 0) f.refuse("n_group", "does not divide num_experts");
  const int group = c.num_experts / c.n_group;
  if (c.n_group > 1 && group < 2) f.refuse("n_group", "leaves fewer than two experts in a group");
  if (c.topk_group > c.n_group) f.refuse("topk_group", "is larger than n_group");
  if (c.num_experts_per_tok > c.topk_group * group)
    f.refuse("num_experts_per_tok", "is larger than the number of experts in topk_group groups");
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace

bool LingConfig::is_mla(int layer) const {
  const int whole_groups = num_hidden_layers / layer_group_size * layer_group_size;
  return layer >= whole_groups || (layer + 1) % layer_group_size == 0;
}

double LingConfig::swiglu_limit(int layer, bool shared) const {
  const std::vector<double>& limits = shared ? share_expert_swiglu_limit_list : expert_swiglu_limit_list;
  return !is_mtp(layer) && static_cast<size_t>(layer) < limits.size() ? limits[static_cast<size_t>(layer)] : 0.0;
}

LingConfig parse_ling_config(std::string_view text, const std::string& where) {
  const json object = parse_bounded(text, where);
  const Fields f(object, "config.json: ", where);
  check_architecture(f);
  check_switches(f);

  LingConfig c;
  read_shapes(f, c);
  c.rms_norm_eps = f.number("rms_norm_eps", 1e-12, 1e-1);
  c.tie_word_embeddings = f.boolean_or("tie_word_embeddings", false);
  c.kda_safe_gate = f.boolean_or("kda_safe_gate", false);
  c.kda_lower_bound = f.number_or("kda_lower_bound", -5.0, -64.0, -1e-3);
  c.rope_theta = f.number("rope_theta", 1.0, 1e12);
  c.rope_scaling = read_rope_scaling(f, where);
  if (c.rope_scaling && c.rope_scaling->original_max_position_embeddings == 0)
    c.rope_scaling->original_max_position_embeddings = c.max_position_embeddings;
  c.norm_topk_prob = f.boolean_or("norm_topk_prob", true);
  c.routed_scaling_factor = f.number_or("routed_scaling_factor", 1.0, 1e-6, 1e6);
  c.moe_router_enable_expert_bias = f.boolean_or("moe_router_enable_expert_bias", true);
  c.expert_swiglu_limit_list = read_limits(f, "expert_swiglu_limit_list");
  c.share_expert_swiglu_limit_list = read_limits(f, "share_expert_swiglu_limit_list");
  c.eos_token_id = read_token_ids(f, "eos_token_id", c.vocab_size);
  const std::vector<int64_t> pad = read_token_ids(f, "pad_token_id", c.vocab_size);
  if (!pad.empty()) c.pad_token_id = pad[0];
  check_consistency(f, c);
  return c;
}

LingConfig read_ling_config(const std::filesystem::path& pack_folder) {
  const std::filesystem::path path = pack_folder / "config.json";
  return parse_ling_config(read_small_file(path, kMaxConfigBytes, ErrorKind::pack), path.string());
}

std::optional<LingConfig> published_ling_config(std::string_view model_name) {
  std::string name = lower(model_name.substr(model_name.rfind('/') + 1));  // npos + 1 is 0
  LingConfig c;
  c.vocab_size = 157184;
  c.head_dim = 128;
  c.max_position_embeddings = 262144;
  c.short_conv_kernel_size = 4;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128;
  c.qk_rope_head_dim = 64;
  c.v_head_dim = 128;
  c.rope_theta = 6e6;
  c.num_experts = 512;
  c.num_experts_per_tok = 8;
  c.num_shared_experts = 1;
  c.n_group = 8;
  c.topk_group = 4;
  c.routed_scaling_factor = 2.5;
  c.num_nextn_predict_layers = 1;
  c.eos_token_id = {156895};
  c.pad_token_id = 156892;
  if (name == "ling-3.1-flash" || name == "ling-3.1-flash-1019" || name == "ling-3.1-flash-base") {
    c.hidden_size = 4096;
    c.intermediate_size = 10240;
    c.num_hidden_layers = 72;
    c.num_attention_heads = 64;
    c.layer_group_size = 8;
    c.first_k_dense_replace = 4;
    c.q_lora_rank = 1536;  // inferred: the sizes of published packs fit it best
    c.moe_intermediate_size = c.moe_shared_expert_intermediate_size = 1280;
    c.expert_swiglu_limit_list.assign(72, 0.0);
    std::fill(c.expert_swiglu_limit_list.begin() + 65, c.expert_swiglu_limit_list.end(), 10.0);
    c.share_expert_swiglu_limit_list.assign(72, 0.0);
    std::fill(c.share_expert_swiglu_limit_list.begin() + 64, c.share_expert_swiglu_limit_list.end(), 10.0);
    return c;
  }
  if (name == "ling-3.0-flash") {
    c.hidden_size = 2560;
    c.intermediate_size = 6144;
    c.num_hidden_layers = 42;
    c.num_attention_heads = 32;
    c.layer_group_size = 6;
    c.first_k_dense_replace = 2;
    c.moe_intermediate_size = c.moe_shared_expert_intermediate_size = 768;
    c.expert_swiglu_limit_list.assign(42, 0.0);
    std::fill(c.expert_swiglu_limit_list.begin() + 35, c.expert_swiglu_limit_list.end(), 4.0);
    c.share_expert_swiglu_limit_list.assign(42, 0.0);
    std::fill(c.share_expert_swiglu_limit_list.begin() + 34, c.share_expert_swiglu_limit_list.begin() + 40, 5.0);
    std::fill(c.share_expert_swiglu_limit_list.begin() + 40, c.share_expert_swiglu_limit_list.end(), 7.0);
    return c;
  }
  return std::nullopt;
}

}  // namespace tandem
