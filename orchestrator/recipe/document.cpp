#include "orchestrator/recipe/document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace tandem {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxValues = 20000;

/// Thrown out of yaml-cpp's parser to stop it at once: a bomb is not read to its end.
struct StopReading {};

/// Builds the tree from the parser's events rather than from yaml-cpp's own nodes, which would resolve aliases, merge
/// duplicate keys silently, and be complete before any limit could be checked.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const SourceText& source, Layer layer, Problems& problems)
      : source_(source), layer_(layer), problems_(problems) {
    line_starts_.push_back(0);
    for (size_t i = 0; i < source_.text.size(); ++i)
      if (source_.text[i] == '\n') line_starts_.push_back(i + 1);
  }

  Value take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0)
      stop("the file holds more than one YAML document", mark,
           "keep the first one; put others into files of their own");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add({}, mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    stop("YAML aliases (*name) are not read", mark, "write the value out, or share it through `extends`");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    refuse_anchor(mark, anchor);
    if (tag != "?" && tag != "!") refuse_tag(mark, tag);
    Value value;
    value.kind = Value::Kind::scalar;
    value.text = text;
    value.quoted = tag == "!";
    if (value.quoted) check_closed(mark);
    add(std::move(value), mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Value::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Value::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Value value;
    std::string key;  // of the entry whose value comes next
    Place key_place;
    bool have_key = false;
  };

  Place place(const YAML::Mark& mark) const { return {source_.file, mark.line + 1, mark.column + 1}; }

  [[noreturn]] void stop(std::string what, const YAML::Mark& mark, std::string fix) {
    problems_.add(std::move(what), place(mark).text(), std::move(fix));
    throw StopReading();
  }
  /// Everything from where a value starts to the end of the file.
  std::string_view text_at(const YAML::Mark& mark) const {
    size_t at = line_starts_.at(static_cast<size_t>(mark.line));
    const auto continues = [&] { return at < source_.text.size() && (source_.text[at] & 0xC0) == 0x80; };
    for (int column = 0; column < mark.column; ++column)
      for (++at; continues();) ++at;  // columns count characters
    return std::string_view(source_.text).substr(std::min(at, source_.text.size()));
  }

  /// yaml-cpp takes the end of the file for the missing end of a quoted text.
  void check_closed(const YAML::Mark& mark) {
    const std::string_view text = text_at(mark);
    const char quote = text.empty() ? '\0' : text.front();
    if (quote == '!') refuse_tag(mark, "!");
    if (quote != '"' && quote != '\'') return;  // a block scalar
    for (size_t i = 1; i < text.size(); ++i) {
      const bool doubled = quote == '\'' && text[i] == quote && i + 1 < text.size() && text[i + 1] == quote;
      if ((text[i] == '\\' && quote == '"') || doubled) {
        ++i;
      } else if (text[i] == quote) {
        return;
      }
    }
    stop("the quotation mark is never closed", mark, "close it where the text ends");
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) stop("YAML anchors (&name) are not read", mark, "remove it; share values through `extends`");
  }
  [[noreturn]] void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    stop("the YAML tag " + printable(tag, 60) + " is not read", mark, "remove it: each field has one type");
  }

  void open(Value::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_anchor(mark, anchor);
    if (tag != "?" && tag != "!" && !tag.empty()) refuse_tag(mark, tag);
    if (!frames_.empty() && frames_.back().value.kind == Value::Kind::map && !frames_.back().have_key)
      stop("a key must be a word", mark,
           "close the bracket that opens here, or quote a text that begins with `[`, `{` or `?`");
    if (frames_.size() >= kMaxDepth)
      stop("values are nested deeper than " + std::to_string(kMaxDepth) + " levels", mark, "no field is that deep");
    count(mark);
    Frame frame;
    frame.value.kind = kind;
    frame.value.layer = layer_;
    frame.value.place = place(mark);
    frames_.push_back(std::move(frame));
  }

  void close() {
    Value value = std::move(frames_.back().value);
    frames_.pop_back();
    attach(std::move(value));
  }

  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxValues)
      stop("the file has more than " + std::to_string(kMaxValues) + " values", mark, "check that this is a recipe");
  }

  void add(Value value, const YAML::Mark& mark) {
    count(mark);
    value.layer = layer_;
    value.place = place(mark);
    if (!frames_.empty() && frames_.back().value.kind == Value::Kind::map && !frames_.back().have_key) {
      take_key(value, mark);
      return;
    }
    attach(std::move(value));
  }

  void take_key(const Value& key, const YAML::Mark& mark) {
    Frame& frame = frames_.back();
    if (key.kind != Value::Kind::scalar) stop("a key is missing before `:`", mark, "write `key: value`");
    if (key.text == "<<") stop("YAML merge keys (<<) are not read", mark, "share values through `extends`");
    for (const Entry& entry : frame.value.entries) {
      if (entry.key != key.text) continue;
      problems_.add("the key `" + one_line(key.text, 60) + "` is given twice", place(mark).text(),
                    "keep one of the two; the first is at line " + std::to_string(entry.place.line));
      break;
    }
    if (problems_.full()) throw StopReading();
    frame.key = key.text;
    frame.key_place = place(mark);
    frame.have_key = true;
  }

  void attach(Value value) {
    if (frames_.empty()) {
      root_ = std::move(value);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.value.kind == Value::Kind::list) {
      frame.value.items.push_back(std::move(value));
    } else {
      frame.value.entries.push_back({std::move(frame.key), frame.key_place, std::move(value)});
      frame.have_key = false;
    }
  }

  const SourceText& source_;
  Layer layer_;
  Problems& problems_;
  Value root_;
  std::vector<Frame> frames_;
  std::vector<size_t> line_starts_;
  size_t values_ = 0;
  int documents_ = 0;
};

// Each group: keys of one map of which only one may be given.
constexpr std::array<std::array<std::string_view, 3>, 2> kExclusive = {
    {{"repo", "url", "path"}, {"argv", "ranks", ""}}};

void drop_rivals(Value& base, std::string_view key) {
  for (const auto& group : kExclusive)
    if (std::find(group.begin(), group.end(), key) != group.end())
      for (std::string_view rival : group)
        if (rival != key) base.erase(rival);
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

Value* Value::find(std::string_view key) {
  return const_cast<Value*>(std::as_const(*this).find(key));
}

void Value::erase(std::string_view key) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

Value parse_document(const SourceText& source, Layer layer, Problems& problems) {
  TreeBuilder builder(source, layer, problems);
  try {
    std::istringstream in(source.text);
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const StopReading&) {
  } catch (const YAML::Exception& error) {
    Place place{source.file, error.mark.line + 1, error.mark.column + 1};
    if (error.mark.is_null()) place.line = 0;
    problems.add("this is not valid YAML: " + printable(error.msg, 200), place.text(),
                 "check quotes, brackets and indentation from here upwards");
  }
  return builder.take_root();
}

void merge_into(Value& base, const Value& over) {
  if (base.kind != Value::Kind::map || over.kind != Value::Kind::map) {
    base = over;
    return;
  }
  for (const Entry& entry : over.entries) {
    drop_rivals(base, entry.key);
    if (Value* mine = base.find(entry.key)) {
      merge_into(*mine, entry.value);
    } else {
      base.entries.push_back(entry);
    }
  }
}

}  // namespace tandem
