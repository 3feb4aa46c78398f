#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/common/pack.h"
#include "runtime/common/safetensors.h"
#include "tests/text_files.h"

namespace tandem::test {

/// A tensor of a pack with its bytes, to be changed.
struct EditedTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

/// A pack's tensors in memory. Tests change some and write them as a pack of one file.
class EditedPack {
 public:
  explicit EditedPack(const std::filesystem::path& folder) {
    const Pack pack = Pack::open(folder);
    config = pack.config_text();
    for (const PackTensor& tensor : pack.tensors()) {
      const auto bytes = pack.data(tensor);
      tensors.push_back({tensor.info, {bytes.begin(), bytes.end()}});
    }
  }

  EditedTensor& at(const std::string& name) {
    for (EditedTensor& tensor : tensors) {
      if (tensor.info.name == name) return tensor;
    }
    throw std::runtime_error("no tensor " + name);
  }
  EditedTensor take(const std::string& name) {
    EditedTensor taken = at(name);
    std::erase_if(tensors, [&](const EditedTensor& tensor) { return tensor.info.name == name; });
    return taken;
  }
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    tensors.push_back({{.name = name, .dtype = dtype, .shape = std::move(shape)}, std::move(bytes)});
  }

  void write(const std::filesystem::path& folder) const {
    write_text(folder / "config.json", config);
    std::vector<TensorInfo> infos;
    for (const EditedTensor& tensor : tensors) infos.push_back(tensor.info);
    SafetensorsWriter writer(folder / "model.safetensors", infos);
    for (const EditedTensor& tensor : tensors) writer.append(tensor.bytes);
    writer.finish();
  }

  std::string config;
  std::vector<EditedTensor> tensors;
};

}  // namespace tandem::test
