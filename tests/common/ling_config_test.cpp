#include "runtime/common/ling_config.h"

#include "runtime/common/error.h"
#include "tests/catch.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

const std::string kConfig = test::read_text(TANDEM_SOURCE_DIR "/examples/packs/ling-tiny-exl3-3.64bpw/config.json");

/// The example's config with one entry replaced (or added).
std::string with(const std::string& key, const std::string& value) {
  std::string text = kConfig;
  const std::string quoted_key = "\"" + key + "\":";
  const size_t at = text.find(quoted_key);
  if (at == std::string::npos) return text.replace(text.find('{'), 1, "{" + quoted_key + value + ",");
  size_t end = at + quoted_key.size();
  int depth = 0;  // lists and objects are replaced whole
  while (depth > 0 || (text[end] != ',' && text[end] != '}')) {
    depth += (text[end] == '[' || text[end] == '{') - (text[end] == ']' || text[end] == '}');
    ++end;
  }
  return text.replace(at, end - at, quoted_key + value);
}

std::string refusal(const std::string& text) {
  try {
    parse_ling_config(text, "config.json");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::pack);
    return e.what();
  }
  return "";
}

TEST_CASE("the example's config is read", "[ling_config]") {
  const LingConfig c = parse_ling_config(kConfig, "config.json");
  CHECK(c.hidden_size == 256);
  CHECK(c.q_lora_rank == 256);
  CHECK(c.eos_token_id == std::vector<int64_t>{2018});
  CHECK(c.pad_token_id == 2017);
  CHECK(c.rope_theta == 10000.0);
  CHECK_FALSE(c.rope_scaling);
  CHECK(c.is_mla(3));
  CHECK(c.is_mla(7));
  CHECK(c.is_mla(8));
  CHECK_FALSE(c.is_mla(4));
  CHECK_FALSE(c.is_moe(0));
  CHECK(c.is_moe(1));
  CHECK(c.swiglu_limit(7, false) == 10.0);
  CHECK(c.swiglu_limit(6, false) == 0.0);
  CHECK(c.swiglu_limit(6, true) == 10.0);
  CHECK(c.swiglu_limit(8, true) == 0.0);
}

TEST_CASE("a ragged last group is MLA throughout", "[ling_config]") {
  LingConfig c;
  c.num_hidden_layers = 10;
  c.layer_group_size = 4;
  CHECK_FALSE(c.is_mla(6));
  CHECK(c.is_mla(7));
  CHECK(c.is_mla(8));
  CHECK(c.is_mla(9));
}

TEST_CASE("queries are low-rank or direct", "[ling_config]") {
  CHECK_FALSE(parse_ling_config(with("q_lora_rank", "null"), "c").q_lora_rank);
  CHECK(parse_ling_config(with("q_lora_rank", "1536"), "c").q_lora_rank == 1536);
}

TEST_CASE("YaRN is read, other rope types are refused by name", "[ling_config]") {
  const auto yarn = parse_ling_config(
      with("rope_scaling", R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":1024})"), "c");
  REQUIRE(yarn.rope_scaling);
  CHECK(yarn.rope_scaling->factor == 4.0);
  CHECK(yarn.rope_scaling->original_max_position_embeddings == 1024);
  CHECK(refusal(with("rope_scaling", R"({"rope_type":"llama3","factor":4.0})")) ==
        "config.json: rope_scaling.type is \"llama3\", this version knows only \"yarn\"");
  CHECK(refusal(with("rope_scaling", R"({"factor":4.0})")).starts_with("config.json: rope_scaling.type is missing"));
}

TEST_CASE("configs of models that are not implemented are refused by name", "[ling_config]") {
  CHECK(refusal(with("architectures", "[\"BailingMoeV2_5ForCausalLM\"]")) ==
        "config.json: architectures is [\"BailingMoeV2_5ForCausalLM\"], this version knows only "
        "BailingMoeV3ForCausalLM");
  CHECK(refusal(with("architectures", "null")) == "config.json: architectures is missing");
  for (const char* key : {"value_norm", "up_proj_norm", "use_nGPT", "use_mla_nope", "scale_router_input", "use_bias",
                          "mtp_use_kda", "use_kda_lora", "use_qkv_bias"})
    CHECK(refusal(with(key, "true")) == "config.json: " + std::string(key) + " is true, this version knows only false");
  CHECK(refusal(with("rope_interleave", "false")) ==
        "config.json: rope_interleave is false, this version knows only true");
  CHECK(refusal(with("score_function", "\"softmax\"")) ==
        "config.json: score_function is \"softmax\", this version knows only \"sigmoid\"");
  CHECK(
      refusal(with("gated_attention_proj_granularity_type", "\"element_wise\"")) ==
      "config.json: gated_attention_proj_granularity_type is \"element_wise\", this version knows only \"head_wise\"");
}

