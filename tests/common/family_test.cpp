#include "runtime/common/family.h"

#include <string>

#include "runtime/common/pack.h"
#include "runtime/common/shard.h"
#include "tests/catch.h"

namespace tandem {
namespace {

const std::string kPacks = TANDEM_SOURCE_DIR "/examples/packs/";

LingConfig flash() {
  return published_ling_config("inclusionAI/Ling-3.1-flash-1019").value();
}

LingConfig tiny() {
  return read_ling_config(kPacks + "ling-tiny-exl3-3.64bpw");
}

/// The published 3.03 bpw pack: routed 3, shared 5, KDA 4, dense 4, MLA 6, head 6, MTP 4.
ComponentBits bits_of_the_303_pack() {
  ComponentBits bits;
  bits[Component::routed_experts] = 3;
  bits[Component::shared_experts] = 5;
  bits[Component::kda_attention] = 4;
  bits[Component::dense_mlp] = 4;
  bits[Component::mla_attention] = 6;
  bits[Component::head] = 6;
  bits[Component::mtp] = 4;
  return bits;
}

TEST_CASE("the table of Ling-3.1-flash has the published number of tensors", "[family]") {
  const ModuleTable table(flash());
  CHECK(table.modules().size() == 107393);
  // Quantized, with q, k, v and their convolutions fused, every linear is four tensors.
  int64_t stored = 0;
  for (const Module& m : table.modules())
    if (m.fused_part == 0) stored += m.quantizable ? 4 : 1;
  CHECK(stored == 426632);
}

TEST_CASE("parameters of the family's models add up to what their makers publish", "[family]") {
  const auto billions = [](const LingConfig& config) {
    const ModuleTable table(config);
    double sum = 0;
    for (const Module& m : table.modules()) sum += static_cast<double>(m.elements());
    return sum / 1e9;
  };
  CHECK(billions(flash()) == Approx(563.9 + 8.2).epsilon(0.001));
  CHECK(billions(published_ling_config("Ling-3.0-flash").value()) == Approx(127.5).epsilon(0.001));
}

TEST_CASE("bytes of the 3.03 bpw pack and of its ranks come out as published", "[family]") {
  const ComponentBits bits = bits_of_the_303_pack();
  const double download = static_cast<double>(weight_bytes(flash(), bits).total());
  const double rank = static_cast<double>(weight_bytes(flash(), bits, 2).total());
  CHECK(download / 1e9 == Approx(220.6).epsilon(0.002));
  CHECK(rank / (1 << 30) == Approx(103.4).epsilon(0.006));
  CHECK(average_bits_per_weight(flash(), bits) == Approx(3.03).epsilon(0.002));
}

TEST_CASE("the 2.06 bpw pack's size comes out as published", "[family]") {
  ComponentBits bits = bits_of_the_303_pack();
  bits[Component::routed_experts] = 2;
  CHECK(static_cast<double>(weight_bytes(flash(), bits).total()) / 1e9 == Approx(152.09).epsilon(0.002));
}

TEST_CASE("cache and state of a sequence have the sizes of the architecture", "[family]") {
  CHECK(kv_bytes_per_token(flash(), 2) == 10368 + 1152);
  const int64_t state = 63 * (int64_t{4} << 20);
  const int64_t history = 63 * int64_t{3} * 24576 * 2;
  CHECK(recurrent_bytes_per_slot(flash(), 2, 1) == state + history);
  CHECK(recurrent_bytes_per_slot(flash(), 2, 2) == (state + history) / 2);
}

TEST_CASE("the example packs hold exactly the table's tensors", "[family]") {
  for (const char* name : {"ling-tiny-exl3-3.64bpw", "ling-tiny-exl3-3.12bpw"}) {
    const Pack pack = Pack::open(kPacks + name);
    const ModuleTable table(tiny());
    CHECK(check_tensors(pack, table, 1).empty());
    for (const PackTensor& tensor : pack.tensors()) CHECK(understand_name(table, tensor.info.name));
  }
}

TEST_CASE("estimated bytes of an example pack match its files", "[family]") {
  const Pack pack = Pack::open(kPacks + "ling-tiny-exl3-3.64bpw");
  const int64_t estimate = weight_bytes(tiny(), bits_of_the_303_pack()).total();
  CHECK(static_cast<double>(estimate) == Approx(static_cast<double>(pack.tensor_bytes())).epsilon(0.005));
}

TEST_CASE("Ling-3.1-flash divides over two ranks, and not over four", "[family]") {
  CHECK(why_not_divisible(flash(), 1, true).empty());
  CHECK(why_not_divisible(flash(), 2, true).empty());
  const auto reasons = why_not_divisible(flash(), 4, true);
  REQUIRE(reasons.size() == 2);
  CHECK(reasons[0] == "moe_intermediate_size 1280 has 10 blocks of 128, which 4 ranks cannot share evenly");
}

TEST_CASE("the tiny model divides over two ranks, and not over three or four", "[family]") {
  CHECK(why_not_divisible(tiny(), 2, true).empty());
  CHECK_FALSE(why_not_divisible(tiny(), 4, true).empty());
  const auto reasons = why_not_divisible(tiny(), 3, true);
  REQUIRE_FALSE(reasons.empty());
  CHECK(reasons[0] == "num_attention_heads 4 does not divide by 3 ranks");
}

TEST_CASE("modules of the MTP layer count as mtp, those of a trunk layer by their kind", "[family]") {
  const ModuleTable table(tiny());
  CHECK(table.find("model.layers.3.attention.q_b_proj")->component == Component::mla_attention);
  CHECK(table.find("model.layers.8.attention.q_b_proj")->component == Component::mtp);
  CHECK(table.find("model.layers.0.attention.g_proj")->component == Component::kda_attention);
  CHECK(table.find("model.layers.3.attention.g_proj")->component == Component::other);
  CHECK(table.find("model.layers.3.attention.g_proj")->shape == std::vector<int64_t>{4, 256});
  CHECK(table.find("model.layers.9.attention.g_proj") == nullptr);
}

TEST_CASE("a fused tensor is cut part by part", "[family]") {
  const ModuleTable table(tiny());
  const auto fused = understand_name(table, "model.layers.0.attention.qkv_proj.trellis");
  REQUIRE(fused);
  REQUIRE(fused->modules.size() == 3);
  const TensorInfo trellis{.name = "t", .dtype = DType::i16, .shape = {16, 96, 64}};
  const Slice slice = slice_of(*fused, trellis, 2, 1);
  CHECK(slice.axis == 1);
  CHECK(slice.ranges == std::vector<Range>{{16, 32}, {48, 64}, {80, 96}});
  CHECK(slice.shape == std::vector<int64_t>{16, 48, 64});

  const auto conv = understand_name(table, "model.layers.0.attention.conv1d.weight");
  REQUIRE(conv);
  const TensorInfo taps{.name = "c", .dtype = DType::bf16, .shape = {1536, 1, 4}};
  CHECK(slice_of(*conv, taps, 2, 0).ranges == std::vector<Range>{{0, 256}, {512, 768}, {1024, 1280}});
}

TEST_CASE("scales follow the side that is cut, markers and biases their own rules", "[family]") {
  const ModuleTable table(tiny());
  const auto slice = [&](const char* name, std::vector<int64_t> shape, int rank) {
    const TensorInfo info{.name = name, .dtype = DType::f16, .shape = std::move(shape)};
    return slice_of(understand_name(table, name).value(), info, 2, rank);
  };
  CHECK(slice("model.layers.0.attention.f_proj.suh", {256}, 1).axis == -1);
  CHECK(slice("model.layers.0.attention.f_proj.svh", {512}, 1).ranges == std::vector<Range>{{256, 512}});
  CHECK(slice("model.layers.0.attention.o_proj.suh", {512}, 0).ranges == std::vector<Range>{{0, 256}});
  CHECK(slice("model.layers.0.attention.o_proj.svh", {256}, 0).axis == -1);
  CHECK(slice("model.layers.0.attention.o_proj.su", {32}, 1).ranges == std::vector<Range>{{16, 32}});
  CHECK(slice("model.layers.0.attention.o_proj.mul1", {}, 1).axis == -1);
  CHECK(slice("model.layers.0.attention.f_proj.bias", {512}, 1).ranges == std::vector<Range>{{256, 512}});
  CHECK(slice("model.layers.0.attention.o_proj.bias", {256}, 0).present);
  CHECK_FALSE(slice("model.layers.0.attention.o_proj.bias", {256}, 1).present);
  CHECK(slice("model.layers.3.attention.kv_a_proj_with_mqa.svh", {640}, 1).axis == -1);
  CHECK(slice("model.layers.0.attention.A_log", {1, 1, 4, 1}, 1).axis == 2);
}

TEST_CASE("a tensor whose size contradicts the config is not cut", "[family]") {
  const ModuleTable table(tiny());
  const auto name = understand_name(table, "model.layers.0.attention.f_proj.svh").value();
  const TensorInfo info{.name = "svh", .dtype = DType::f16, .shape = {640}};
  CHECK_THROWS_AS(slice_of(name, info, 2, 0), Error);
  CHECK_THROWS_AS(slice_of(name, {.name = "svh", .dtype = DType::f16, .shape = {}}, 2, 0), Error);
}

}  // namespace
}  // namespace tandem
