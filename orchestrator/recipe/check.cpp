#include "orchestrator/recipe/check.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace tandem {
namespace {

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

std::string_view kind_name(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "nothing";
    case Value::Kind::scalar:
      return "a single value";
    case Value::Kind::map:
      return "a map";
    case Value::Kind::list:
      return "a list";
  }
  return "";
}

/// Walks one layer. `shown` is put in front of paths in messages: "overrides." inside a cluster file.
class LayerCheck {
 public:
  LayerCheck(Document document, std::string shown, Problems& problems)
      : document_(document), shown_(std::move(shown)), problems_(problems) {}

  void map(const Value& value, const std::string& path) {
    if (!is(value, Value::Kind::map, path)) return;
    for (const Entry& entry : value.entries) {
      const std::string below = join(path, entry.key);
      const Field* field = find_field(document_, below);
      // Keys with dots or brackets would be read as paths.
      if (!field || entry.key.find_first_of(".[]*") != std::string::npos) {
        complain("there is no key `" + one_line(entry.key, 60) + "`" + (path.empty() ? "" : " in `" + path + "`"),
                 entry.place, one_line(below, 200), suggest_key(document_, path, entry.key));
        continue;
      }
      if (document_ == Document::recipe && field->recipe_only && entry.value.layer != Layer::recipe) {
        complain("`" + below + "` says what the recipe is and cannot be changed from outside", entry.place, below,
                 "change it in the recipe");
        continue;
      }
      any(entry.value, *field, below);
    }
  }

 private:
  void complain(std::string what, const Place& place, const std::string& path, std::string fix) {
    problems_.add(std::move(what), place.text(shown_ + path), std::move(fix));
  }

  bool is(const Value& value, Value::Kind kind, const std::string& path) {
    if (value.kind == kind) return true;
    const std::string wanted = kind == Value::Kind::map ? "a map of keys and values" : "a list";
    complain("expected " + wanted + ", found " + std::string(kind_name(value)), value.place, path,
             kind == Value::Kind::map ? "write `key: value` lines below it" : "write [item, item] or lines with `- `");
    return false;
  }

  void bounds(const Field& field, size_t count, const Value& value, const std::string& path) {
    if (field.max == 0 || (static_cast<double>(count) >= field.min && static_cast<double>(count) <= field.max)) return;
    const auto number = [](double bound) { return std::to_string(static_cast<int64_t>(bound)); };
    const std::string wanted =
        field.min == field.max ? number(field.min) : number(field.min) + " to " + number(field.max);
    complain("found " + std::to_string(count) + " items, expected " + wanted, value.place, path,
             "write " + wanted + " items");
  }

  void any(const Value& value, const Field& field, const std::string& path) {
    if (problems_.full()) return;
    if (field.path == "overrides" && document_ == Document::cluster) {
      LayerCheck(Document::recipe, "overrides.", problems_).map(value, "");
      return;
    }
    switch (field.type) {
      case FieldType::map:
        return map(value, path);
      case FieldType::free_map:
        return free_map(value, field, path);
      case FieldType::list: {
        if (!is(value, Value::Kind::list, path)) return;
        bounds(field, value.items.size(), value, path);
        const Field& items = *find_field(document_, std::string(field.path) + "[]");
        for (size_t i = 0; i < value.items.size(); ++i)
          any(value.items[i], items, path + "[" + std::to_string(i) + "]");
        return;
      }
      default:
        break;
    }
    if (value.kind == Value::Kind::null) {
      complain("`" + path + "` has no value", value.place, path,
               "write " + std::string(type_description(field.type)) + ", or remove the key");
    } else if (value.kind != Value::Kind::scalar) {
      complain("expected " + std::string(type_description(field.type)) + ", found " + std::string(kind_name(value)),
               value.place, path, "write a single value");
    } else if (const auto complaint = check_scalar(field, value)) {
      complain(complaint->what, value.place, path, complaint->fix);
    }
  }