TEST_CASE("hostile configs are refused with one sentence", "[ling_config]") {
  CHECK(refusal("") == "config.json is not valid JSON");
  CHECK(refusal("[]") == "config.json is not an object");
  CHECK(refusal(std::string(3'000'000, '[')) == "config.json is nested too deeply");
  CHECK(refusal(std::string(5 << 20, ' ')) == "config.json has 5242880 bytes, the limit is 4 MiB");
  CHECK(refusal(with("hidden_size", "-1")) ==
        "config.json: hidden_size is -1, expected a whole number from 1 to 65536");
  CHECK(refusal(with("hidden_size", "1e3")) ==
        "config.json: hidden_size is 1000.0, expected a whole number from 1 to 65536");
  CHECK(refusal(with("hidden_size", "18446744073709551615")) ==
        "config.json: hidden_size is 18446744073709551615, expected a whole number from 1 to 65536");
  CHECK(refusal(with("hidden_size", "\"256\"")) ==
        "config.json: hidden_size is \"256\", expected a whole number from 1 to 65536");
  CHECK(refusal(with("layer_group_size", "0")) ==
        "config.json: layer_group_size is 0, expected a whole number from 1 to 1024");
  CHECK(refusal(with("num_experts", "16384")).empty() == true);
  CHECK(refusal(with("rms_norm_eps", "0")) == "config.json: rms_norm_eps is 0, expected a number from 1e-12 to 0.1");
  CHECK(refusal(with("topk_group", "8")) == "config.json: topk_group is larger than n_group");
  CHECK(refusal(with("n_group", "3")) == "config.json: n_group does not divide num_experts");
  CHECK(refusal(with("num_experts_per_tok", "5")) ==
        "config.json: num_experts_per_tok is larger than the number of experts in topk_group groups");
  CHECK(refusal(with("qk_head_dim", "128")) ==
        "config.json: qk_head_dim is 128, expected a whole number from 192 to 192");
  CHECK(refusal(with("eos_token_id", "2048")) ==
        "config.json: eos_token_id is 2048, expected a whole number from 0 to 2047");
  CHECK(refusal(with("tie_word_embeddings", "1")) == "config.json: tie_word_embeddings is 1, expected true or false");
  CHECK(refusal(with("expert_swiglu_limit_list", "[\"x\"]")) ==
        "config.json: expert_swiglu_limit_list is \"x\", expected a number from 0.0 to 1000000.0");
}

TEST_CASE("experts times layers are bounded", "[ling_config]") {
  CHECK(refusal(with("num_hidden_layers", "1024")).empty());
  std::string text = with("num_experts", "16384");
  text.replace(text.find("\"num_hidden_layers\": 8"), 22, "\"num_hidden_layers\": 900");
  CHECK(refusal(text) == "config.json: num_experts times the number of layers is over 262144");
}

TEST_CASE("several end tokens are read", "[ling_config]") {
  CHECK(parse_ling_config(with("eos_token_id", "[1, 2018]"), "c").eos_token_id == std::vector<int64_t>{1, 2018});
}

TEST_CASE("published shapes are known by the names that recipes use", "[ling_config]") {
  const auto flash = published_ling_config("inclusionAI/Ling-3.1-flash-1019");
  REQUIRE(flash);
  CHECK(flash->num_hidden_layers == 72);
  CHECK(flash->swiglu_limit(65, false) == 10.0);
  CHECK(flash->swiglu_limit(64, false) == 0.0);
  CHECK(flash->swiglu_limit(64, true) == 10.0);
  CHECK(published_ling_config("Ling-3.1-Flash-1019"));
  CHECK_FALSE(published_ling_config("Ling-3.0-flash")->q_lora_rank);
  CHECK_FALSE(published_ling_config("something else"));
}

}  // namespace
}  // namespace tandem
