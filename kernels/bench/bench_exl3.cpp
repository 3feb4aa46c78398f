// EXL3 linears: checked against the reference first, then timed. One thread: what a core does.
//
//   bench_exl3 [--target NAME] [--quick]
//
// Weights rotate through sets that are larger than the second-level cache together; `share` is the rate at which weight
// bytes are consumed against the rate at which one thread can read memory at all.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench/bench_common.h"
#include "kernels/exl3.h"

namespace tandem {
namespace {

using bench::number;

constexpr uint16_t kOne = 0x3C00;

const char* name_of(Codebook codebook) {
  return codebook == Codebook::mul1 ? "mul1" : codebook == Codebook::mcg ? "mcg" : "3inst";
}

/// Random trellises of one shape; scales are ones.
class Weights {
 public:
  Weights(int64_t in, int64_t out, int bits, Codebook codebook, int64_t sets, std::mt19937_64& random)
      : ones_(static_cast<size_t>(std::max(in, out)), kOne), words_(static_cast<size_t>(in * out * bits / 16 * sets)) {
    for (size_t i = 0; i + 4 <= words_.size(); i += 4) {
      const uint64_t bits64 = random();
      std::memcpy(&words_[i], &bits64, sizeof bits64);
    }
    for (int64_t i = 0; i < sets; ++i) {
      weights_.push_back(
          {words_.data() + i * (in * out * bits / 16), ones_.data(), ones_.data(), nullptr, in, out, bits, codebook});
    }
  }

  const Exl3Weight& operator[](int64_t i) const { return weights_[i % weights_.size()]; }

 private:
  std::vector<uint16_t> ones_;
  std::vector<uint16_t> words_;
  std::vector<Exl3Weight> weights_;
};

struct Aligned {
  explicit Aligned(int64_t size) : memory(static_cast<size_t>(size + 64)), bytes(size) {}
  void* data() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64); }
  std::vector<char> memory;
  int64_t bytes;
};

void check(int bits, Codebook codebook, std::mt19937_64& random) {
  const int64_t in = 512, out = 256, rows = 5;
  const Weights weights(in, out, bits, codebook, 1, random);
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * in), expected(rows * out), got(rows * out, std::numeric_limits<float>::quiet_NaN());
  for (float& value : x) value = normal(random);
  Exl3Product product{.weight = &weights[0], .x = x.data(), .rows = rows, .y = expected.data()};
  exl3_linear_reference({.products = {&product, 1}});
  product.y = got.data();
  Aligned workspace(exl3_workspace_bytes(in, 1));
  exl3_linear({{&product, 1}, workspace.data(), workspace.bytes, nullptr});
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double{got[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  const double error = std::sqrt(difference / norm);
  if (!(error < 1e-5)) {
    bench::fail(std::string(name_of(codebook)) + ", " + std::to_string(bits) + " bits: relative error " +
                number(error * 1e6, 2) + "e-6");
  }
}

void time(bench::Table& table, int64_t in, int64_t out, int bits, Codebook codebook, int64_t rows,
          std::mt19937_64& random) {
  const double weight_bytes = static_cast<double>(in * out) * bits / 8;
  const int64_t sets = std::max<int64_t>(2, std::llround(64e6 / weight_bytes));
  const Weights weights(in, out, bits, codebook, sets, random);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * in)), y(static_cast<size_t>(rows * out));
  for (float& value : x) value = normal(random);
  Aligned workspace(exl3_workspace_bytes(in, 1));
  int64_t turn = 0;
  const double seconds = bench::best_seconds([&] {
    const Exl3Product product{.weight = &weights[turn++], .x = x.data(), .rows = rows, .y = y.data()};
    exl3_linear({{&product, 1}, workspace.data(), workspace.bytes, nullptr});
  });
  const double count = static_cast<double>(in * out);
  const double bytes_per_s = weight_bytes / seconds;
  table.row({name_of(codebook), std::to_string(bits), std::to_string(in) + "x" + std::to_string(out),
             std::to_string(rows), number(seconds * 1e6, 1), number(count / seconds / 1e9, 2),
             number(2 * count * static_cast<double>(rows) / seconds / 1e9, 1), number(bytes_per_s / 1e9, 2),
             number(100 * bytes_per_s / bench::read_bandwidth(), 1) + "%"});
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  using namespace tandem;
  std::string target;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--quick")
      quick = true;
    else if (std::string(argv[i]) == "--target" && i + 1 < argc)
      target = argv[++i];
    else
      bench::fail("usage: bench_exl3 [--target NAME] [--quick]");
  }
  if (!bench::use_instruction_set(target)) bench::fail("this machine has no instruction set \"" + target + "\"");

  std::mt19937_64 random(std::random_device{}());
  constexpr Codebook kCodebooks[] = {Codebook::mul1, Codebook::mcg, Codebook::three_inst};
  for (const Codebook codebook : kCodebooks) {
    for (int bits = 1; bits <= 8; ++bits) check(bits, codebook, random);
  }
  std::printf("instruction set %s, one thread; results agree with the reference within 1e-5\n",
              bench::instruction_set().c_str());
  std::printf("one thread reads %s GB/s\n\n", number(bench::read_bandwidth() / 1e9, 1).c_str());

  bench::Table table({"codebook", "bits", "in x out", "rows", "us", "Gweights/s", "GFLOP/s", "GB/s", "share"});
  for (const Codebook codebook : kCodebooks) {
    for (int bits = 1; bits <= 8; ++bits) {
      if (quick && (bits < 2 || bits > 4)) continue;
      time(table, 4096, 4096, bits, codebook, 1, random);
    }
  }
  for (const int64_t rows : {2, 4, 8, 64, 256}) time(table, 4096, 4096, 3, Codebook::mul1, rows, random);
  time(table, 4096, 1280, 3, Codebook::mul1, 1, random);
  time(table, 1280, 4096, 3, Codebook::mul1, 1, random);
  time(table, 256, 256, 3, Codebook::mul1, 1, random);
}