  void free_map(const Value& value, const Field& field, const std::string& path) {
    if (!is(value, Value::Kind::map, path)) return;
    bounds(field, value.entries.size(), value, path);
    const bool variables = field.path.ends_with("env");
    const Field& values = *find_field(document_, std::string(field.path) + ".*");
    for (const Entry& entry : value.entries) {
      const std::string below = join(path, one_line(entry.key, 100));
      const auto letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
      const bool good = variables ? !entry.key.empty() && entry.key.size() <= 128 &&
                                        std::all_of(entry.key.begin(), entry.key.end(), letter) &&
                                        !std::isdigit(static_cast<unsigned char>(entry.key[0]))
                                  : !entry.key.empty() && entry.key.size() <= 96 && letter(entry.key[0]) &&
                                        std::all_of(entry.key.begin(), entry.key.end(),
                                                    [&](char c) { return letter(c) || c == '.' || c == '-'; });
      if (!good) {
        complain("`" + one_line(entry.key, 60) + "` is no " + (variables ? "variable's" : "program's") + " name",
                 entry.place, below,
                 variables ? "use letters, digits and `_`" : "use letters, digits, `.`, `_` and `-`");
        continue;
      }
      if (variables && document_ == Document::recipe && value.layer == Layer::recipe) {
        if (const auto complaint = check_recipe_variable(entry.key)) {
          complain(complaint->what, entry.place, below, complaint->fix);
          continue;
        }
      }
      any(entry.value, values, below);
    }
  }

  Document document_;
  std::string shown_;
  Problems& problems_;
};

void require_below(const Value& value, Document document, const std::string& path, Problems& problems) {
  if (value.kind == Value::Kind::list) {
    for (size_t i = 0; i < value.items.size(); ++i)
      require_below(value.items[i], document, path + "[" + std::to_string(i) + "]", problems);
    return;
  }
  if (value.kind != Value::Kind::map) return;
  for (const std::string& key : keys_below(document, path)) {
    const std::string below = join(path, key);
    const Field* field = find_field(document, below);
    const Value* found = value.find(key);
    if (!found && field->required && key != "*") {
      Place place = value.place;
      if (path.empty()) place.line = 0;  // the file, rather than its first key
      problems.add("`" + below + "` is missing", place.text(path), "add it: " + std::string(field->doc));
    }
    if (found) require_below(*found, document, below, problems);
  }
}

}  // namespace

std::optional<Complaint> check_recipe_variable(std::string_view name) {
  static constexpr std::array<std::string_view, 26> families = {
      "NCCL_",   "GLOO_", "UCX_",     "TF_",       "TENSORFOLD_", "VLLM_",       "SGLANG_",  "SGL_",    "LLAMA_",
      "GGML_",   "EXL3_", "EXLLAMA_", "TABBY_",    "TRTLLM_",     "TORCH_",      "PYTORCH_", "TRITON_", "TILELANG_",
      "DG_JIT_", "CUDA_", "OMP_",     "OPENBLAS_", "MKL_",        "FLASHINFER_", "GLM53_",   "MLX_"};
  static constexpr std::array<std::string_view, 4> names = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
                                                            "TOKENIZERS_PARALLELISM", "SAFETENSORS_FAST_GPU"};
  // Parts of names that make a process load code, run programs, read or write files, or talk to someone.
  static constexpr std::array<std::string_view, 28> dangerous = {
      "EXTERNAL", "PACKAGE", "MODULE", "INSECURE", "PATH", "PRELOAD", "LIBRARY", "PLUGIN", "INJECT", "SO_NAME",
      "COMPILER", "NVCC",    "_CC",    "COMMAND",  "_CMD", "EXEC",    "SCRIPT",  "HOOK",   "FILE",   "_DIR",
      "HOME",     "TOKEN",   "SECRET", "PASSW",    "_KEY", "PROXY",   "_URL",    "HOST"};
  const std::string owner = "the owner of the machines can set it in the cluster file's `env`; remove it here";
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (std::find(names.begin(), names.end(), name) != names.end()) return std::nullopt;
  const std::string shown = "`" + one_line(name, 60) + "`";
  if (std::none_of(families.begin(), families.end(), begins))
    return Complaint{"a recipe may not set the variable " + shown + ", which is no known engine's setting", owner};
  for (std::string_view part : dangerous)
    if (name.find(part) != std::string_view::npos)
      return Complaint{"a recipe may not set the variable " + shown + ": names with `" + std::string(part) +
                           "` can make a program load code, or reach files and addresses",
                       owner};
  return std::nullopt;
}

void check_layer(const Value& root, Document document, Problems& problems) {
  LayerCheck(document, "", problems).map(root, "");
}

void check_required(const Value& root, Document document, Problems& problems) {
  require_below(root, document, "", problems);
}

}  // namespace tandem
