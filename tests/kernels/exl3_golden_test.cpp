// Linears quantized, decoded and computed by exllamav3 itself: tests/data/golden/exl3_small.safetensors.
#include <filesystem>
#include <string>

#include "kernels/exl3.h"
#include "kernels/float_format.h"
#include "runtime/common/file.h"
#include "runtime/common/safetensors.h"
#include "tests/catch.h"
#include "tests/kernels/exl3_fixture.h"
#include "tests/kernels/targets.h"

namespace tandem {
namespace {

/// Tensors by name, as spans into the mapped file.
class Golden {
 public:
  Golden()
      : path_(std::filesystem::path(TANDEM_TEST_DATA) / "golden" / "exl3_small.safetensors"),
        header_(read_safetensors_header(path_)),
        file_(path_, ErrorKind::pack) {}

  bool has(const std::string& name) const { return header_.find(name) != nullptr; }

  template <typename T>
  std::span<const T> tensor(const std::string& name) const {
    const TensorInfo* info = header_.find(name);
    REQUIRE(info != nullptr);
    const std::byte* data = file_.bytes().data() + header_.data_offset + info->begin;
    return {reinterpret_cast<const T*>(data), static_cast<size_t>(info->bytes()) / sizeof(T)};
  }

 private:
  std::filesystem::path path_;
  SafetensorsHeader header_;
  MappedFile file_;
};

struct NamedCodebook {
  const char* name;
  Codebook codebook;
};
constexpr NamedCodebook kCodebooks[] = {
    {"3inst", Codebook::three_inst}, {"mcg", Codebook::mcg}, {"mul1", Codebook::mul1}};

TEST_CASE("codebooks equal exllamav3's, all 65,536 states", "[exl3][golden]") {
  const Golden golden;
  for (const auto& [name, codebook] : kCodebooks) {
    const auto expected = golden.tensor<uint16_t>("codebook." + std::string(name));
    REQUIRE(expected.size() == 65536);
    int different = 0;
    for (int state = 0; state < 65536; ++state) {
      different += exl3_state_value_reference(codebook, static_cast<uint16_t>(state)) != expected[state];
    }
    CHECK(different == 0);
  }
}

TEST_CASE("the 45 golden linears decode bit by bit and multiply within 1e-5", "[exl3][golden]") {
  const Golden golden;
  struct Shape {
    int64_t in, out;
  };
  int linears = 0;
  int decoded = 0;
  for (const auto& [in, out] : {Shape{256, 384}, Shape{512, 256}, Shape{128, 128}}) {
    const std::string shape = std::to_string(in) + "x" + std::to_string(out);
    const auto x_fp16 = golden.tensor<uint16_t>(shape + ".x");
    std::vector<float> x;
    for (const uint16_t bits : x_fp16) x.push_back(fp16_to_float(bits));
    for (const auto& [name, codebook] : kCodebooks) {
      for (int bits = 2; bits <= 6; ++bits) {
        const std::string key = shape + "." + name + "." + std::to_string(bits);
        INFO(key);
        ++linears;
        const Exl3Weight weight{.trellis = golden.tensor<uint16_t>(key + ".trellis").data(),
                                .suh = golden.tensor<uint16_t>(key + ".suh").data(),
                                .svh = golden.tensor<uint16_t>(key + ".svh").data(),
                                .in_features = in,
                                .out_features = out,
                                .bits = bits,
                                .codebook = codebook};
        const auto y_ref = golden.tensor<float>(key + ".y_ref");

        std::vector<uint16_t> expected(static_cast<size_t>(in * out));
        exl3_decode_reference(weight, expected.data());
        // exllamav3's own matrix was left out for four linears, for size; their outputs still are its.
        if (golden.has(key + ".inner")) {
          ++decoded;
          const auto inner = golden.tensor<uint16_t>(key + ".inner");
          CHECK(std::equal(inner.begin(), inner.end(), expected.begin(), expected.end()));
        }
        CHECK(relative_error(run_exl3_reference(weight, x), y_ref) < 1e-6);
        for_each_target([&] {
          std::vector<uint16_t> got(expected.size(), 0x7E00);
          exl3_decode(weight, got.data(), nullptr);
          CHECK(got == expected);
          CHECK(relative_error(run_exl3(weight, x), y_ref) < 1e-5);
        });
      }
    }
  }
  CHECK(linears == 45);
  CHECK(decoded == 41);
}

}  // namespace
}  // namespace tandem
