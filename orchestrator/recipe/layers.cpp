// From files and flags to merged trees.
#include "orchestrator/recipe/layers.h"

#include <algorithm>
#include <system_error>

#include "orchestrator/recipe/check.h"
#include "orchestrator/recipe/fields.h"
#include "runtime/common/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxExtends = 8;

Value read_document(const fs::path& file, Document document, Layer layer, Problems& problems,
                    std::vector<Note>& notes) {
  const std::string bytes = read_small_file(file, kMaxRecipeBytes, ErrorKind::recipe);
  const size_t before = problems.errors().size();
  const SourceText source = check_source(bytes, file.string(), problems);
  for (const std::string& note : source.notes) notes.push_back({note, *source.file});
  if (problems.errors().size() != before) return {};
  Value root = parse_document(source, layer, problems);
  if (problems.errors().size() != before) return {};
  if (root.kind == Value::Kind::null) {
    problems.add("the file is empty", *source.file, "see recipes/reference.yaml for what belongs into it");
    return {};
  }
  check_layer(root, document, problems);
  if (root.kind == Value::Kind::map && !root.find("schema"))
    problems.add("`schema` is missing", *source.file,
                 std::string("begin the file with `schema: ") +
                     (document == Document::recipe ? "tandem.recipe/v1`" : "tandem.cluster/v1`"));
  return root;
}

/// Is `inner` in `folder` or below, links resolved?
bool lies_in(const fs::path& inner, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), inner.begin(), inner.end());
  return end == folder.end();
}

class RecipeFiles {
 public:
  RecipeFiles(Problems& problems, std::vector<Note>& notes) : problems_(problems), notes_(notes) {}

  Value read(const fs::path& file) {
    std::error_code code;
    const fs::path real = fs::weakly_canonical(file, code);
    chain_.push_back(real);
    Value own = read_document(file, Document::recipe, Layer::recipe, problems_, notes_);
    const Value* extends = own.find("extends");
    if (!extends || extends->kind != Value::Kind::scalar || !problems_.empty()) return own;
    const fs::path base = (file.parent_path() / extends->text).lexically_normal();
    const fs::path real_base = fs::weakly_canonical(base, code);
    if (!base_is_sound(real_base, real.parent_path(), *extends)) return own;
    Value merged = read(base);
    own.erase("extends");
    merge_into(merged, own);
    merged.place = own.place;
    return merged;
  }

 private:
  bool base_is_sound(const fs::path& base, const fs::path& folder, const Value& extends) {
    const auto refuse = [&](std::string what, std::string fix) {
      problems_.add(std::move(what), extends.place.text("extends"), std::move(fix));
      return false;
    };
    std::error_code code;
    if (!fs::exists(base, code))
      return refuse("there is no file `" + printable(extends.text, 200) + "`", "paths are relative to this file");
    if (!lies_in(base, folder))
      return refuse("a link leads `" + printable(extends.text, 200) + "` out of the recipe's folder",
                    "put the base recipe itself into this folder");
    if (std::find(chain_.begin(), chain_.end(), base) != chain_.end())
      return refuse("the recipes extend each other in a circle", "remove one of the `extends`");
    if (chain_.size() >= kMaxExtends)
      return refuse("more than " + std::to_string(kMaxExtends) + " recipes extend one another",
                    "merge some of them into one");
    return true;
  }

  Problems& problems_;
  std::vector<Note>& notes_;
  std::vector<fs::path> chain_;
};

/// This machine alone: what applies when no cluster file is given.
Value default_cluster() {
  const auto scalar = [](std::string text) {
    Value value;
    value.kind = Value::Kind::scalar;
    value.layer = Layer::cluster;
    value.place.file = std::make_shared<const std::string>("default");
    value.text = std::move(text);
    return value;
  };
  Value node = scalar("");
  node.kind = Value::Kind::map;
  node.entries.push_back({"name", node.place, scalar("local")});
  Value nodes = scalar("");
  nodes.kind = Value::Kind::list;
  nodes.items.push_back(std::move(node));
  Value root = scalar("");
  root.kind = Value::Kind::map;
  root.entries.push_back({"schema", root.place, scalar("tandem.cluster/v1")});
  root.entries.push_back({"name", root.place, scalar("this-machine")});
  root.entries.push_back({"nodes", root.place, std::move(nodes)});
  return root;
}

