#include "runtime/common/json_walk.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

namespace tandem {
namespace {

/// nlohmann's SAX events with the path kept alongside. Names and signatures are nlohmann's.
class Events final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Events(JsonVisitor& visitor, int max_depth, ErrorKind kind, const std::string& where)
      : visitor_(visitor), max_depth_(max_depth), kind_(kind), where_(where) {
    path_.resize(static_cast<size_t>(max_depth) + 1);
  }

  bool null() override { return emit({}); }
  bool boolean(bool value) override { return emit({.kind = JsonScalar::Kind::boolean, .boolean = value}); }
  bool number_integer(int64_t value) override {
    return emit({.kind = JsonScalar::Kind::integer, .integer = value, .number = static_cast<double>(value)});
  }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return number_float(static_cast<double>(value), {});
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string&) override {
    return emit({.kind = JsonScalar::Kind::number, .number = value});
  }
  bool string(std::string& value) override { return emit({.kind = JsonScalar::Kind::string, .text = value}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return enter(false); }
  bool start_array(size_t) override { return enter(true); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(std::string& value) override {
    path_[static_cast<size_t>(depth_) - 1] = value;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw Error(kind_, "not valid JSON at byte " + std::to_string(position), where_);
  }

 private:
  JsonVisitor::Path path() const { return {path_.data(), static_cast<size_t>(depth_)}; }

  bool emit(const JsonScalar& value) {
    visitor_.scalar(path(), value);
    return true;
  }

  bool enter(bool is_array) {
    if (depth_ >= max_depth_)
      throw Error(kind_, "JSON nested deeper than " + std::to_string(max_depth_) + " levels", where_);
    visitor_.open(path(), is_array);
    arrays_.push_back(is_array);
    path_[static_cast<size_t>(depth_++)].clear();
    return true;
  }

  bool leave() {
    --depth_;
    visitor_.close(path(), arrays_.back());
    arrays_.pop_back();
    return true;
  }

  JsonVisitor& visitor_;
  int max_depth_;
  ErrorKind kind_;
  const std::string& where_;
  int depth_ = 0;
  std::vector<std::string> path_;
  std::vector<bool> arrays_;
};

}  // namespace

void walk_json(std::string_view text, JsonVisitor& visitor, int max_depth, ErrorKind kind, const std::string& where) {
  Events events(visitor, max_depth, kind, where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
}

}  // namespace tandem