/// One --set KEY=VALUE as a tree that holds that one value.
class Override {
 public:
  Override(const std::string& text, Problems& problems) : problems_(problems) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorKind::usage, "--set needs KEY=VALUE, found `" + printable(text, 100) + "`", "--set",
                  "for example --set engine.context=64k");
    key_ = text.substr(0, equals);
    value_ = text.substr(equals + 1);
    if (value_.size() > kMaxValueBytes)
      throw Error(ErrorKind::usage, "the value of --set " + printable(key_, 60) + " is over 64 KiB", "--set",
                  "put it into a file");
    place_.file = std::make_shared<const std::string>("--set " + printable(key_, 100));
    if (key_.starts_with("cluster.")) {
      document_ = Document::cluster;
      key_.erase(0, std::string_view("cluster.").size());
    }
  }

  void apply(Layers& layers) {
    Value root = map();
    if (!build(root)) return;
    const size_t before = problems_.errors().size();
    check_layer(root, document_, problems_);
    if (problems_.errors().size() == before)
      merge_into(document_ == Document::recipe ? layers.recipe : layers.cluster, root);
  }

 private:
  static constexpr size_t kMaxValueBytes = 64 << 10;

  Value map() const {
    Value value;
    value.kind = Value::Kind::map;
    value.layer = Layer::set;
    value.place = place_;
    return value;
  }

  /// Walks down the key, one map a segment. What follows a map of free keys is one key, dots and all.
  bool build(Value& root) {
    Value* at = &root;
    std::string path;
    std::string_view rest = key_;
    while (true) {
      const Field* here = path.empty() ? nullptr : find_field(document_, path);
      const bool free = here && here->type == FieldType::free_map;
      const size_t dot = free ? std::string_view::npos : rest.find('.');
      const std::string segment(rest.substr(0, dot));
      const std::string below = path.empty() ? segment : path + "." + segment;
      const Field* field = free ? find_field(document_, path + ".*") : find_field(document_, below);
      const bool is_word = free || segment.find_first_of("[]*") == std::string::npos;
      if (!field || !is_word || (dot != std::string_view::npos && field->type == FieldType::list)) {
        problems_.add("there is no key `" + printable(key_, 100) + "`", place_.text(),
                      is_word ? suggest_key(document_, path, segment) : "set the whole list: --set KEY=[item, item]");
        return false;
      }
      Value value = dot == std::string_view::npos ? last_value(*field) : map();
      at->entries.push_back({segment, place_, std::move(value)});
      at = &at->entries.back().value;
      if (dot == std::string_view::npos) return true;
      path = below;
      rest.remove_prefix(dot + 1);
    }
  }

  Value last_value(const Field& field) {
    if (field.is_container()) {
      const SourceText source = check_source(value_, *place_.file, problems_);
      return problems_.empty() ? parse_document(source, Layer::set, problems_) : map();
    }
    Value value = map();
    value.kind = Value::Kind::scalar;
    value.text = value_;
    return value;
  }

  Problems& problems_;
  Document document_ = Document::recipe;
  std::string key_, value_;
  Place place_;
};

}  // namespace

Layers read_layers(const LoadOptions& options, Problems& problems) {
  Layers layers;
  try {
    layers.recipe = RecipeFiles(problems, layers.notes).read(options.recipe);
  } catch (const Error& error) {
    problems.add(error);
  }
  layers.default_cluster = !options.cluster;
  layers.cluster = default_cluster();
  if (options.cluster) {
    try {
      layers.cluster = read_document(*options.cluster, Document::cluster, Layer::cluster, problems, layers.notes);
    } catch (const Error& error) {
      problems.add(error);
    }
    if (const Value* overrides = layers.cluster.find("overrides"); overrides && problems.empty())
      merge_into(layers.recipe, *overrides);
  }
  for (const std::string& set : options.sets) Override(set, problems).apply(layers);
  if (!problems.empty()) return layers;
  check_required(layers.recipe, Document::recipe, problems);
  check_required(layers.cluster, Document::cluster, problems);
  return layers;
}

}  // namespace tandem
